"""The merging outboxes: what merges, what vanishes, in which order and in what sizes messages leave."""

from draftwire.session import (
    Close,
    Commit,
    DrafterOutbox,
    DrafterSession,
    DrafterStep,
    Ended,
    Idle,
    Open,
    Opened,
    Proposal,
    VerifierOutbox,
    VerifierStep,
)
from draftwire.types import MAX_PROPOSAL_TOKENS, DraftToken, EndReason, SamplingParams, VerificationMode


def opening(session_id: int, count: int = 1, window: int = 4) -> Open:
    return Open(session_id, (7,) * count, SamplingParams(), VerificationMode.REJECTION, 0, 0, window)


def commits(*entries: Commit) -> VerifierStep:
    return VerifierStep(commits=entries)


def proposals(*entries: Proposal) -> DrafterStep:
    return DrafterStep(proposals=entries)


def proposal(position: int, count: int = 1, *, session_id: int = 1, path: int = 0) -> Proposal:
    return Proposal(session_id, path, position, tuple(DraftToken(position + index) for index in range(count)))


def test_commits_merge_into_the_latest():
    """Number and window of the latest, position of the first, tokens of all."""
    outbox = VerifierOutbox()
    outbox.add(commits(Commit(1, 1, 5, (9,), 4), Commit(2, 1, 3, (8,), 4)))
    outbox.add(commits(Commit(1, 2, 6, (), 2)))
    outbox.add(commits(Commit(1, 3, 6, (10, 11), 3)))
    assert outbox.take(100) == commits(Commit(1, 3, 5, (9, 10, 11), 3), Commit(2, 1, 3, (8,), 4))
    assert outbox.take(100) is None
    assert len(outbox) == 0


def test_a_close_drops_what_waits_for_its_session():
    """What waits for a session known to the draft worker gives way to its close; an unknown session vanishes."""
    outbox = VerifierOutbox()
    outbox.add(commits(Commit(1, 1, 5, (9,), 4)))
    outbox.add(VerifierStep(opens=(opening(2),), commits=(Commit(2, 1, 1, (8,), 4),)))
    outbox.add(VerifierStep(closes=(Close(1), Close(2))))
    assert outbox.take(100) == VerifierStep(closes=(Close(1),))
    assert outbox.take(100) is None


def test_a_commit_never_overtakes_its_open():
    """An open too large for the message takes its session's commit with it into a later one."""
    outbox = VerifierOutbox()
    outbox.add(commits(Commit(1, 1, 5, (9, 9, 9), 4)))
    outbox.add(VerifierStep(opens=(opening(2, count=50),), commits=(Commit(2, 1, 50, (8,), 4),)))
    assert outbox.take(10) == commits(Commit(1, 1, 5, (9, 9, 9), 4))
    assert outbox.take(10) == VerifierStep(opens=(opening(2, count=50),))
    outbox.add(commits(Commit(2, 2, 51, (7,), 4)))
    assert outbox.take(10) == commits(Commit(2, 2, 50, (8, 7), 4))
    assert len(outbox) == 0


def test_verifier_messages_are_bounded_and_nothing_starves():
    """At most ten ids a message, and sessions leave in the order in which they began to wait."""
    outbox = VerifierOutbox()
    for session_id in range(30):
        outbox.add(VerifierStep(opens=(opening(session_id, count=session_id % 7 + 1),)))
    left = []
    while step := outbox.take(10):
        assert sum(len(entry.token_ids) for entry in step.opens) <= 10
        left += [entry.session_id for entry in step.opens]
    assert left == list(range(30))


def test_entries_without_tokens_are_bounded_too():
    """A commit that only changes a window counts as one token."""
    outbox = VerifierOutbox()
    outbox.add(commits(*(Commit(session_id, 1, 5, (), 0) for session_id in range(25))))
    sizes = []
    while step := outbox.take(10):
        sizes.append(len(step.commits))
    assert sizes == [10, 10, 5]


def test_contiguous_proposals_merge():
    """One entry of the path's guesses in order, but never more than a proposal may hold."""
    outbox = DrafterOutbox()
    for position in range(100, 100 + MAX_PROPOSAL_TOKENS):
        outbox.add(proposals(proposal(position)))
    assert outbox.take(1000) == proposals(proposal(100, MAX_PROPOSAL_TOKENS))
    outbox.add(proposals(proposal(200, 40)))
    outbox.add(proposals(proposal(240, 40)))
    assert outbox.take(1000) == proposals(proposal(200, 40), proposal(240, 40))


