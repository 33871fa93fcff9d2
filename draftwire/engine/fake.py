"""An engine around the hand-computable model of draftwire.fake_model; it checks the engine contract."""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from draftwire.engine.base import Chunk
from draftwire.errors import EngineError
from draftwire.fake_model import PREFIX, FakeModel
from draftwire.types import ModelInfo

__all__ = ["PREFIX", "FakeEngine", "FakeModel"]


class FakeEngine:
    """`Engine` over a FakeModel; raises EngineError on any breach of the contract in base.py."""

    def __init__(self, model: FakeModel, *, num_slots: int = 64, max_batched_tokens: int = 2048) -> None:
        self.model = model
        self.info = ModelInfo(
            name="fake",
            vocab_fingerprint=model.vocab_fingerprint,
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
