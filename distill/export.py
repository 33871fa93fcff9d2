"""From a checkpoint of training to folders that models are loaded from.

A trimmed folder holds what the student has learnt and names the target for the rest (draftwire.engine.trimmed). A full
folder stands alone: a causal model of the target's architecture, whose untied head is the target's head times the
adapter; for a plain student it is the model itself. Weights are rounded to bfloat16, which is what they are trained to
be read as and what keeps them packable (draftwire.engine.linear).
"""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from distill import build
from distill.average import FILE
from distill.export_options import Export
from distill.fingerprint import target_fingerprint
from distill.pretrained import load_causal, load_tokenizer
from distill.run_folder import SETTINGS, disk_of, last_checkpoint, read_settings, step_of
from draftwire.engine.trimmed import MODEL_TYPE
from draftwire.errors import Incompatible, InvalidArgument, ModelError

#: Of the run's folder, what goes along if it is there.
_CARD = ("README.md", "*.png")


def export(options: Export) -> None:
    """Write the folders that are asked for. An older export there is replaced.

    Raises InvalidArgument, Incompatible, ModelError, ResourceExhausted.
    """
    run, checkpoint = _find(options.run)
    settings = read_settings(run)
    build.check_vocabulary("--run", str(run), settings["vocab_fingerprint"], settings["target"])
    card = _card(settings, step_of(checkpoint))
    weights = {
        name: tensor if name == "draft_vocab" else tensor.bfloat16()
        for name, tensor in load_file(checkpoint / FILE).items()
    }
    if options.trimmed is not None:
        if "draft_vocab" not in weights:
            raise InvalidArgument("--trimmed", "the student has a head of its own; use --full")
        with _folder("--trimmed", options.trimmed, run, card) as folder:
            _write_trimmed(folder, settings, weights)
    if options.full is not None:
        model = _full(settings, weights) if "draft_vocab" in weights else _plain(run, settings, weights)
        with _folder("--full", options.full, run, card) as folder:
            model.save_pretrained(folder)
            load_tokenizer(settings["target"]).save_pretrained(folder)


def _find(folder: Path) -> tuple[Path, Path]:
    """A run and its last checkpoint, or the run of a checkpoint and this."""
    run = folder if (folder / SETTINGS).is_file() else folder.resolve().parent
    checkpoint = last_checkpoint(run) if run == folder else folder
    if checkpoint is None or not (checkpoint / FILE).is_file():
        raise InvalidArgument("--run", f"{folder} is no training run with a checkpoint, nor a checkpoint of one")
    return run, checkpoint


def _write_trimmed(folder: Path, settings: dict[str, Any], weights: dict[str, Tensor]) -> None:
    config = {
        "model_type": MODEL_TYPE,
        "base_model": settings["target"],
        "num_hidden_layers": _depth(weights),
        "vocab_fingerprint": settings["vocab_fingerprint"],
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def full_model(base_model: str, weights: dict[str, Tensor]) -> Any:
    """A trimmed draft's weights as a model of its target's architecture. Raises ModelError if they do not fit."""
    return _with_head(load_causal(base_model), weights)


def _full(settings: dict[str, Any], weights: dict[str, Tensor]) -> Any:
    """The same, of a run; its target must be the one that it learnt from."""
    target = load_causal(settings["target"])
    wanted = settings.get("target_fingerprint")  # an older run does not say
    if wanted is not None and (found := target_fingerprint(target)) != wanted:
        raise Incompatible(
            f"--run: learnt from a target of other weights (fingerprint {wanted[:12]}) than {settings['target']} has "
            f"({found[:12]})"
        )
    return _with_head(target, weights)


def _with_head(target: Any, weights: dict[str, Tensor]) -> Any:
    build.keep_layers(target, range(_depth(weights)))
    target.config.tie_word_embeddings = False
    model = _causal(target.config, weights)
    head = target.get_output_embeddings().weight.float() @ weights["adapter.weight"].float()
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(target.get_input_embeddings().weight)
        model.get_output_embeddings().weight.copy_(head)
    model.generation_config = target.generation_config
    return model


def _plain(run: Path, settings: dict[str, Any], weights: dict[str, Tensor]) -> Any:
    """A plain student, which ends its answers as the target does."""
    model = _causal(AutoConfig.from_pretrained(run), weights)
    model.generation_config = load_causal(settings["target"]).generation_config
    return model


def _causal(config: Any, weights: dict[str, Tensor]) -> Any:
    """A model of this configuration with the weights that it knows."""
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    own = {name: tensor for name, tensor in weights.items() if name not in ("adapter.weight", "draft_vocab")}
    if unknown := model.load_state_dict(own, strict=False).unexpected_keys:
        raise ModelError(f"{config.architectures}: the checkpoint's weights do not fit: {', '.join(unknown[:3])}")
    return model


def _depth(weights: dict[str, Tensor]) -> int:
    """Decoder layers."""
    return len({name.split(".layers.")[1].split(".")[0] for name in weights if ".layers." in name})


def _card(settings: dict[str, Any], steps: int) -> str:
    """What is known of a draft before it is evaluated; used where the run has no card of its own."""
    return (
        f"# A draft for {settings['target']}\n\n"
        f"Trained with `draftwire distill train`: {steps} steps of about {settings['batch_tokens']} tokens on "
        f"{settings['data']['supervised']:,} supervised tokens of the target, loss {settings['loss']} at temperature "
        f"{settings['loss_temperature']:g} with weight {settings['loss_alpha']:g}, the rest cross-entropy.\n"
    )


@contextmanager
def _folder(flag: str, folder: Path, run: Path, card: str) -> Iterator[Path]:
    """A folder to write into; what is in it at the end of the block goes to `folder`, file by file, with the card."""
    if folder.exists() and any(folder.iterdir()) and not (folder / "config.json").is_file():
        raise InvalidArgument(flag, f"{folder} is not empty and holds no model")
    with disk_of(folder, flag):
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            yield unfinished
            (unfinished / "README.md").write_text(card)
            for pattern in _CARD:
                for file in run.glob(pattern):
                    shutil.copy(file, unfinished)
            for file in unfinished.iterdir():
                file.chmod(0o644)  # safetensors makes its files private
                file.replace(folder / file.name)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