def test_a_jump_is_kept():
    """Guesses before and after tokens that the draft learned from a commit stay two proposals."""
    outbox = DrafterOutbox()
    outbox.add(proposals(proposal(10, 2), proposal(15, 1), proposal(10, 2, session_id=2)))
    assert outbox.take(100) == proposals(proposal(10, 2), proposal(15, 1), proposal(10, 2, session_id=2))


def test_a_new_path_drops_the_old_one_of_its_session_only():
    """Nothing that waits on the old path could be tested any more."""
    outbox = DrafterOutbox()
    outbox.add(proposals(proposal(10, 2), proposal(10, 2, session_id=2)))
    outbox.add(proposals(proposal(11, 1, path=4)))
    assert outbox.take(100) == proposals(proposal(11, 1, path=4), proposal(10, 2, session_id=2))


def test_drafter_messages_are_bounded():
    """At most ten guesses a message, a larger proposal alone, nothing lost, opened and ended with the first."""
    outbox = DrafterOutbox()
    outbox.add(DrafterStep(opened=(Opened(1),), ended=(Ended(9, EndReason.INTERNAL, "x"),)))
    outbox.add(proposals(*(proposal(5, 4, session_id=session_id) for session_id in range(5))))
    outbox.add(proposals(proposal(5, 30, session_id=7)))
    assert outbox.take(10) == DrafterStep(
        (Opened(1),),
        (proposal(5, 4, session_id=0), proposal(5, 4, session_id=1)),
        (Ended(9, EndReason.INTERNAL, "x"),),
    )
    assert outbox.take(10) == proposals(proposal(5, 4, session_id=2), proposal(5, 4, session_id=3))
    assert outbox.take(10) == proposals(proposal(5, 4, session_id=4))
    assert outbox.take(10) == proposals(proposal(5, 30, session_id=7))
    assert outbox.take(10) is None


def test_forget_drops_all_of_a_session():
    """A closed session leaves nothing behind."""
    outbox = DrafterOutbox()
    outbox.add(DrafterStep((Opened(1), Opened(2)), (proposal(5),), (Ended(1, EndReason.INTERNAL),), (Idle(1, 4),)))
    outbox.forget(1)
    assert outbox.take(10) == DrafterStep(opened=(Opened(2),))
    outbox.forget(3)


def test_only_the_latest_idle_waits():
    """A stuck stream holds one for each session, whatever the number of commits that brought no guess."""
    outbox = DrafterOutbox()
    for number in range(100):
        outbox.add(DrafterStep(idle=(Idle(1, number), Idle(2, 2 * number))))
    assert len(outbox) == 2
    step = outbox.take(10)
    assert sorted(step.idle, key=lambda idle: idle.session_id) == [Idle(1, 99), Idle(2, 198)]
    assert outbox.take(10) is None


def test_an_idle_never_overtakes_guesses():
    """It leaves with the last of its session's guesses; those of other sessions hold nothing up."""
    outbox = DrafterOutbox()
    outbox.add(proposals(proposal(5, 8), proposal(5, 8, session_id=2)))
    outbox.add(DrafterStep(idle=(Idle(2, 3), Idle(4, 1))))
    assert outbox.take(10) == DrafterStep((), (proposal(5, 8),), (), (Idle(4, 1),))
    assert outbox.take(10) == DrafterStep((), (proposal(5, 8, session_id=2),), (), (Idle(2, 3),))
    assert outbox.take(10) is None


def test_credit_bounds_what_waits():
    """The stream is stuck while commits still come in: guesses that are long final are not kept for ever."""
    session = DrafterSession(opening(1, window=MAX_PROPOSAL_TOKENS))
    outbox = DrafterOutbox()
    for number in range(1, 1000):
        while session.room:
            outbox.add(proposals(session.draft([DraftToken(len(session.tokens) % 50)] * min(3, session.room))))
        committed = session.committed
        session.receive(Commit(1, number, committed, tuple(session.tokens[committed : committed + 5]), 64))
    step = outbox.take(100_000)
    held = sum(len(entry.tokens) for entry in step.proposals)
    assert len(session.tokens) - session.committed <= held < 3 * MAX_PROPOSAL_TOKENS
    ends = [entry.position + len(entry.tokens) for entry in step.proposals]
    assert ends[-1] == len(session.tokens), "the newest guesses are still there"
    assert [entry.position for entry in step.proposals[1:]] == ends[:-1], "without a gap"
