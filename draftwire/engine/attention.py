"""Attention of a ragged batch over KV slots, as a function that transformers' models call in every layer.

All chunks of a forward lie end to end in one sequence [1, N]. The model's own code computes queries, keys and values;
this module stores the new keys and values in their slots and lets each chunk attend to its own slot only. A row at
position i sees the slot's positions 0..i, so whatever an earlier, rejected speculation left behind position i is
never read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

ATTENTION_NAME = "draftwire_slots"


class KVCache:
    """Keys and values of every slot: per layer [num_slots, max_model_len, Hkv, D].

    The memory is reserved, not touched: on a CPU a page costs nothing before a token is written there.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_slots: int,
        max_model_len: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (num_slots, max_model_len, num_kv_heads, head_dim)
        self.max_model_len = max_model_len
        self.keys = [torch.empty(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        self.values = [torch.empty(shape, dtype=dtype, device=device) for _ in range(num_layers)]

    def write(self, layer: int, rows: Tensor, key: Tensor, value: Tensor) -> None:
        """Store key and value [n, Hkv, D] at rows [n] = slot * max_model_len + position."""
        self.keys[layer].flatten(0, 1).index_copy_(0, rows, key)
        self.values[layer].flatten(0, 1).index_copy_(0, rows, value)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot to another."""
        for tensor in (*self.keys, *self.values):
            tensor[target, :length].copy_(tensor[source, :length])


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive rows of the flat batch that attend together.

    Attributes:
        slot: whose keys and values they see.
        first: their first row in the flat batch.
        count: number of rows.
        end: keys that the last row sees; the row before it sees one less, and so on.
        mask: [count, end], 0 where a row sees a key and -inf elsewhere; None where no mask is needed.
    """

    slot: int
    first: int
    count: int
    end: int
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """One forward, as the attention function needs it.

    Attributes:
        cache: the slots.
        rows: [n] where in the cache the new keys and values go (KVCache.write); the rows after n are padding.
        spans: cover rows 0..n-1 in order.
    """

    cache: KVCache
    rows: Tensor
    spans: Sequence[Span]


def causal_mask(count: int, end: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The mask of `count` rows that end at key `end`: [count, end], 0 or -inf."""
    mask = torch.full((count, end), -torch.inf, dtype=dtype, device=device)
    return mask.triu_(end - count + 1)


def slot_attention(
    module: nn.Module,
    query: Tensor,  # [1, H, N, D]
    key: Tensor,  # [1, Hkv, N, D]
    value: Tensor,  # [1, Hkv, N, D]
    attention_mask: Tensor | None,
    *,
    ragged_batch: RaggedBatch,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """What a model's attention layer calls (transformers' AttentionInterface). Returns ([1, N, H, D], None)."""
    cache, layer = ragged_batch.cache, module.layer_idx
    stored = len(ragged_batch.rows)
    cache.write(layer, ragged_batch.rows, key[0, :, :stored].transpose(0, 1), value[0, :, :stored].transpose(0, 1))  # type: ignore[arg-type]
    keys, values = cache.keys[layer], cache.values[layer]  # type: ignore[index]
    outputs = [
        _attend(
            query[0, :, span.first : span.first + span.count],
            keys[span.slot, : span.end].transpose(0, 1),
            values[span.slot, : span.end].transpose(0, 1),
            span.mask,
            scaling,
        )
        for span in ragged_batch.spans
    ]
    if padding := query.shape[2] - stored:
        outputs.append(query.new_zeros(padding, query.shape[1], query.shape[3]))
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs)).unsqueeze(0), None


def _attend(
    query: Tensor,  # [H, n, D]
    keys: Tensor,  # [Hkv, end, D]
    values: Tensor,  # [Hkv, end, D]
    mask: Tensor | None,  # [n, end]
    scaling: float | None,
) -> Tensor:  # [n, H, D]
    """Causal attention of the last n rows of one sequence."""
    heads, count, dim = query.shape
    group = heads // keys.shape[0]
    if count > 1 and mask is None:  # a whole sequence from its start
        output = scaled_dot_product_attention(
            query[None], keys[None], values[None], is_causal=True, scale=scaling, enable_gqa=group > 1
        )
        return output[0].transpose(0, 1)
    # The query heads that share a key head become rows of one matrix, so each key is read once.
    folded = query.reshape(1, keys.shape[0], group * count, dim)
    folded_mask = None if mask is None else mask.repeat(group, 1)[None, None]
    output = scaled_dot_product_attention(folded, keys[None], values[None], attn_mask=folded_mask, scale=scaling)
    return output.view(heads, count, dim).transpose(0, 1)


AttentionInterface.register(ATTENTION_NAME, slot_attention)
