"""Data sets of text with the target's own opinion of it: how sequences lie in shards, and how they are read.

    folder/manifest.json                distill.manifest
    folder/shard-00000.safetensors      S sequences end to end: N tokens, of which G are supervised
        token_ids     int32 [N]
        lengths       int32 [S]
        supervised    bool [N]          the token was predicted by a stored row of the teacher
        top_ids       int32 [G, k]      the target's likeliest ids before that token, likeliest first
        top_logprobs  float16 [G, k]    their log-probabilities at temperature 1, over the whole vocabulary
        tail_logmass  float32 [G, T]    log of the probability of all other ids, at each temperature of the manifest
        metadata: "kinds" and "samplings", JSON lists with an entry for each sequence

With z = top_logprobs / t and m = tail_logmass at temperature t, the probabilities at t are exactly
(1 - exp(m)) * softmax(z), and exp(m) for everything else. So the teacher never runs again.
"""

import bisect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.utils.data import Dataset

from distill.manifest import Manifest, ShardInfo
from draftwire.errors import Incompatible, InvalidArgument


@dataclass(frozen=True)
class Example:
    """A sequence and the teacher's rows for it.

    Attributes:
        token_ids: [n] int64.
        supervised: [n] bool; g of them are True, and the teacher's rows belong to these in order.
        top_ids: [g, k] int64, likeliest first.
        top_logprobs: [g, k] float32, at temperature 1.
        tail_logmass: [g, T] float32, at each temperature of the manifest.
        kind: of its prompt.
        temperature: at which it was sampled; 0 = greedy, NaN = not sampled but given (a corpus).
    """

    token_ids: Tensor
    supervised: Tensor
    top_ids: Tensor
    top_logprobs: Tensor
    tail_logmass: Tensor
    kind: str
    temperature: float


@dataclass(frozen=True)
class Shard:
    """A shard's tensors and lists, as on the disk. Tensors of a file are mapped, not read."""

    tensors: dict[str, Tensor]
    kinds: list[str]
    samplings: list[float]

    @classmethod
    def of(cls, examples: Sequence[Example]) -> "Shard":
        """Pack examples end to end."""
        tensors = {
            "token_ids": torch.cat([e.token_ids for e in examples]).int(),
            "lengths": torch.tensor([len(e.token_ids) for e in examples], dtype=torch.int32),
            "supervised": torch.cat([e.supervised for e in examples]),
            "top_ids": torch.cat([e.top_ids for e in examples]).int(),
            "top_logprobs": torch.cat([e.top_logprobs for e in examples]).half(),
            "tail_logmass": torch.cat([e.tail_logmass for e in examples]).float(),
        }
        return cls(tensors, [e.kind for e in examples], [e.temperature for e in examples])

    @classmethod
    def open(cls, file: Path) -> "Shard":
        """Map a file. Raises InvalidArgument if it is missing or damaged."""
        try:
            with safe_open(str(file), framework="pt") as content:
                metadata = content.metadata() or {}
                tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 (not a dict)
            return cls(tensors, json.loads(metadata["kinds"]), json.loads(metadata["samplings"]))
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise InvalidArgument(str(file), f"cannot be read as a shard: {error}") from error

    @property
    def num_bytes(self) -> int:
        """What the tensors occupy."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def info(self, file: str) -> ShardInfo:
        """Its entry in the manifest."""
        tensors = self.tensors
        return ShardInfo(
            file=file,
            sequences=len(tensors["lengths"]),
            tokens=len(tensors["token_ids"]),
            supervised=len(tensors["top_ids"]),
        )


class _ShardReader:
    """Finds the examples of one mapped shard."""

    def __init__(self, file: Path, info: ShardInfo) -> None:
        self._shard = Shard.open(file)
        self._tensors = self._shard.tensors
        counted = self._tensors["supervised"].long().cumsum(0)
        ends = self._tensors["lengths"].long().cumsum(0)
        if self._shard.info(info.file) != info or (len(ends) and int(counted[-1]) != info.supervised):
            raise InvalidArgument(str(file), "does not hold what the manifest says")
        self._ends = [0, *ends.tolist()]
        self._rows = [0, *counted[ends - 1].tolist()]

    def __getitem__(self, index: int) -> Example:
        tokens = slice(self._ends[index], self._ends[index + 1])
        rows = slice(self._rows[index], self._rows[index + 1])
        return Example(
            self._tensors["token_ids"][tokens].long(),
            self._tensors["supervised"][tokens].clone(),
            self._tensors["top_ids"][rows].long(),
            self._tensors["top_logprobs"][rows].float(),
            self._tensors["tail_logmass"][rows].clone(),
            self._shard.kinds[index],
            self._shard.samplings[index],
        )


class DistillationData(Dataset[Example]):
    """The examples of one data set, or of several that fit together, in order.

    Shards are mapped when first asked for, so only what is read takes memory.

    Args:
        folders: of data sets; at least one.

    Attributes:
        manifest: of the first folder, with the shards of that folder.
        temperatures: at which tail_logmass is stored.

    Raises InvalidArgument if a folder is not a data set or they hold no sequence, Incompatible if two do not fit.
    """

    def __init__(self, *folders: Path) -> None:
        if not folders:
            raise InvalidArgument("data", "name at least one folder")
        manifests = [Manifest.read(Path(folder)) for folder in folders]
        self.manifest = manifests[0]
        self.temperatures = self.manifest.temperatures
        for folder, manifest in zip(folders, manifests, strict=True):
            _check_fit(self.manifest, manifest, f"{folders[0]} and {folder}")
        self._shards = [
            (Path(folder) / info.file, info)
            for folder, manifest in zip(folders, manifests, strict=True)
            for info in manifest.shards
        ]
        self._starts = list(accumulate((info.sequences for _, info in self._shards), initial=0))
        self._readers: dict[int, _ShardReader] = {}
        if not len(self):
            raise InvalidArgument(", ".join(map(str, folders)), "the data set is empty")

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> Example:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        shard = bisect.bisect_right(self._starts, index) - 1
        if shard not in self._readers:
            self._readers[shard] = _ShardReader(*self._shards[shard])
        return self._readers[shard][index - self._starts[shard]]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_readers": {}}  # a worker process maps the files anew


def _check_fit(first: Manifest, other: Manifest, where: str) -> None:
    for field in ("vocab_fingerprint", "target_fingerprint", "vocab_size", "top_k", "temperatures"):
        one, two = getattr(first, field), getattr(other, field)
        if one != two:
            raise Incompatible(f"{where} cannot be used together: {field} {one} and {two}")
