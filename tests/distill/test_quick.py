"""From nothing to a draft with the commands that `make draft-quick` runs, and a draft that got better on the way."""

import json

import pytest
import torch
from pydantic_settings import CliApp
from support.tiny_distillation import tiny_target

from distill.tiny_target import write_tiny_target
from draftwire.cli.main import Draftwire


@pytest.fixture(autouse=True)
def one_thread():
    """For so small a model a second thread costs more than it helps."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def distill(command: str) -> None:
    CliApp.run(Draftwire, cli_args=["distill", *command.split()])


def test_acceptance_rises(tmp_path, capsys):
    """Collect, train, export, evaluate: at temperature 1 the target accepts far more than before training."""
    target = tiny_target(tmp_path / "target")
    replies = (
        f"--target {target} --max-new-tokens 32 --max-prompt-tokens 256 --batch-size 64 --self-prompts 0 --threads 1"
    )
    distill(f"collect {replies} --output {tmp_path}/train --seed 0 --tokens 5000 --shard-sequences 192")
    distill(f"collect {replies} --output {tmp_path}/eval --seed 1 --tokens 500 --shard-sequences 32")
    distill(
        f"train --target {target} --data {tmp_path}/train --eval-data {tmp_path}/eval --output {tmp_path}/run "
        "--draft-vocab 200 --batch-tokens 400 --epochs 4 --eval-steps 5 --warmup-steps 5 --threads 1"
    )
    distill(f"export --run {tmp_path}/run --trimmed {tmp_path}/draft")
    capsys.readouterr()
    distill(
        f"evaluate --target {target} --draft {tmp_path}/draft --data {tmp_path}/eval --drafter model "
        f"--max-model-len 512 --run {tmp_path}/run --card {tmp_path}/draft --json"
    )
    assert json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    history = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
    points = [entry["eval_acceptance_1"] for entry in history if "eval_acceptance_1" in entry]
    assert points[-1] > points[0] + 0.05
    assert (tmp_path / "draft" / "README.md").exists()


def test_the_tiny_target_is_always_the_same(tmp_path):
    """And asking for it draws nothing from torch's generator."""
    state = torch.random.get_rng_state()
    one, two = (write_tiny_target(tmp_path / name) for name in ("one", "two"))
    assert torch.equal(torch.random.get_rng_state(), state)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two")]
    assert one != two
    assert weights[0] == weights[1]
