"""The folder of a training run: what it was begun with, its checkpoints, and a disk that may be full.

settings.json             what decides the result; a run that goes on must have the same
config.json               of a plain student
checkpoint-N/             Hugging Face's Trainer: weights, optimizer, schedule, random state
    average.safetensors   the averaged weights, which export takes
    trainer_state.json    written last, so a checkpoint that has it is whole
trainer_state.json        once the run has ended; `log_history` is the learning curve
"""

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from draftwire.errors import Incompatible, InvalidArgument, ResourceExhausted

SETTINGS = "settings.json"
STATE = "trainer_state.json"
_PREFIX = "checkpoint-"

#: What safetensors says of a full disk, then what torch.save does.
_FULL = ("No space left", "iostream error", "unexpected pos", "PytorchStreamWriter failed")


def read_settings(folder: Path) -> dict[str, Any]:
    """Raises InvalidArgument if the folder holds no training run."""
    try:
        settings: dict[str, Any] = json.loads((folder / SETTINGS).read_text())
    except (OSError, ValueError) as error:
        raise InvalidArgument("--run", f"{folder} holds no training run: {SETTINGS}: {error}") from error
    return settings


def begin(folder: Path, settings: Mapping[str, Any]) -> Path | None:
    """Write the settings of a new run, or compare those of an old one; returns its last checkpoint.

    Raises Incompatible, naming the first setting that differs, ResourceExhausted if the disk is full.
    """
    settings = json.loads(json.dumps(settings))
    if not (folder / SETTINGS).exists():
        with disk_of(folder):
            folder.mkdir(parents=True, exist_ok=True)
            unfinished = folder / f"{SETTINGS}.{os.getpid()}"  # several processes may begin at once
            unfinished.write_text(json.dumps(settings, indent=1))
            unfinished.replace(folder / SETTINGS)
        return None
    found = read_settings(folder)
    for field in sorted(found.keys() - {"versions"}):  # an option newer than the run had no other value then
        if found.get(field) != settings.get(field):
            flag = "--" + field.replace("_", "-")
            raise Incompatible(
                f"{flag}: {folder} was begun with {found.get(field)}, not {settings.get(field)}; "
                "go on with the same, or name another --output"
            )
    return last_checkpoint(folder)


def last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that is whole; None if there is none."""
    whole = [path for path in folder.glob(f"{_PREFIX}*") if _is_whole(path)]
    return max(whole, key=step_of, default=None)


def step_of(checkpoint: Path | None) -> int:
    """Steps that were made before it; 0 where there is none."""
    return int(checkpoint.name.removeprefix(_PREFIX)) if checkpoint else 0


def finish(folder: Path) -> None:
    """The run has ended: its learning curve is that of its last checkpoint. Raises OSError."""
    checkpoint = last_checkpoint(folder)
    assert checkpoint is not None, "the Trainer writes one at the end"
    shutil.copyfile(checkpoint / STATE, folder / STATE)


def _is_whole(checkpoint: Path) -> bool:
    try:
        json.loads((checkpoint / STATE).read_text())
    except (OSError, ValueError):
        return False
    return checkpoint.name.removeprefix(_PREFIX).isdigit()


def check_space(folder: Path, wanted: int) -> None:
    """Raise ResourceExhausted unless so many bytes are free, or taken by checkpoints that will make room."""
    held = sum(file.stat().st_size for file in folder.glob(f"{_PREFIX}*/*"))
    free = shutil.disk_usage(folder).free + held
    if free < wanted:
        raise ResourceExhausted(
            f"--output: the checkpoints take {wanted / 2**30:.2f} GiB, and the disk of {folder} has {free / 2**30:.2f}"
        )


@contextmanager
def disk_of(folder: Path, flag: str = "--output") -> Iterator[None]:
    """Within the block, a disk that is full or cannot be used is ResourceExhausted or InvalidArgument."""
    try:
        yield
    except Exception as error:
        if _says_full(error):
            raise ResourceExhausted(f"{flag}: the disk of {folder} is full; make room and start again") from error
        if isinstance(error, OSError | SafetensorError):
            raise InvalidArgument(flag, f"{folder} cannot be used: {error}") from error
        raise


def _says_full(error: Exception) -> bool:
    """Libraries have their own types for it, and torch.save does not say why it could not write to an open file."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return any(text in str(error) for text in _FULL)
