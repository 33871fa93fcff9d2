"""An engine around a `ToyChain`, whose law of whole answers is known; its forwards take random times."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import torch
from support.stats import ToyChain
from torch import Tensor

from draftwire.engine.base import Chunk
from draftwire.types import ModelInfo


@dataclass
class ChainEngine:
    """`Engine` whose logits depend on the last token alone.

    Attributes:
        chain: gives the logits.
        delay: seconds of the next forward.
    """

    chain: ToyChain
    delay: Callable[[], float] = lambda: 0.0
    num_slots: int = 64
    max_batched_tokens: int = 2048
    _held: dict[int, list[int]] = field(default_factory=dict)

    @property
    def info(self) -> ModelInfo:
        """The chain as a model."""
        eos = () if self.chain.eos is None else (self.chain.eos,)
        return ModelInfo("chain", "chain", self.chain.vocab_size, max_model_len=1024, eos_token_ids=eos, engine="fake")

    def acquire(self, token_ids: Sequence[int]) -> tuple[int, int] | None:
        """Take a slot; nothing is ever reused."""
        slot = next((slot for slot in range(self.num_slots) if slot not in self._held), None)
        if slot is None:
            return None
        self._held[slot] = []
        return slot, 0

    def release(self, slot: int) -> None:
        """Give a slot back."""
        del self._held[slot]

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Logits [sum of num_logits, V]; a chunk must continue what its slot holds."""
        time.sleep(self.delay())
        last: list[int] = []
        for chunk in chunks:
            held = self._held[chunk.slot]
            assert chunk.start <= len(held)
            held[chunk.start :] = chunk.token_ids
            last += chunk.token_ids[len(chunk.token_ids) - chunk.num_logits :]
        return self.chain.logits(last) if last else torch.zeros(0, self.chain.vocab_size)


def random_delay(most: float, seed: int) -> Callable[[], float]:
    """Delays of 0 to `most` seconds."""
    rng = Random(seed)
    return lambda: rng.uniform(0, most)
