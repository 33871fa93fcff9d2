"""`draftwire distill train` as processes: killed, started twice, several at once."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from support.killing import kill_at
from support.tiny_distillation import write_data
from support.tiny_training import command, curve, options, same, state

from distill import build
from distill.agreement import agreement
from distill.batches import Collator
from distill.data import DistillationData
from distill.losses import vocab_map
from distill.run_folder import last_checkpoint
from distill.train import train
from draftwire.errors import Incompatible

pytestmark = pytest.mark.e2e

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
TWO = (*TORCHRUN, "2")


def run(*arguments: str) -> None:
    """Python with these arguments, on one thread."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


def losses(run) -> list[float]:
    """Of each step."""
    history = json.loads((run / "trainer_state.json").read_text())["log_history"]
    return [entry["loss"] for entry in history if "loss" in entry]


@pytest.fixture(scope="module")
def undisturbed(folder, tmp_path_factory):
    """A run of a process that nobody killed."""
    output = tmp_path_factory.mktemp("undisturbed") / "run"
    run(*command(options(folder, output)))
    return output


def test_a_killed_process_goes_on(folder, undisturbed, tmp_path):
    """SIGKILL within its second checkpoint, two steps after the first; the same command ends with the same bits."""
    wanted = options(folder, tmp_path / "run")
    second = wanted.output / "checkpoint-6"
    kill_at(command(wanted), second / "optimizer.pt", sign=second / "average.safetensors")
    assert last_checkpoint(wanted.output).name == "checkpoint-3"
    run(*command(wanted))
    assert same(state(wanted.output, 6), state(undisturbed, 6))
    assert curve(wanted.output) == curve(undisturbed)


def test_two_processes_agree(folder, undisturbed, tmp_path):
    """The same seed and data give the same acceptance within 0.005, also where two threads add in another order."""
    run(*command(options(folder, tmp_path / "run", threads=2)))
    for mine, theirs in zip(curve(tmp_path / "run"), curve(undisturbed), strict=True):
        for name in ("eval_greedy", "eval_acceptance_1", "eval_acceptance_0.7"):
            assert mine[name] == pytest.approx(theirs[name], abs=0.005)


@pytest.fixture(scope="module")
def together(folder, tmp_path_factory):
    """A run of two processes, as torchrun starts them. The learning rate is 0 in the first step."""
    output = tmp_path_factory.mktemp("together") / "run"
    held_out = write_data(output.parent / "eval", str(folder / "target"), sequences=14, seed=1)
    run(*TWO, *command(options(folder, output, epochs=4, eval_data=[held_out])))
    return output


def test_several_processes_share_the_data(folder, together, tmp_path):
    """In a step each has a batch of its own: its loss is the mean of what one process has in two steps."""
    train(options(folder, tmp_path / "run", epochs=4, learning_rate=1e-12, max_steps=4))
    one, two, three, four = losses(tmp_path / "run")
    assert losses(together)[:2] == pytest.approx([(one + two) / 2, (three + four) / 2], rel=1e-4)
    assert abs(one - two) > 1e-3 * one
    first, _ = curve(together)
    assert first["eval_tokens_seen"] > 3 * 200  # more than one process can have seen in three steps


def test_several_processes_learn(together):
    """One loss is written for each step, and it falls."""
    assert len(losses(together)) == 6
    assert losses(together)[-1] < 0.8 * losses(together)[0]


def test_several_processes_judge_the_same_student(folder, together):
    """The last point of the curve is the averaged student's on all held-out data, three batches for two processes."""
    weights = load_file(together / "checkpoint-6" / "average.safetensors")
    student = build.from_target(str(folder / "target"), [0, 1], weights.pop("draft_vocab"))
    student.load(weights, "here")
    data = DistillationData(together.parent / "eval")
    batch = Collator(data.temperatures, 1.0, max_length=512)(list(data))
    rows = vocab_map(student.draft_vocab, data.manifest.vocab_size)
    with torch.inference_mode():
        logits = student(batch["input_ids"], batch["positions"])
    found = agreement(logits, batch["top_ids"], batch["top_logprobs"], rows) / len(logits)
    point = curve(together)[-1]
    names = ("eval_greedy", "eval_acceptance_1", "eval_acceptance_0.7")
    assert [point[name] for name in names] == pytest.approx(found.tolist(), abs=1e-4)


def test_one_of_several_processes_writes(together, undisturbed):
    """There is one log, and a checkpoint is that of one process, but for each process's generator."""
    assert len(list(together.glob("runs/*/*"))) == 1
    names = [{file.name for file in (run / "checkpoint-6").iterdir()} for run in (together, undisturbed)]
    assert names[0] - names[1] == {"rng_state_0.pth", "rng_state_1.pth"}
    assert names[1] - names[0] == {"rng_state.pth"}


def test_no_thread_of_the_group_outlives_training(folder, tmp_path):
    """One that does may abort the process while the interpreter ends, and torchrun then calls the run failed."""
    script = f"""
import pathlib
from distill import train as training
from distill.train_options import Train

def names():
    return {{file.read_text().strip() for file in pathlib.Path("/proc/self/task").glob("*/comm")}}

training.finish = lambda folder: during.update(names())
during = set()
training.train(Train.model_validate_json({options(folder, tmp_path / "run").model_dump_json()!r}))
assert "pt_gloo_runloop" in during, during
assert "pt_gloo_runloop" not in names(), names()
"""
    run(*TORCHRUN, "1", "--no-python", sys.executable, "-c", script)


def test_several_processes_go_on(folder, together, tmp_path):
    """From the first checkpoint to the same bits; but not as one process, which would have other batches.

    This time the held-out data is one batch, so that one of the two has nothing to judge.
    """
    wanted = options(folder, tmp_path / "run", epochs=4)
    shutil.copytree(together, wanted.output)
    shutil.rmtree(wanted.output / "checkpoint-6")
    (wanted.output / "trainer_state.json").unlink()
    with pytest.raises(Incompatible, match="--processes: .* was begun with 2, not 1"):
        train(wanted)
    run(*TWO, *command(wanted))
    assert same(state(wanted.output, 6), state(together, 6))
    assert not same(state(wanted.output, 6), state(wanted.output, 3))
