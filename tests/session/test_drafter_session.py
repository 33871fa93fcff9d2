"""DrafterSession by itself: what it keeps, where it cuts, what it refuses."""

import pytest

from draftwire.errors import ProtocolViolation
from draftwire.session import Commit, DrafterSession, Open, Proposal
from draftwire.types import MAX_PROPOSAL_TOKENS, DraftToken, SamplingParams, VerificationMode


def opening(tokens: tuple[int, ...] = (7, 8), window: int = 4) -> Open:
    return Open(1, tokens, SamplingParams(), VerificationMode.REJECTION, seed=0, choice=0, window=window)


def guesses(*tokens: int) -> list[DraftToken]:
    return [DraftToken(token) for token in tokens]


@pytest.fixture
def session() -> DrafterSession:
    """Prompt 7 8; guesses 9 10 11 out; room for one more."""
    session = DrafterSession(opening())
    session.draft(guesses(9, 10, 11))
    return session


def test_a_proposal_says_where_its_tokens_stand():
    """Positions count from the prompt's first token, and follow one another."""
    session = DrafterSession(opening())
    assert session.draft(guesses(9, 10)) == Proposal(1, 0, 2, tuple(guesses(9, 10)))
    assert session.draft(guesses(11)) == Proposal(1, 0, 4, tuple(guesses(11)))
    assert (session.tokens, session.committed, session.room) == ([7, 8, 9, 10, 11], 2, 1)


def test_equal_tokens_keep_the_path(session: DrafterSession):
    """A commit that says what was guessed keeps every cached position and all guesses behind it."""
    assert session.receive(Commit(1, 1, 2, (9, 10), 4)) == 5
    assert (session.tokens, session.committed, session.path, session.room) == ([7, 8, 9, 10, 11], 4, 0, 3)


def test_a_longer_commit_is_taken_up(session: DrafterSession):
    """A commit that agrees and goes further than the guesses leaves the path its name; the old cache stays valid."""
    assert session.receive(Commit(1, 1, 2, (9, 10, 11, 12, 13), 4)) == 5
    assert (session.tokens, session.committed, session.path) == ([7, 8, 9, 10, 11, 12, 13], 7, 0)
    assert session.draft(guesses(14)).position == 7


@pytest.mark.parametrize(
    ("tokens", "valid"), [((60,), 2), ((9, 60), 3), ((9, 10, 60), 4), ((9, 60, 11), 3), ((60, 10, 11, 12), 2)]
)
def test_a_different_token_begins_a_path(session: DrafterSession, tokens: tuple[int, ...], valid: int):
    """The cache is cut at the first difference, later guesses go, and the path bears the commit's number."""
    assert session.receive(Commit(1, 5, 2, tokens, 4)) == valid
    assert session.tokens == [7, 8, *tokens]
    assert (session.committed, session.path) == (2 + len(tokens), 5)
    assert session.draft(guesses(1)) == Proposal(1, 5, 2 + len(tokens), (DraftToken(1),))


def test_a_commit_without_tokens_changes_the_window_only(session: DrafterSession):
    """Zero pauses; guesses beyond a smaller window are not taken back, and room is never negative."""
    assert session.receive(Commit(1, 1, 2, (), 0)) == 5
    assert (session.tokens, session.path, session.room) == ([7, 8, 9, 10, 11], 0, 0)
    session.receive(Commit(1, 2, 2, (), 5))
    assert session.room == 2


def test_drawing_beyond_the_room_is_an_error(session: DrafterSession):
    """The caller must ask for room first; nothing is recorded."""
    for drawn in ([], guesses(12, 13)):
        with pytest.raises(ValueError, match="room for 1 to 1"):
            session.draft(drawn)
    assert session.tokens == [7, 8, 9, 10, 11]


@pytest.mark.parametrize(
    ("commit", "says"),
    [
        (Commit(1, 0, 2, (9,), 4), "number 0 does not follow 0"),
        (Commit(1, 1, 3, (10,), 4), "position 3, but 2 tokens"),
        (Commit(1, 1, 1, (8, 9), 4), "position 1, but 2 tokens"),
        (Commit(1, 1, 2, (9,), MAX_PROPOSAL_TOKENS + 1), "window 65 is not in 0 to 64"),
    ],
)
def test_a_bad_commit_is_refused_whole(session: DrafterSession, commit: Commit, says: str):
    """The text names the field, and the session stays as it was."""
    with pytest.raises(ProtocolViolation, match=says):
        session.receive(commit)
    assert (session.tokens, session.committed, session.number, session.window) == ([7, 8, 9, 10, 11], 2, 0, 4)
    session.receive(Commit(1, 1, 2, (9,), 4))


def test_a_number_never_repeats(session: DrafterSession):
    """Numbers may jump, where commits were merged, but not stand still."""
    session.receive(Commit(1, 3, 2, (9,), 4))
    with pytest.raises(ProtocolViolation, match="number 3 does not follow 3"):
        session.receive(Commit(1, 3, 3, (10,), 4))


def test_a_bad_open_is_refused():
    """No tokens, or a window that no proposal could fill."""
    with pytest.raises(ProtocolViolation, match="token_ids is empty"):
        DrafterSession(opening(tokens=()))
    with pytest.raises(ProtocolViolation, match="window 65"):
        DrafterSession(opening(window=MAX_PROPOSAL_TOKENS + 1))
