"""What the tests of training share."""

import pytest
from support.tiny_distillation import tiny_target, write_data
from support.tiny_training import options

from distill.train import train


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A target and two data sets."""
    folder = tmp_path_factory.mktemp("distill")
    target = tiny_target(folder / "target")
    write_data(folder / "train", target)
    write_data(folder / "eval", target, sequences=6, seed=1)
    return folder


@pytest.fixture(scope="session")
def finished(folder, tmp_path_factory):
    """A run of 6 steps with checkpoints after 3 and 6."""
    output = tmp_path_factory.mktemp("finished") / "run"
    train(options(folder, output))
    return output
