"""A model that a reader can compute by hand, with an engine around it that checks the engine contract.

The token that follows token t at position i is (t + 1) mod V; with drift d > 0, a token whose own position is a multiple of
d is (t + 2) mod V instead. Its logit is `sharpness`, every other logit is 0. So prompt [7] at drift 0 continues 8, 9,
10, ..., and a draft without drift guesses a target with drift 5 right, except at positions 5, 10, 15, ...

As a model name: "fake:vocab_size=512,drift=5,sharpness=8,step_seconds=0.01" (every field optional).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftwire.engine.base import Chunk
from draftwire.errors import EngineError, ModelError
from draftwire.types import ModelInfo

PREFIX = "fake:"


@dataclass(frozen=True, slots=True)
class FakeModel:
    """The rule above.

    Attributes:
        vocab_size: V.
        drift: positions that are multiples of it skip one token; 0 = none.
        sharpness: logit of the next token.
        step_seconds: how long a forward takes.
        eos: the id that ends an answer; -1 = none.
        max_model_len: longest sequence.
    """

    vocab_size: int = 512
    drift: int = 0
    sharpness: float = 20.0
    step_seconds: float = 0.0
    eos: int = -1
    max_model_len: int = 4096

    @classmethod
    def parse(cls, name: str) -> "FakeModel":
        """Read "fake:field=value,..."; raises ModelError naming a bad field."""
        values: dict[str, int | float] = {}
        for item in filter(None, name.removeprefix(PREFIX).split(",")):
            key, _, value = item.partition("=")
            kind = cls.__annotations__.get(key)
            try:
                values[key] = {int: int, float: float}[kind](value)  # type: ignore[index]
            except (KeyError, ValueError):
                raise ModelError(f"{name!r}: {item!r} is not one of {sorted(cls.__annotations__)} = number") from None
        return cls(**values)  # type: ignore[arg-type]

    def next_token(self, token: int, position: int) -> int:
        """The likeliest token at `position` after `token`."""
        skip = 2 if self.drift and position % self.drift == 0 else 1
        return (token + skip) % self.vocab_size


class FakeEngine:
    """`Engine` over a FakeModel; raises EngineError on any breach of the contract in base.py."""

    def __init__(self, model: FakeModel, *, num_slots: int = 64, max_batched_tokens: int = 2048) -> None:
        self.model = model
        self.info = ModelInfo(
            name="fake",
            vocab_fingerprint=f"fake-{model.vocab_size}",
            vocab_size=model.vocab_size,
            max_model_len=model.max_model_len,
            eos_token_ids=(model.eos,) if model.eos >= 0 else (),
            engine="fake",
            dtype="float32",
        )
        self.num_slots = num_slots
        self.max_batched_tokens = max_batched_tokens
        self._held: dict[int, list[int]] = {}

    def acquire(self, token_ids: Sequence[int]) -> tuple[int, int] | None:
        """Take a slot; nothing is ever reused."""
        slot = next((s for s in range(self.num_slots) if s not in self._held), None)
        if slot is None:
            return None
        self._held[slot] = []
        return slot, 0

    def release(self, slot: int) -> None:
        """Give a slot back."""
        del self._held[slot]

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Logits [sum of num_logits, V] by the rule."""
        if sum(len(chunk.token_ids) for chunk in chunks) > self.max_batched_tokens:
            raise EngineError(f"more than max_batched_tokens={self.max_batched_tokens} tokens in one forward")
        if self.model.step_seconds:
            time.sleep(self.model.step_seconds)
        peaks: list[int] = []
        for chunk in chunks:
            held = self._held.get(chunk.slot)
            if held is None or chunk.start > len(held) or not 0 <= chunk.num_logits <= len(chunk.token_ids):
                raise EngineError(f"bad chunk {chunk} on a slot that holds {held}")
            held[chunk.start :] = chunk.token_ids
            if len(held) > self.model.max_model_len or not all(0 <= t < self.model.vocab_size for t in chunk.token_ids):
                raise EngineError(f"chunk {chunk} is beyond max_model_len or the vocabulary")
            peaks += (self.model.next_token(held[i], i + 1) for i in range(len(held) - chunk.num_logits, len(held)))
        logits = torch.zeros(len(peaks), self.model.vocab_size)
        if peaks:
            logits[torch.arange(len(peaks)), torch.tensor(peaks)] = self.model.sharpness
        return logits
