"""Who takes part in a step: plain values in, plain values out."""

from itertools import pairwise

from draftwire.session import Proposal, VerifierSession
from draftwire.types import DraftToken, GenerateRequest, ModelInfo
from verify_service.generation import DraftLink, Generation
from verify_service.policy import Plan
from verify_service.scheduler import patience, schedule, waited_in_vain

MODEL = ModelInfo("m", "f", 100, 1000)


class NoOutput:
    """The scheduler never looks at outputs."""


def generation(slot, prompt, *, computed=0, pending=0, plan=Plan(4, 0, 0.0), linked=True, max_tokens=50):
    """A generation in a slot, with some proposals pending."""
    request = GenerateRequest("r", tuple(range(prompt)), max_tokens=max_tokens)
    made = Generation.of(request, MODEL, NoOutput(), 1, 0.5)
    made.slot, made.computed, made.plan = slot, computed, plan
    if linked:
        session = VerifierSession(slot + 1, made.tokens, MODEL.vocab_size, 16)
        session.open(request.sampling, made.mode, 1, 0, 16)
        if pending:
            session.receive(Proposal(slot + 1, 0, prompt, tuple(DraftToken(t) for t in range(pending))))
        made.link = DraftLink(1, "draft", session, heard_at=0.0)
    return made


def test_takes_what_has_arrived():
    """Two sessions: one with three proposals of which K = 2 are tested, one with none: plain."""
    work, _ = schedule(
        [generation(0, 5, computed=4, pending=3, plan=Plan(2, 0, 0.0)), generation(1, 7, computed=6)], 0.0, 100
    )
    assert [tuple(piece.chunk.token_ids) for piece in work] == [(4, 0, 1), (6,)]
    assert [piece.chunk.start for piece in work] == [4, 6]
    assert [piece.chunk.num_logits for piece in work] == [3, 1]


def test_waits_for_m_until_tau():
    """With m = 2 and one proposal it waits out its tau, and no longer."""
    waiting = generation(0, 5, computed=4, pending=1, plan=Plan(4, 2, 0.5))
    waiting.ready_since = 10.0
    assert schedule([waiting], 10.1, 100) == ([], 10.5 - 10.1)
    work, _ = schedule([waiting], 10.5, 100)
    assert len(work[0].proposals) == 1, "it tests what has come"


def test_waiting_sessions_ride_along():
    """Once one session goes, the one that waits goes too with what it has."""
    waiting = generation(0, 5, computed=4, pending=1, plan=Plan(4, 2, 0.5))
    work, _ = schedule([waiting, generation(1, 5, computed=4, pending=4)], 0.0, 100)
    assert [len(piece.proposals) for piece in work] == [1, 4]


def test_no_wait_without_a_draft_or_after_fruitless_waits():
    """A session without a draft, or whose draft let it wait for nothing twice, is always ready."""
    plan = Plan(4, 4, 9.0)
    assert patience(generation(0, 5, computed=4, plan=plan, linked=False), 0.0) == 0
    let_down = generation(0, 5, computed=4, plan=plan)
    assert patience(let_down, 0.0) == 9.0
    let_down.link.fruitless_waits = 2
    assert patience(let_down, 0.0) == 0


def test_never_tests_past_the_end():
    """Three tokens are left: at most two proposals, so that a step gives at most three."""
    work, _ = schedule([generation(0, 5, computed=4, pending=4, max_tokens=3)], 0.0, 100)
    assert len(work[0].proposals) == 2


def test_prefill_shares_the_step():
    """A long prompt uses what the decoding sessions leave, in pieces, and wants logits only at its end."""
    long = generation(0, 30)
    work, _ = schedule([generation(1, 5, computed=4, pending=4), long], 0.0, 16)
    assert [len(piece.chunk.token_ids) for piece in work] == [5, 11]
    assert work[1].chunk.num_logits == 0
    long.computed = 25
    (piece,), _ = schedule([long], 0.0, 16)
    assert (piece.chunk.start, len(piece.chunk.token_ids), piece.chunk.num_logits) == (25, 5, 1)


def test_budget_cuts_proposals_before_sessions():
    """With room for six tokens, four sessions all decode and two proposals fit."""
    sessions = [generation(i, 5, computed=4, pending=4) for i in range(4)]
    work, _ = schedule(sessions, 0.0, 6)
    assert [len(piece.proposals) for piece in work] == [2, 0, 0, 0]
    assert sum(len(piece.chunk.token_ids) for piece in work) == 6


def test_nothing_to_do():
    """No sessions: look again when something arrives."""
    assert schedule([], 0.0, 10) == ([], None)


def test_no_wait_for_what_the_draft_may_not_send():
    """A draft without credit owes nothing: its session does not wait, and has not waited in vain."""
    paused = generation(0, 5, computed=4, plan=Plan(4, 2, 9.0))
    paused.link.session.commit((), 0)
    assert patience(paused, 0.0) == 0
    assert not waited_in_vain(paused, 100.0)


def test_no_wait_for_a_draft_that_has_no_guess():
    """It said so of the latest commit: nobody waits, in vain or not; the next commit may bring one."""
    idle = generation(0, 5, computed=4, plan=Plan(4, 2, 9.0))
    idle.link.idle = 0
    assert patience(idle, 0.0) == 0
    assert not waited_in_vain(idle, 100.0)
    idle.link.session.commit((7,), 16)
    assert patience(idle, 0.0) == 9.0


def test_waited_in_vain_only_after_tau():
    """With nothing at all after its tau; one proposal is not nothing, and neither is a plan that does not wait."""
    plan = Plan(4, 2, 0.5)
    assert not waited_in_vain(generation(0, 5, computed=4, plan=plan), 0.4)
    assert waited_in_vain(generation(0, 5, computed=4, plan=plan), 0.5)
    assert not waited_in_vain(generation(0, 5, computed=4, pending=1, plan=plan), 0.5)
    assert not waited_in_vain(generation(0, 5, computed=4, plan=Plan(4, 0, 0.0)), 0.5)
    assert not waited_in_vain(generation(0, 5, computed=2, plan=plan), 0.5)


def test_everyone_decodes_beside_a_long_prompt():
    """Seven sessions and a long prompt in steps of eight tokens: each gets its token, the prompt what is left."""
    work, _ = schedule([generation(7, 30), *(generation(i, 5, computed=4) for i in range(7))], 0.0, 8)
    assert [len(piece.chunk.token_ids) for piece in work] == [1] * 8
    assert work[-1].generation.slot == 7


def test_more_sessions_than_budget_take_turns():
    """Four sessions in steps of three tokens, one of them in its prompt: who was left out goes first the next time."""
    decoding = [generation(i, 5, computed=4) for i in range(3)]
    everyone = [*decoding, generation(3, 30)]
    steps = []
    for now in range(1, 7):
        work, _ = schedule(everyone, float(now), 3)
        assert sum(len(piece.chunk.token_ids) for piece in work) == 3
        assert work[-1].generation.slot == 3
        for piece in work[:-1]:
            piece.generation.ready_since = float(now)
        steps.append({piece.generation.slot for piece in work[:-1]})
    for first, then in pairwise(steps):
        assert first | then == {0, 1, 2}, "nobody is left out twice in a row"
