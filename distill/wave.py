"""The keys and values of a wave: many sequences that are decoded side by side and end by themselves.

What all prompts begin with (a chat template's system block) is run once. The rest is padded on the left, so that all
sequences stand at the same column, and a step writes one column of the cache and reads one rectangle:

    prefix | padding | rest of the prompt | new tokens

Sequences that have ended are dropped, and the last ones take their rows. That suits sampling in bulk, where nobody
waits for a single answer; the serving engine keeps every sequence apart instead.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

ATTENTION_NAME = "draftwire_wave"

#: Tokens of prompts that are run together; with more of them what is in between no longer fits a core's cache.
PREFILL_TOKENS = 512


class Wave:
    """Sequences on a model, all at the same column.

    Args:
        model: a transformers model that draftwire.engine.supported allows.
        prompts: [B] lists of ids, none empty.
        room: columns for new tokens.

    Attributes:
        last_hidden: [B, H], what the model says at each sequence's newest token.
    """

    def __init__(self, model: Any, prompts: Sequence[list[int]], room: int) -> None:
        model.set_attn_implementation(ATTENTION_NAME)
        self._model = model
        shared = min(_common_prefix(prompts), min(map(len, prompts)) - 1)  # every sequence has a last token of its own
        width = max(map(len, prompts))
        self._shared = shared
        self._pads = torch.tensor([width - len(ids) for ids in prompts], device=model.device)
        self._allocate(len(prompts), width + room)
        self._column = 0
        rest = torch.tensor([[0] * (width - len(ids)) + ids[shared:] for ids in prompts], device=model.device)
        self._rows = slice(0, 1)
        if shared:
            self._run(torch.tensor([prompts[0][:shared]], device=model.device))
            for tensor in (*self._keys, *self._values):
                tensor[1:, :, :shared] = tensor[:1, :, :shared]
        self._column = shared
        self.last_hidden = self._prefill(rest)
        self._rows, self._column = slice(None), width

    def _allocate(self, count: int, columns: int) -> None:
        config, options = self._model.config, {"dtype": self._model.dtype, "device": self._model.device}
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        layers = range(config.num_hidden_layers)
        self._keys = [torch.empty(count, heads, columns, dim, **options) for _ in layers]
        self._values = [torch.empty(count, heads, columns, dim, **options) for _ in layers]
        own = torch.arange(columns, device=self._model.device) - self._shared
        hidden = (own >= 0) & (own < self._pads[:, None])
        self._mask = torch.zeros(hidden.shape, **options).masked_fill_(hidden, -torch.inf)

    def _prefill(self, ids: Tensor) -> Tensor:
        step = max(1, PREFILL_TOKENS // ids.shape[1])
        hidden = []
        for start in range(0, len(ids), step):
            self._rows = slice(start, min(start + step, len(ids)))
            hidden.append(self._run(ids[self._rows])[:, -1].clone())
        return torch.cat(hidden)

    def advance(self, tokens: Tensor) -> None:
        """Append a token [B] to every sequence."""
        self.last_hidden = self._run(tokens[:, None])[:, 0]
        self._column += 1

    def drop(self, ended: Sequence[int]) -> list[int]:
        """Forget some sequences, and move the last ones into their rows. Returns which old row each row now is."""
        count = len(self._pads) - len(ended)
        order = list(range(count))
        holes = [row for row in ended if row < count]
        movers = [row for row in range(count, len(self._pads)) if row not in set(ended)]
        for hole, mover in zip(holes, movers, strict=True):
            order[hole] = mover
        for cache in (self._keys, self._values):
            for layer, tensor in enumerate(cache):
                tensor[holes, :, : self._column] = tensor[movers, :, : self._column]
                cache[layer] = tensor[:count]
        self._pads, self._mask, self.last_hidden = self._pads[order], self._mask[order], self.last_hidden[order]
        return order

    def _run(self, ids: Tensor) -> Tensor:
        """Hidden states [b, n, H] of new tokens [b, n] of the current rows."""
        count, end = ids.shape[1], self._column + ids.shape[1]
        columns = torch.arange(self._column, end, device=ids.device)
        own = self._column >= self._shared
        positions = (columns - self._pads[self._rows, None] * own).clamp_(min=0)
        mask = self._mask[self._rows, None, None, :end]
        if count > 1:
            future = torch.full((count, end), -torch.inf, dtype=mask.dtype, device=mask.device)
            mask = mask + future.triu_(self._column + 1)
            mask.diagonal(self._column, -2, -1).zero_()  # padding sees itself: a row that sees nothing would be NaN
        self._step_mask = mask
        output: Tensor = self._model.base_model(
            input_ids=ids, position_ids=positions, use_cache=False, wave=self
        ).last_hidden_state
        return output

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """Store new keys and values [b, Hkv, n, D], and attend from the queries [b, H, n, D]: [b, n, H, D]."""
        end = self._column + key.shape[2]
        keys, values = self._keys[layer][self._rows], self._values[layer][self._rows]
        keys[:, :, self._column : end] = key
        values[:, :, self._column : end] = value
        keys, values, mask = keys[:, :, :end], values[:, :, :end], self._step_mask
        rows, heads, count, dim = query.shape
        if count == 1:
            # The query heads of a key's head as its queries: they read it once, not once each.
            query, mask = query.view(rows, keys.shape[1], -1, dim), mask.expand(-1, -1, heads // keys.shape[1], -1)
        output = scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, scale=scale, enable_gqa=query.shape[1] != keys.shape[1]
        )
        output = output.reshape(rows, heads, count, dim)
        return output.transpose(1, 2)


def _common_prefix(prompts: Sequence[list[int]]) -> int:
    """How many ids all prompts begin with."""
    first, last = min(prompts), max(prompts)  # what these two share, all share
    return next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))


def _wave_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    wave: Wave,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """What a model's attention layer calls (transformers' AttentionInterface)."""
    return wave.attend(module.layer_idx, query, key, value, scaling), None  # type: ignore[arg-type]


AttentionInterface.register(ATTENTION_NAME, _wave_attention)
