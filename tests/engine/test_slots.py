"""The slot table: which slot a sequence gets and how much of it is there already."""

from hypothesis import given
from hypothesis import strategies as st

from draftwire.engine.slots import Placement, SlotTable


def filled(*contents, running=()):
    """A table whose slot i holds contents[i], oldest first; those in `running` are still taken."""
    table = SlotTable(len(contents))
    for number, tokens in enumerate(contents):
        assert table.acquire([1000 + number]).slot == number  # begins like nothing else, so takes the oldest slot
        table.write(number, 0, tokens)
    for number in range(len(contents)):
        if number not in running:
            table.release(number)
    return table


def test_nothing_shared_takes_the_oldest():
    """Without a shared beginning the slot that was unused for longest goes first."""
    assert filled([1, 2], [3, 4]).acquire([9, 9]) == Placement(slot=0, cached=0)


def test_longest_prefix_in_place():
    """The slot that shares most is taken with its content, although it is not the oldest."""
    assert filled([1, 9], [1, 2, 3], [1, 2, 9]).acquire([1, 2, 3, 4]) == Placement(slot=1, cached=3)


def test_the_last_token_is_never_cached():
    """Even where a slot holds the whole sequence, one token is left to run."""
    assert filled([1, 2, 3, 4]).acquire([1, 2, 3, 4]) == Placement(slot=0, cached=3)


def test_copied_from_a_running_sequence():
    """A beginning that a running sequence holds is copied to the oldest free slot."""
    table = filled([1, 2, 3], [7], [8], running=[0])
    assert table.acquire([1, 2, 5]) == Placement(slot=1, cached=2, copy_from=0)


def test_a_long_sequence_survives_a_short_match():
    """A free slot that would lose most of what it holds is copied from, not taken."""
    table = filled([7], [1, *range(100, 120)])
    assert table.acquire([1, 5]) == Placement(slot=0, cached=1, copy_from=1)
    assert table.length(1) == 21


def test_writing_truncates():
    """What stood behind the written tokens is forgotten."""
    table = filled([1, 2, 3, 4, 5], running=[0])
    table.write(0, 2, [9])
    assert table.length(0) == 3
    table.release(0)
    assert table.acquire([1, 2, 9, 4]) == Placement(slot=0, cached=3)


TOKENS = st.lists(st.integers(0, 1), max_size=8)


@given(st.lists(st.tuples(TOKENS, st.booleans()), min_size=1, max_size=5), TOKENS.filter(bool))
def test_against_a_plain_search(slots, wanted):
    """Never a taken slot; what is called cached is really shared; and no slot shares more."""
    contents = [tokens for tokens, _ in slots]
    running = [number for number, (_, taken) in enumerate(slots) if taken]
    placement = filled(*contents, running=running).acquire(wanted)
    if len(running) == len(slots):
        assert placement is None
        return
    assert placement.slot not in running
    source = placement.slot if placement.copy_from is None else placement.copy_from
    assert contents[source][: placement.cached] == wanted[: placement.cached]
    assert placement.cached < len(wanted)
    prefixes = [n for n in range(len(wanted)) if any(held[:n] == wanted[:n] and len(held) >= n for held in contents)]
    assert placement.cached == max(prefixes)
