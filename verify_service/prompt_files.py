"""The files of collected prompts: each written whole or not at all, all together within a bound.

FOLDER/prompts-20260131T120000-1a2b3c.jsonl     named by when it was written, so that the oldest sorts first
"""

import contextlib
import os
import secrets
from datetime import UTC, datetime
from pathlib import Path

from draftwire.errors import InvalidArgument

_PATTERN = "prompts-*.jsonl"
_UNFINISHED = ".unfinished"


class PromptFiles:
    """A folder of them, made if it does not exist; for the service's user alone, and for one worker at a time.

    Args:
        max_bytes: most that the files have together. Files of earlier runs count, and make room first.

    Raises InvalidArgument("--collect-prompts") if the folder cannot be used.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (folder / f"prompts-{secrets.token_hex(3)}.jsonl{_UNFINISHED}").touch()
            for left in folder.glob(f"{_PATTERN}{_UNFINISHED}"):  # the probe, and what a crash left
                left.unlink(missing_ok=True)
        except OSError as error:
            raise InvalidArgument("--collect-prompts", f"{folder} cannot be written: {error.strerror}") from None

    def write(self, content: bytes) -> None:
        """Add a file of at most max_bytes; the oldest make room. Raises OSError, and leaves nothing half written."""
        self._make_room(len(content))
        name = f"prompts-{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{secrets.token_hex(3)}.jsonl"
        unfinished = self._folder / f"{name}{_UNFINISHED}"
        try:
            with open(unfinished, "xb", opener=_private) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(self._folder / name)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise

    def _make_room(self, wanted: int) -> None:
        files = []
        for path in sorted(self._folder.glob(_PATTERN)):
            with contextlib.suppress(FileNotFoundError):  # another worker, or the one who collects them, was quicker
                files.append((path, path.stat().st_size))
        used = sum(size for _, size in files)
        for path, size in files:
            if used + wanted <= self._max_bytes:
                return
            path.unlink(missing_ok=True)
            used -= size


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, mode=0o600)
