"""What a data set says about itself: manifest.json, the first and the last thing that is looked at. No torch here.

A shard counts once the manifest lists it; a file that it does not list is what a killed run left behind. Both are
written under another name, flushed to the disk and then renamed, so a reader never sees half of either.
"""

import os
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from draftwire.errors import InvalidArgument

MANIFEST = "manifest.json"


class ShardInfo(BaseModel):
    """One shard: its file's name in the folder, its sequences, their tokens, and how many of these are supervised."""

    model_config = ConfigDict(frozen=True)

    file: str
    sequences: int = Field(ge=0)
    tokens: int = Field(ge=0)
    supervised: int = Field(ge=0)


class Manifest(BaseModel):
    """A data set's manifest.

    Attributes:
        format: of the files.
        target: the name under which the target was loaded.
        vocab_fingerprint: of its tokenizer (draftwire.vocab).
        target_fingerprint: of its configuration and weights (distill.teacher).
        vocab_size: V, ids of the target.
        top_k: k, how many of the likeliest ids are stored at each supervised position.
        temperatures: at which the mass outside these ids is stored.
        settings: the options of the run that made it; a run that goes on must have the same.
        shards: in order.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = 1
    target: str
    vocab_fingerprint: str
    target_fingerprint: str
    vocab_size: int = Field(ge=1)
    top_k: int = Field(ge=1)
    temperatures: tuple[float, ...]
    settings: dict[str, Any] = {}
    shards: tuple[ShardInfo, ...] = ()

    @property
    def supervised(self) -> int:
        """Supervised tokens of all shards."""
        return sum(shard.supervised for shard in self.shards)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The manifest of a folder. Raises InvalidArgument if there is none or it cannot be understood."""
        file = folder / MANIFEST
        try:
            return cls.model_validate_json(file.read_text())
        except OSError as error:
            raise InvalidArgument(str(folder), f"is not a data set: {MANIFEST}: {error.strerror}") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "JSON"
            raise InvalidArgument(str(file), f"{where}: {first['msg']}") from None

    def write(self, folder: Path) -> None:
        """Replace the folder's manifest by this one, at once or not at all. Raises OSError."""
        unfinished = folder / f"{MANIFEST}.unfinished"
        unfinished.write_text(self.model_dump_json(indent=1))
        commit(unfinished, folder / MANIFEST)


def commit(unfinished: Path, final: Path) -> None:
    """Give a finished file its name once its bytes are on the disk. Raises OSError."""
    with open(unfinished, "rb") as file:
        os.fsync(file.fileno())
    os.replace(unfinished, final)
    folder = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
