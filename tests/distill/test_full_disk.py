"""A disk that is full, or cannot be used, while training writes checkpoints and while export writes a model."""

import errno
from pathlib import Path

import pytest
from safetensors import SafetensorError
from safetensors.torch import load_file
from support.tiny_training import options, same, state

from distill import average
from distill import export as exporting
from distill.export import export
from distill.export_options import Export
from distill.run_folder import check_space, disk_of
from distill.train import train
from draftwire.errors import InvalidArgument, ResourceExhausted

#: Opens like a file, and a write to it finds no space left on the device.
FULL = Path("/dev/full")


def test_before_the_first_step(tmp_path):
    with pytest.raises(ResourceExhausted, match=r"--output: the checkpoints take 1048576\.00 GiB"):
        check_space(tmp_path, 1 << 50)


@pytest.mark.parametrize("file", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"])
def test_a_checkpoint(folder, finished, tmp_path, file):
    """Whichever of its files does not fit, the error names the folder; with more room the same command goes on."""
    output = tmp_path / "run"
    checkpoint = output / "checkpoint-6"
    checkpoint.mkdir(parents=True)
    (checkpoint / file).symlink_to(FULL)
    with pytest.raises(ResourceExhausted, match=f"--output: the disk of {output} is full; make room and start again"):
        train(options(folder, output))
    (checkpoint / file).unlink(missing_ok=True)
    train(options(folder, output))
    assert same(state(output, 6), state(finished, 6))


def test_weights(folder, tmp_path, monkeypatch):
    """Those are not written through a link; what the library says of a full disk is all that there is to go by."""

    def full(*_):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(average, "save_file", full)
    with pytest.raises(ResourceExhausted, match="--output: the disk of .*/run is full"):
        train(options(folder, tmp_path / "run"))


def test_no_folder_for_the_log(folder, tmp_path):
    """What is written beside the checkpoints is named in the same way."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "runs").write_text("a file")
    with pytest.raises(InvalidArgument, match=f"--output: {tmp_path}/run cannot be used: .*Not a directory"):
        train(options(folder, tmp_path / "run"))


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        ("trimmed", "config.json"),
        ("trimmed", "README.md"),
        ("full", "config.json"),
        ("full", "tokenizer.json"),
    ],
)
def test_an_export(finished, tmp_path, monkeypatch, kind, file):
    """The error names the option and the folder; an older export in it stays whole, and nothing else is left."""
    output = tmp_path / "draft"
    export(Export(run=finished, **{kind: output}))
    before = load_file(output / "model.safetensors")

    def folder_of_a_full_disk(prefix: str, dir: Path) -> str:
        made = dir / f"{prefix}x"
        made.mkdir()
        (made / file).symlink_to(FULL)
        return str(made)

    monkeypatch.setattr(exporting.tempfile, "mkdtemp", folder_of_a_full_disk)
    with pytest.raises(ResourceExhausted, match=f"--{kind}: the disk of {output} is full; make room and start again"):
        export(Export(run=finished, **{kind: output}))
    assert same(load_file(output / "model.safetensors"), before)
    assert [path.name for path in tmp_path.iterdir()] == ["draft"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (SafetensorError("I/O error: No space left on device (os error 28)"), ResourceExhausted),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), ResourceExhausted),
        (OSError(errno.EACCES, "Permission denied"), InvalidArgument),
        (RuntimeError("a bug"), RuntimeError),
    ],
)
def test_what_libraries_raise(tmp_path, error, expected):
    with pytest.raises(expected), disk_of(tmp_path):
        raise error
