"""VerifierSession by itself: what it offers, what it drops, what it refuses, and how much it remembers."""

import pytest

from draftwire.errors import ProtocolViolation
from draftwire.session import Commit, Proposal, VerifierSession
from draftwire.types import MAX_PROPOSAL_TOKENS, DraftToken, SamplingParams, VerificationMode

PROMPT = (7, 8)


def opened(window: int = 4, largest: int = 8) -> VerifierSession:
    session = VerifierSession(1, PROMPT, vocab_size=100, window=largest)
    session.open(SamplingParams(), VerificationMode.REJECTION, seed=3, choice=1, window=window)
    return session


def proposal(position: int, *tokens: int, path: int = 0) -> Proposal:
    return Proposal(1, path, position, tuple(map(DraftToken, tokens)))


def pending(session: VerifierSession, limit: int = MAX_PROPOSAL_TOKENS) -> list[int]:
    return [guess.token for guess in session.pending(limit)]


def test_open_carries_what_the_draft_needs():
    """Tokens, distribution, mode, key of randomness and credit are as given."""
    session = VerifierSession(9, PROMPT, vocab_size=100, window=8)
    message = session.open(SamplingParams(0.5), VerificationMode.COUPLED, seed=3, choice=1, window=4)
    assert (message.session_id, message.token_ids, message.sampling) == (9, PROMPT, SamplingParams(0.5))
    assert (message.mode, message.seed, message.choice, message.window) == (VerificationMode.COUPLED, 3, 1, 4)


def test_pending_stays_until_a_commit():
    """Looking does not consume, and later guesses join behind."""
    session = opened()
    session.receive(proposal(2, 9, 10))
    assert pending(session, 1) == [9]
    session.receive(proposal(4, 11))
    assert pending(session, 0) == []
    assert (pending(session), session.pending_count) == ([9, 10, 11], 3)


def test_commit_is_numbered_and_placed():
    """Numbers count from 1, positions follow one another, and the window is passed on."""
    session = opened()
    assert session.commit([9, 10], 3) == Commit(1, 1, 2, (9, 10), 3)
    assert session.commit([], 0) == Commit(1, 2, 4, (), 0)
    assert session.commit([11], 8) == Commit(1, 3, 4, (11,), 8)
    assert (session.committed, session.number, session.window) == (5, 3, 8)


def test_stale_counts_tokens_that_arrive_on_a_refuted_path():
    """Those from the difference on count, whether the path was refuted before or just now; right ones do not."""
    session = opened()
    session.commit([9, 10, 11], 4)
    session.receive(proposal(2, 9, 60, 61))
    assert (session.floor, session.stale) == (1, 2)
    session.receive(proposal(5, 62))
    assert (session.floor, session.stale, pending(session)) == (1, 3, [])


def test_guesses_dropped_by_a_commit_are_not_stale():
    """They had arrived in time: the scheduler counts them as rejected or untested."""
    session = opened()
    session.receive(proposal(2, 60, 61))
    session.commit([9], 4)
    assert (pending(session), session.stale, session.floor) == ([], 0, 1)


def test_the_floor_is_found_among_many_commits():
    """The difference at position 5 is held by commit 4, because commit 3 has no tokens."""
    session = opened(window=8)
    session.receive(proposal(2, 9))
    for tokens in ([9], [10, 11], [], [12], [13]):
        session.commit(tokens, 8)
    session.receive(proposal(3, 10, 11, 60))
    assert session.floor == 4


def test_a_path_may_be_named_after_a_commit_without_tokens():
    """Merged commits bear the last number, and the last may only have changed the window."""
    session = opened()
    session.receive(proposal(2, 60))
    session.commit([9], 4)
    session.commit([], 3)
    session.receive(proposal(3, 10, path=2))
    assert (session.path, pending(session)) == (2, [10])


def test_a_wrong_path_costs_no_memory():
    """A thousand commits that refute everything leave nothing behind but one log entry each."""
    session = opened()
    for index in range(1000):
        session.receive(proposal(2 + index, 60, 61, path=index))
        session.commit([index % 50], 4)
    assert (session.pending_count, session.floor) == (0, 1000)
    assert len(session._log_numbers) == len(session._log_ends) == 1001
    for _ in range(1000):
        session.commit([], 4)
    assert len(session._log_numbers) == 1001


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (proposal(2), "0 tokens, not 1 to 64"),
        (proposal(2, *[1] * 65), "65 tokens, not 1 to 64"),
        (proposal(2, 9, path=1), "path 1, but the last commit is 0"),
        (proposal(1, 8), "position 1 on path 0 is held up to 2"),
        (proposal(3, 10), "position 3 on path 0 leaves a gap from 2"),
        (proposal(2, 9, 10, 11, 12, 13), "ends at 7, beyond the credit up to 6"),
        (proposal(2, 100), "token 100 is not below 100"),
    ],
)
def test_a_violation_is_refused_whole(bad: Proposal, says: str):
    """The text says which rule, and the session goes on as if nothing had come."""
    session = opened()
    with pytest.raises(ProtocolViolation, match=says):
        session.receive(bad)
    session.receive(proposal(2, 9, 10, 11, 12))
    assert pending(session) == [9, 10, 11, 12]


def test_a_drawn_position_is_never_replaced():
    """Not on the same path, and not by a new path while the guess is live."""
    session = opened()
    session.receive(proposal(2, 9, 10))
    session.commit([9], 4)
    with pytest.raises(ProtocolViolation, match="held up to 4"):
        session.receive(proposal(3, 60))
    with pytest.raises(ProtocolViolation, match="path 1 begins while path 0 is not refuted"):
        session.receive(proposal(3, 60, path=1))
    assert pending(session) == [10]


def test_a_path_begins_where_its_commit_ended():
    """An earlier position was known to the draft when it began the path, so it cannot have been guessed."""
    session = opened()
    session.receive(proposal(2, 60))
    session.commit([9, 10], 4)
    with pytest.raises(ProtocolViolation, match="held up to 4"):
        session.receive(proposal(3, 10, path=1))


def test_credit_on_the_wire_outlives_a_smaller_window():
    """The limit is the furthest that any commit allowed; no window raises it above committed + the largest."""
    session = opened(window=4)
    session.commit([], 0)
    session.receive(proposal(2, 9, 10, 11, 12))
    session.commit([9], 2)
    with pytest.raises(ProtocolViolation, match="beyond the credit up to 6"):
        session.receive(proposal(6, 13))
    session.commit([10, 11], 2)
    session.receive(proposal(6, 13))
    assert pending(session) == [12, 13]


def test_nothing_may_come_without_credit():
    """A session that was opened paused holds its draft to that."""
    with pytest.raises(ProtocolViolation, match="beyond the credit up to 2"):
        opened(window=0).receive(proposal(2, 9))


@pytest.mark.parametrize("window", [-1, 9])
def test_a_window_above_the_largest_is_an_error(window: int):
    """The caller promised a largest window; a commit that breaks the promise leaves the session as it was."""
    session = opened()
    with pytest.raises(ValueError, match="not in 0 to 8"):
        session.commit([9], window)
    assert (session.committed, session.number) == (2, 0)
    with pytest.raises(ValueError, match="not in 0 to 8"):
        opened(window=window)
    with pytest.raises(ValueError, match="not in 0 to 64"):
        opened(largest=MAX_PROPOSAL_TOKENS + 1)
