"""Batch-invariant mode: which row counts this machine's kernels treat alike, and the check that it all holds.

A matrix library picks its kernel by the number of rows, and another kernel adds in another order: one row alone and
the same row among six differ in the last bits. But there are counts that share one kernel (in FBGEMM the multiples of
6, say), so `find_row_multiple` tries them on the model's own layers. Where none does (bfloat16 on AMX tiles), the
layers take their rows in blocks of one size, which costs a call a block. `check_engine` compares whole forwards bit by
bit.
"""

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from draftwire.engine.base import Chunk, Engine
from draftwire.engine.linear import PackedLinear
from draftwire.errors import ModelError

#: Most rows of a forward; kernels that block over rows change beyond this.
MAX_ROWS = 256

_CANDIDATES = (1, 4, 6, 8, 12, 24)
#: Rows of a block, where layers need blocks: those of an AMX tile.
BLOCK_ROWS = 16

_REFUSAL = "--batch-invariant: this machine's kernels do not give a row the same bits in every batch"


@torch.inference_mode()
def find_row_multiple(model: Any) -> int:
    """The least multiple that every linear layer must be padded to; puts the layers into blocks if there is none."""
    kinds: dict[tuple[type, int, int], nn.Module] = {}
    for module in model.modules():
        if isinstance(module, nn.Linear | PackedLinear):
            kinds.setdefault((type(module), module.in_features, module.out_features), module)
    generator = torch.Generator().manual_seed(0)
    tests = [
        (layer, torch.randn(MAX_ROWS, width, generator=generator).to(model.device, model.dtype))
        for (_, width, _), layer in kinds.items()
    ]
    for multiple in _CANDIDATES:
        if all(_keeps_bits(layer, rows, multiple) for layer, rows in tests):
            return multiple
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear | PackedLinear):
                setattr(parent, name, RowBlocks(child))
    return BLOCK_ROWS


class RowBlocks(nn.Module):
    """A linear layer that only ever sees BLOCK_ROWS rows at once, so that one kernel computes every row."""

    def __init__(self, linear: nn.Linear | PackedLinear) -> None:
        super().__init__()
        self.linear = linear
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, x: Tensor) -> Tensor:
        """x: [1, a multiple of BLOCK_ROWS, in_features]. Returns [1, as many, out_features]."""
        return torch.cat([self.linear(block) for block in torch.split(x, BLOCK_ROWS, dim=1)], dim=1)


def _keeps_bits(layer: nn.Module, rows: Tensor, multiple: int) -> bool:
    """Whether a batch of several multiples gives each of its rows the bits that it has in a batch of one multiple."""
    largest = MAX_ROWS // multiple
    alone = torch.cat([layer(part[None]) for part in torch.split(rows[: largest * multiple], multiple)], dim=1)
    counts = sorted({*range(2, 13), largest // 2, largest - 1, largest})  # small batches are the common ones
    ends = [count * multiple for count in counts if count <= largest]
    return all(torch.equal(layer(rows[None, :end]), alone[:, :end]) for end in ends)


def check_engine(engine: Engine, *, length: int = 24, rounds: int = 4) -> None:
    """Run sequences in random pieces and company; raise ModelError unless their logits are always the same bits."""
    generator = random.Random(0)
    count = min(3, engine.num_slots)
    length = min(length, engine.info.max_model_len, engine.max_batched_tokens // count)
    sequences = [[generator.randrange(engine.info.vocab_size) for _ in range(length)] for _ in range(count)]
    slots = [taken[0] for taken in map(engine.acquire, sequences) if taken is not None]
    try:
        reference = _logits_in_pieces(engine, slots, sequences, random.Random(0), largest=length)
        for seed in range(1, rounds + 1):
            again = _logits_in_pieces(engine, slots, sequences, random.Random(seed), largest=3 * seed)
            if not torch.equal(again, reference):
                raise ModelError(_REFUSAL)
    finally:
        for slot in slots:
            engine.release(slot)


def _logits_in_pieces(
    engine: Engine, slots: Sequence[int], sequences: Sequence[list[int]], generator: random.Random, *, largest: int
) -> Tensor:  # [sum of lengths, V]
    """The logits of every token, from chunks of 1 to `largest` tokens in shuffled order."""
    done = [0] * len(slots)
    rows: list[list[Tensor]] = [[] for _ in slots]
    while pending := [i for i in range(len(slots)) if done[i] < len(sequences[i])]:
        generator.shuffle(pending)
        chosen = pending[: generator.randint(1, len(pending))]
        chunks = []
        for i in chosen:
            tokens = sequences[i][done[i] : done[i] + generator.randint(1, largest)]
            chunks.append(Chunk(slots[i], done[i], tokens, len(tokens)))
        logits = engine.forward(chunks)
        for i, part in zip(chosen, torch.split(logits, [len(chunk.token_ids) for chunk in chunks]), strict=True):
            rows[i].append(part)
            done[i] += len(part)
    return torch.cat([part for parts in rows for part in parts])
