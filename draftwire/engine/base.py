"""The contract between an engine and the loops that drive it.

An engine is a set of KV slots and one operation, `forward`: a ragged batch of chunks, each the continuation of one
slot. A chunk says where it starts; whatever the slot held from there on is overwritten, so truncating on rejection
is nothing but starting earlier the next time. Prefill pieces, single tokens and K-token verification are all chunks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from draftwire.types import ModelInfo


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens to run through the model in one slot.

    Attributes:
        slot: from `Engine.acquire`.
        start: position of token_ids[0]; at most the number of tokens that the slot holds.
        token_ids: at least one id, each below vocab_size.
        num_logits: for how many of the last tokens logits are wanted; 0 (inner piece of a prefill) to len(token_ids).
    """

    slot: int
    start: int
    token_ids: Sequence[int]
    num_logits: int


class Engine(Protocol):
    """What runs a model. Every method is called from the one thread that owns the engine."""

    @property
    def info(self) -> ModelInfo:
        """The model that it runs."""

    @property
    def num_slots(self) -> int:
        """Sequences that it can hold at once (--max-num-seqs)."""

    @property
    def max_batched_tokens(self) -> int:
        """Most tokens in one forward, over all chunks (--max-num-batched-tokens)."""

    def acquire(self, token_ids: Sequence[int]) -> tuple[int, int] | None:
        """Take a slot for a sequence that begins with token_ids.

        Returns (slot, cached): the keys and values of token_ids[:cached] are already there, from an earlier or a
        running sequence with the same beginning; cached < len(token_ids), so at least one token is left to run.
        None if every slot is taken.
        """

    def release(self, slot: int) -> None:
        """Give a slot back; its content may serve a later `acquire`."""

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Run one ragged forward. At most one chunk a slot, at most max_batched_tokens tokens in all.

        Returns logits, float32, [sum of num_logits, V], rows in the order of chunks and tokens, V = info.vocab_size:
        the row of the token at position i is the prediction for position i + 1.

        Raises EngineError where the device failed; the slots' contents are then undefined.
        """
