"""A training run of a second, and what it leaves behind."""

import json

import torch
from safetensors.torch import load_file

from distill.train_options import Train


def options(folder, output, **changes) -> Train:
    """Six steps; 24 sequences of about 30 supervised tokens make four batches an epoch."""
    values = {
        "data": [folder / "train"],
        "eval_data": [folder / "eval"],
        "target": str(folder / "target"),
        "draft_vocab": 100,
        "batch_tokens": 200,
        "epochs": 2,
        "max_steps": 6,
        "warmup_steps": 2,
        "learning_rate": 1e-2,
        "precision": "float32",
        "save_steps": 3,
        "eval_steps": 3,
        "log_steps": 1,
    }
    return Train(output=output, **(values | changes))


def state(run, step: int) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint."""
    checkpoint = run / f"checkpoint-{step}"
    moments = torch.load(checkpoint / "optimizer.pt", weights_only=True)
    parts = [part["state"] for part in moments.get("parts", [moments])]
    return (
        load_file(checkpoint / "model.safetensors")
        | {f"average {name}": tensor for name, tensor in load_file(checkpoint / "average.safetensors").items()}
        | {
            f"{name} {part} {i}": tensor
            for part, moments in enumerate(parts)
            for i, entry in moments.items()
            for name, tensor in entry.items()
        }
    )


def curve(run) -> list[dict[str, float]]:
    """The points of a run's learning curve."""
    history = json.loads((run / "trainer_state.json").read_text())["log_history"]
    return [entry for entry in history if "eval_greedy" in entry]


def same(one, two) -> bool:
    """The same names, the same bits."""
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def command(options: Train) -> list[str]:
    """`draftwire distill train` with these options, as the arguments that follow `python`."""
    arguments = ["-m", "draftwire.cli.main", "distill", "train"]
    for name, value in options.model_dump(exclude_unset=True).items():
        values = value if isinstance(value, list) else [value]
        arguments += [f"--{name.replace('_', '-')}={one}" for one in values]
    return arguments
