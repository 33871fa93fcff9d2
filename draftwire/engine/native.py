"""The native engine: any allowlisted transformers model, one ragged forward over KV slots of our own.

A forward lays all chunks end to end and runs the model's own code once; `draftwire.engine.attention` keeps the chunks
apart. In batch-invariant mode every row attends alone and every linear layer sees a multiple of `row_multiple` rows,
so that a row's logits are the same bits whatever shares its forward (`draftwire.engine.invariance` finds the
multiple).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from draftwire.engine.attention import ATTENTION_NAME, KVCache, RaggedBatch, Span, causal_mask
from draftwire.engine.base import Chunk
from draftwire.engine.slots import SlotTable
from draftwire.errors import EngineError
from draftwire.types import ModelInfo


class NativeEngine:
    """`Engine` over a transformers model.

    Args:
        model: a causal language model that `draftwire.engine.supported` allows, in evaluation mode, on its device.
        info: what it is; info.vocab_size = V, logits of ids at or above it are cut off.
        num_slots: sequences that it can hold at once.
        max_batched_tokens: most tokens in one forward.
        row_multiple: None = rows may share arithmetic; else batch-invariant mode, see above.
        head_vocab: [R] the id of each row of the model's head, where the head covers only some ids; the logits of the
            others are -inf.
        num_kv_heads: key heads that this process has; None = all of the model's.
    """

    def __init__(
        self,
        model: Any,
        info: ModelInfo,
        *,
        num_slots: int,
        max_batched_tokens: int,
        row_multiple: int | None = None,
        head_vocab: Tensor | None = None,
        num_kv_heads: int | None = None,
    ) -> None:
        config = model.config
        model.set_attn_implementation(ATTENTION_NAME)
        self.info = info
        self.num_slots = num_slots
        self.max_batched_tokens = max_batched_tokens
        self._model = model
        self._row_multiple = row_multiple
        self._head_vocab = head_vocab
        self._head_rows = info.vocab_size if head_vocab is None else len(head_vocab)
        self._dtype, self._device = model.dtype, model.device
        self._slots = SlotTable(num_slots)
        self._cache = KVCache(
            num_layers=config.num_hidden_layers,
            num_slots=num_slots,
            max_model_len=info.max_model_len,
            num_kv_heads=num_kv_heads or getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            dtype=self._dtype,
            device=self._device,
        )

    def acquire(self, token_ids: Sequence[int]) -> tuple[int, int] | None:
        """Take a slot, with the longest beginning of token_ids that any slot holds (see base.py)."""
        placement = self._slots.acquire(token_ids)
        if placement is None:
            return None
        if placement.copy_from is not None:
            self.copy(placement.copy_from, placement.slot, placement.cached)
        return placement.slot, placement.cached

    def release(self, slot: int) -> None:
        """Give a slot back."""
        self._slots.release(slot)

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Logits [sum of num_logits, V], float32 (see base.py). A breach of the contract raises EngineError, too."""
        self._check(chunks)
        try:
            with torch.inference_mode():
                rows = self.run(chunks)
        except RuntimeError as error:
            for chunk in chunks:
                self._slots.truncate(chunk.slot, 0)  # nobody may reuse what a failed forward left
            raise EngineError(f"the forward pass failed: {error}") from error
        for chunk in chunks:
            self._slots.write(chunk.slot, chunk.start, chunk.token_ids)
        return self._over_vocabulary(rows)  # an ordinary tensor, which the caller may change

    def _check(self, chunks: Sequence[Chunk]) -> None:
        if sum(len(chunk.token_ids) for chunk in chunks) > self.max_batched_tokens:
            raise EngineError(f"more than max_batched_tokens={self.max_batched_tokens} tokens in one forward")
        if not chunks or len({chunk.slot for chunk in chunks}) < len(chunks):
            raise EngineError("a forward takes one chunk or more, each of another slot")
        for chunk in chunks:
            problem = self._problem(chunk)
            if problem:
                raise EngineError(f"slot {chunk.slot}, start {chunk.start}, {len(chunk.token_ids)} tokens: {problem}")

    def _problem(self, chunk: Chunk) -> str | None:
        count = len(chunk.token_ids)
        if not self._slots.is_taken(chunk.slot):
            return "the slot is not taken"
        if not 0 <= chunk.start <= self._slots.length(chunk.slot):
            return f"the slot holds {self._slots.length(chunk.slot)} tokens"
        if count == 0 or chunk.start + count > self.info.max_model_len:
            return f"must be 1 token or more and end within max_model_len={self.info.max_model_len}"
        if not 0 <= chunk.num_logits <= count:
            return f"num_logits={chunk.num_logits}"
        if min(chunk.token_ids) < 0 or max(chunk.token_ids) >= self.info.vocab_size:
            return f"a token id is outside 0..{self.info.vocab_size - 1}"
        return None

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot to another: what `acquire` decided, done."""
        self._cache.copy(source, target, length)

    def run(self, chunks: Sequence[Chunk]) -> Tensor:  # [sum of num_logits, rows of the head]
        """Run the chunks, which `forward` has checked; in inference mode."""
        ids, positions, cache_rows, logit_rows = _flatten(chunks, self.info.max_model_len)
        wanted = len(logit_rows)
        if self._row_multiple:
            _pad(ids, self._row_multiple)
            _pad(positions, self._row_multiple)
            _pad(logit_rows, self._row_multiple)
        batch = RaggedBatch(self._cache, self._tensor(cache_rows), self._spans(chunks))
        inputs = {
            "input_ids": self._tensor(ids)[None],
            "position_ids": self._tensor(positions)[None],
            "use_cache": False,
            "ragged_batch": batch,
        }
        if not wanted:
            self._model.base_model(**inputs)
            return torch.empty(0, self._head_rows, device=self._device)
        output = self._model(**inputs, logits_to_keep=self._tensor(logit_rows))
        logits: Tensor = output.logits[0, :wanted]
        return logits

    def _spans(self, chunks: Sequence[Chunk]) -> list[Span]:
        """How the rows attend: a chunk at once, or row by row in batch-invariant mode."""
        spans: list[Span] = []
        first = 0
        for chunk in chunks:
            count, end = len(chunk.token_ids), chunk.start + len(chunk.token_ids)
            if self._row_multiple:
                spans += (Span(chunk.slot, first + i, 1, chunk.start + i + 1, None) for i in range(count))
            else:
                masked = count > 1 and chunk.start > 0
                mask = causal_mask(count, end, self._dtype, self._device) if masked else None
                spans.append(Span(chunk.slot, first, count, end, mask))
            first += count
        return spans

    def _over_vocabulary(self, logits: Tensor) -> Tensor:
        """A float32 copy over 0..V-1 of what the head gave."""
        if self._head_vocab is None:
            return logits[:, : self.info.vocab_size].to(torch.float32, copy=True)
        full = torch.full((len(logits), self.info.vocab_size), -torch.inf, device=self._device)
        full[:, self._head_vocab] = logits.float()
        return full

    def _tensor(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._device)


def _flatten(chunks: Sequence[Chunk], max_model_len: int) -> tuple[list[int], list[int], list[int], list[int]]:
    """Token ids, positions and cache rows of the flat batch, and the rows whose logits are wanted."""
    ids: list[int] = []
    positions: list[int] = []
    cache_rows: list[int] = []
    logit_rows: list[int] = []
    for chunk in chunks:
        ids += chunk.token_ids
        end = chunk.start + len(chunk.token_ids)
        positions += range(chunk.start, end)
        cache_rows += range(chunk.slot * max_model_len + chunk.start, chunk.slot * max_model_len + end)
        logit_rows += range(len(ids) - chunk.num_logits, len(ids))
    return ids, positions, cache_rows, logit_rows


def _pad(values: list[int], multiple: int) -> None:
    """Append zeros up to a multiple; the rows that they stand for are thrown away."""
    values += [0] * (-len(values) % multiple)
