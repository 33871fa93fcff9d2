"""Which sequence each KV slot holds, and which slot a new sequence should take. Pure bookkeeping: no tensors here.

A released slot keeps its tokens until somebody needs it, so a later sequence with the same beginning (a system
prompt, the earlier turns of a chat, the same request after a failover) skips the prefill of what they share.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a sequence goes: `slot` holds token_ids[:cached], once they are copied there if copy_from is not None."""

    slot: int
    cached: int
    copy_from: int | None = None


@dataclass(slots=True)
class _Slot:
    token_ids: list[int] = field(default_factory=list)
    taken: bool = False
    used_at: int = 0


class SlotTable:
    """The tokens that each of `num_slots` slots holds keys and values for."""

    def __init__(self, num_slots: int) -> None:
        self._slots = [_Slot() for _ in range(num_slots)]
        self._clock = 0

    def __len__(self) -> int:
        return len(self._slots)

    def acquire(self, token_ids: Sequence[int]) -> Placement | None:
        """Take a slot for a sequence that begins with token_ids; None if all are taken.

        The longest shared beginning wins, in a free slot or a running one. A free slot that would lose more than it
        gives is copied from instead, into the slot that was unused for longest.
        """
        free = [number for number, slot in enumerate(self._slots) if not slot.taken]
        if not free:
            return None
        wanted = list(token_ids[:-1])  # the last token must run anyway: its logits are what the caller is after
        shared = [_common_prefix(slot.token_ids, wanted) for slot in self._slots]
        oldest_first = sorted(range(len(self._slots)), key=lambda number: self._slots[number].used_at)
        source = max(oldest_first, key=lambda number: shared[number])
        cached = shared[source]
        in_place = source in free and 2 * cached >= len(self._slots[source].token_ids)
        target = source if in_place else min(free, key=lambda number: self._slots[number].used_at)
        slot = self._slots[target]
        slot.token_ids = wanted[:cached]
        slot.taken = True
        self._touch(slot)
        return Placement(target, cached, None if target == source or cached == 0 else source)

    def release(self, number: int) -> None:
        """Give a taken slot back; what it holds may be reused."""
        slot = self._slots[number]
        slot.taken = False
        self._touch(slot)

    def is_taken(self, number: int) -> bool:
        """Whether `number` names a slot that somebody holds."""
        return 0 <= number < len(self._slots) and self._slots[number].taken

    def length(self, number: int) -> int:
        """Tokens that the slot holds."""
        return len(self._slots[number].token_ids)

    def write(self, number: int, start: int, token_ids: Sequence[int]) -> None:
        """Replace what the slot holds from `start` on; start <= length(number)."""
        self._slots[number].token_ids[start:] = token_ids

    def truncate(self, number: int, length: int) -> None:
        """Forget what the slot holds from `length` on."""
        del self._slots[number].token_ids[length:]

    def _touch(self, slot: _Slot) -> None:
        self._clock += 1
        slot.used_at = self._clock


def _common_prefix(left: list[int], right: list[int]) -> int:
    """Length of the longest common beginning, by bisection over slices (compared in C)."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
