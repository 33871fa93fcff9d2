"""The one comparison by which both ends follow a path: tokens, over the positions that both sides have."""

from collections.abc import Iterable


def first_difference(held: Iterable[int], learned: Iterable[int]) -> int | None:
    """Index of the first unequal pair over the common length; None if there is none (so an empty overlap is equal)."""
    for index, (ours, theirs) in enumerate(zip(held, learned, strict=False)):
        if ours != theirs:
            return index
    return None
