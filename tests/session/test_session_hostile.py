"""Whatever the other end sends, a session answers with ProtocolViolation or goes on within its bounds."""

from hypothesis import given
from hypothesis import strategies as st

from draftwire.errors import ProtocolViolation
from draftwire.session import Commit, DrafterSession, Open, Proposal, VerifierSession
from draftwire.types import MAX_PROPOSAL_TOKENS, WEIGHT_TOTAL, DraftToken, SamplingParams, Support, VerificationMode

PROMPT = (1, 2, 3)
LARGEST = 8
NUMBERS = st.integers(0, 12) | st.integers(0, 2**32 - 1)
TOKENS = st.integers(0, 5) | st.integers(0, 2**32 - 1)
WEIGHTS = st.sampled_from([0, 1, WEIGHT_TOTAL - 1, WEIGHT_TOTAL]) | NUMBERS
SUPPORTS = st.none() | st.builds(
    Support, st.lists(TOKENS, max_size=3).map(tuple), st.lists(WEIGHTS, max_size=3).map(tuple)
)
GUESSES = st.lists(st.builds(DraftToken, TOKENS, SUPPORTS), max_size=10).map(tuple)
PROPOSALS = st.builds(Proposal, st.just(1), NUMBERS, NUMBERS, GUESSES)
COMMITS = st.builds(Commit, st.just(1), NUMBERS, NUMBERS, st.lists(TOKENS, max_size=5).map(tuple), NUMBERS)


def opened() -> tuple[VerifierSession, Open]:
    verifier = VerifierSession(1, PROMPT, vocab_size=6, window=LARGEST)
    return verifier, verifier.open(SamplingParams(), VerificationMode.REJECTION, 0, 0, LARGEST)


@given(st.lists(PROPOSALS | st.lists(st.integers(0, 5), max_size=3), max_size=30))
def test_a_hostile_draft(events: list[Proposal | list[int]]):
    """Between its own commits anything may arrive; what it then offers is well-formed and within the credit."""
    verifier, _ = opened()
    for event in events:
        try:
            verifier.receive(event) if isinstance(event, Proposal) else verifier.commit(event, LARGEST)
        except ProtocolViolation:
            continue
        assert verifier.pending_count <= LARGEST
        assert verifier.path <= verifier.floor <= verifier.number
        assert all(0 <= guess.token < 6 for guess in verifier.pending(MAX_PROPOSAL_TOKENS))


@given(st.lists(COMMITS, max_size=30))
def test_a_hostile_verifier(commits: list[Commit]):
    """The draft's room is never negative, nor larger than a proposal may be."""
    drafter = DrafterSession(opened()[1])
    for commit in commits:
        try:
            drafter.receive(commit)
        except ProtocolViolation:
            continue
        assert drafter.path <= drafter.number
        assert drafter.committed <= len(drafter.tokens)
        assert 0 <= drafter.room <= MAX_PROPOSAL_TOKENS
