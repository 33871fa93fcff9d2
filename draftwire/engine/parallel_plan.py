"""What rank 0 tells the followers before each forward, as one tensor of a fixed size.

A follower that waits in a broadcast must know the size of what comes, so every plan has the size of the largest. It
carries all that rank 0 decided since the last one: slots that were copied, in order, and the chunks to run. A
truncation needs no word of its own, because a chunk says where it starts. A plan without either is a heartbeat.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from draftwire.engine.base import Chunk


class Copy(NamedTuple):
    """The first `length` positions of one slot go to another."""

    source: int
    target: int
    length: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do: first the copies, then one forward over the chunks, if there are any."""

    copies: Sequence[Copy] = ()
    chunks: Sequence[Chunk] = ()


def plan_size(num_slots: int, max_batched_tokens: int) -> int:
    """Numbers that the largest plan takes: a copy and a chunk for every slot, and max_batched_tokens ids."""
    return 2 + 3 * num_slots + 4 * num_slots + max_batched_tokens


def encode(plan: Plan, size: int) -> Tensor:  # [size], int32
    """The plan as numbers: counts of copies and chunks, the copies, the chunks' heads, the ids, zeros."""
    values = [len(plan.copies), len(plan.chunks)]
    for copy in plan.copies:
        values += copy
    for chunk in plan.chunks:
        values += (chunk.slot, chunk.start, len(chunk.token_ids), chunk.num_logits)
    for chunk in plan.chunks:
        values += chunk.token_ids
    numbers = torch.zeros(size, dtype=torch.int32)
    numbers[: len(values)] = torch.tensor(values, dtype=torch.int32)
    return numbers


def decode(numbers: Tensor) -> Plan:
    """The plan that `encode` made numbers of."""
    values = iter(numbers.tolist())
    num_copies, num_chunks = _take(values, 2)
    copies = [Copy(*_take(values, 3)) for _ in range(num_copies)]
    heads = [_take(values, 4) for _ in range(num_chunks)]
    chunks = [Chunk(slot, start, _take(values, count), num_logits) for slot, start, count, num_logits in heads]
    return Plan(copies, chunks)


def _take(values: Iterator[int], count: int) -> list[int]:
    return [next(values) for _ in range(count)]
