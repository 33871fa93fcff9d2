"""Adds shards to a data set, each whole or not at all, within a bound on the disk."""

import errno
import json
import shutil
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file

from distill.data import Shard
from distill.manifest import MANIFEST, Manifest, commit
from draftwire.errors import Incompatible, InvalidArgument, ResourceExhausted

#: What must stay free on the disk beside what is written.
RESERVE_BYTES = 64 << 20


class DataWriter:
    """Writes a data set, or goes on with one.

    Args:
        folder: made if it does not exist.
        manifest: what is to be made, without shards. A folder that holds a data set must agree with it in everything
            but the shards.
        max_bytes: most that the folder's shards may occupy.

    Attributes:
        manifest: with the shards that are written.

    Raises InvalidArgument if the folder holds something else, Incompatible if it holds a data set of other settings.
    """

    def __init__(self, folder: Path, manifest: Manifest, max_bytes: int) -> None:
        self.folder = folder
        self.manifest = manifest
        self._max_bytes = max_bytes
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if (folder / MANIFEST).exists():
                self.manifest = Manifest.read(folder)
                check_same(folder, self.manifest, manifest)
            elif any(file for file in folder.iterdir() if not file.name.endswith(".unfinished")):
                raise InvalidArgument("--output", f"{folder} is not empty and holds no data set")
            else:
                manifest.write(folder)
        except OSError as error:
            raise _refused(folder, error) from error

    def append(self, shard: Shard) -> None:
        """Write the next shard. Raises ResourceExhausted if the bound or the disk does not allow it."""
        self._check_space(shard.num_bytes)
        name = f"shard-{len(self.manifest.shards):05d}.safetensors"
        unfinished = self.folder / f"{name}.unfinished"
        metadata = {"kinds": json.dumps(shard.kinds), "samplings": json.dumps(shard.samplings)}
        try:
            save_file(shard.tensors, unfinished, metadata=metadata)
            commit(unfinished, self.folder / name)
            grown = self.manifest.model_copy(update={"shards": (*self.manifest.shards, shard.info(name))})
            grown.write(self.folder)
        except (OSError, SafetensorError) as error:
            raise _refused(self.folder, error) from error
        self.manifest = grown

    def _check_space(self, wanted: int) -> None:
        used = sum((self.folder / shard.file).stat().st_size for shard in self.manifest.shards)
        if used + wanted > self._max_bytes:
            raise ResourceExhausted(
                f"--max-disk-gib: {self.folder} holds {_gib(used)} and the next shard takes {_gib(wanted)}, "
                f"more than the limit of {_gib(self._max_bytes)}; raise it to go on"
            )
        free = shutil.disk_usage(self.folder).free
        if wanted + RESERVE_BYTES > free:
            raise ResourceExhausted(
                f"the disk of {self.folder} is full: the next shard takes {_gib(wanted)}, {_gib(free)} are free"
            )


def check_same(folder: Path, found: Manifest, wanted: Manifest) -> None:
    """Raise Incompatible, naming the first field that differs, unless both are of the same target and settings.

    The target's name does not matter: its fingerprint says what it is.
    """
    for field in Manifest.model_fields:
        if field not in ("shards", "settings", "target"):
            _check_field(folder, field, getattr(found, field), getattr(wanted, field))
    for field in sorted(found.settings.keys() | wanted.settings.keys()):
        _check_field(folder, field, found.settings.get(field), wanted.settings.get(field))


def _check_field(folder: Path, field: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise Incompatible(
            f"{folder} was begun with {field} {found}, not {wanted}; go on with the same, or name another --output"
        )


def _refused(folder: Path, error: Exception) -> ResourceExhausted | InvalidArgument:
    if getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error):
        return ResourceExhausted(f"the disk of {folder} is full")
    return InvalidArgument("--output", f"{folder} cannot be written: {error}")


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
