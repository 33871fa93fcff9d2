"""The verify worker's loop by hand: what may happen between any two of its lines. The target counts up."""

import pytest
from verify_harness import HandLoop, guesses

from draftwire.session import Ended, Idle, Opened
from draftwire.types import EndReason
from verify_service.events import Cancel, DraftDown
from verify_service.policy import Plan


def test_who_waits_for_a_slot_needs_no_event():
    """When the only slot becomes free in a step, the loop wants to be called again at once and admits the next."""
    hand = HandLoop(slots=1)
    first, second = hand.submit([7], 1), hand.submit([20], 2)
    assert hand.step() == 0
    assert hand.finished(first)
    assert hand.step() == 0
    assert hand.step() == 0
    assert hand.tokens(second) == [21, 22]
    assert hand.step() is None


def test_a_paused_session_waits_for_its_caller():
    """A caller that lags 256 tokens pauses its session alone; there is nothing to wake up for until it catches up."""
    hand = HandLoop()
    slow = hand.submit([0], 1000)
    other = hand.submit([9], 300)
    while not hand.finished(other):
        other.output._consumed = other.output._produced  # this one reads
        hand.step()
    assert len(hand.tokens(slow)) == 256
    assert hand.step() is None


def test_draft_lost_in_mid_step():
    """The stream breaks during the forward: the guesses that are in it are tested all the same, and nobody is told."""
    hand = HandLoop()
    hand.connect()
    answer = hand.submit([7], 20)
    hand.step()
    hand.say(guesses(1, 0, 1, 8, 9, 10, 99))
    hand.during_forward = [DraftDown(1)]
    hand.step()
    assert hand.tokens(answer) == [8, 9, 10, 11, 12][: len(hand.tokens(answer))]
    assert answer.stats.accepted_tokens == 2
    assert hand.metric("speculative_decoding_draft_accepted_tokens_total", draft_model="draft") == 2
    assert answer.link is None
    assert len(hand.commits()) == 1
    assert answer.stats.reassignments == 1
    hand.connect(2)
    hand.step(1.0)
    (opened,) = hand.opens(2)
    assert opened.token_ids == (7, *hand.tokens(answer)[:-1])
    assert hand.metric("draftwire_verify_draft_workers") == 1


def test_cancelled_in_mid_step():
    """A caller goes during the forward: nothing is committed for it, its slot and its draft session are free."""
    hand = HandLoop(slots=1)
    hand.connect()
    answer = hand.submit([7], 20)
    hand.step()
    before = hand.tokens(answer)
    hand.during_forward = [Cancel(answer)]
    hand.step()
    assert hand.tokens(answer) == before
    assert [close.session_id for _, step in hand.sent for close in step.closes] == [1]
    assert hand.engine.acquire([1]) is not None
    hand.cancel(answer)  # twice does no harm
    assert hand.metric("draftwire_verify_answers_total", outcome="cancelled") == 1


def test_late_bound():
    """A guess for the bonus position comes during the forward: it is tested in place of a free draw."""
    hand = HandLoop()
    hand.connect()
    answer = hand.submit([7], 20)
    hand.step()
    hand.say(guesses(1, 0, 2, 9))
    hand.during_forward = [hand.said(guesses(1, 0, 3, 10, 11))]
    hand.step()
    assert hand.tokens(answer) == [8, 9, 10]
    assert (answer.stats.tested_tokens, answer.stats.late_bound_tokens, answer.stats.untested_tokens) == (2, 1, 0)
    assert answer.link.session.pending_count == 1, "the path survives"


def test_new_plan_and_credit_go_together():
    """A plan made after the eighth step gives its credit with that step's commit, and takes it away so too."""
    hand = HandLoop(plan=Plan(0, 0, 0.0))
    hand.connect()
    hand.submit([7], 40)
    for _ in range(8):
        hand.step()
        hand.planner.next = Plan(4, 0, 0.0)
    assert [commit.window for commit in hand.commits()] == [0] * 7 + [9]


def test_no_credit_is_no_silence():
    """A draft that had no credit for ten seconds owes nothing for them; one that has credit and stays silent does."""
    hand = HandLoop(plan=Plan(0, 0, 0.0))
    hand.connect()
    answer = hand.submit([7], 200)
    for _ in range(23):
        hand.step(0.5)
    hand.planner.next = Plan(4, 0, 0.0)
    hand.step()
    assert hand.commits()[-1].window == 9
    for _ in range(12):
        hand.step()
    assert answer.stats.reassignments == 0
    hand.step(3.0)
    assert answer.stats.reassignments == 1
    assert hand.metric("draftwire_verify_draft_reassignments_total", reason="silent") == 1


def test_no_guess_is_no_silence():
    """A draft that says of every commit that it has no guess keeps its session; when it stops saying so it loses it."""
    hand = HandLoop()
    hand.connect()
    answer = hand.submit([7], 200)
    for number in range(1, 101):
        hand.step(0.5)
        hand.say(Idle(1, number))
    assert answer.stats.reassignments == 0
    assert len(hand.opens()) == 1
    for _ in range(10):
        hand.step(0.1)
    assert answer.stats.reassignments == 0, "ten steps, but no two seconds"
    hand.step(1.1)
    assert hand.metric("draftwire_verify_draft_reassignments_total", reason="silent") == 1


def test_no_guess_ends_a_wait_but_forgives_none():
    """What was waited for in vain stays counted, so a draft whose sign comes late is not waited for at every step."""
    hand = HandLoop(plan=Plan(4, 2, 10.0))
    hand.connect()
    answer = hand.submit([7], 50)
    assert hand.step() == 10
    hand.say(Idle(1, 0))
    assert hand.step() == 0
    assert hand.tokens(answer) == [8]
    assert answer.link.fruitless_waits == 0
    for waits in (1, 2):
        assert hand.step() == 10
        hand.step(10.0)
        assert answer.link.fruitless_waits == waits
        hand.say(Idle(1, answer.link.session.number - 1))
    assert answer.link.fruitless_waits == 2
    assert hand.step() == 0


def test_a_worker_that_lets_down_is_not_waited_for_by_the_next_answers():
    """Two waits in all, however short the answers; once it proposes, its next session waits again."""
    hand = HandLoop(plan=Plan(4, 2, 10.0))
    hand.connect()
    waits = 0
    for _ in range(5):
        answer = hand.submit([7], 3)
        while not hand.finished(answer):
            if hand.step():
                waits += 1
                hand.step(10.0)
    assert waits == 2
    hand.submit([7], 50)
    hand.step()
    assert not hand.step()
    hand.say(guesses(6, 0, 2, 9))
    hand.submit([7], 50)
    hand.step()
    assert hand.step() == 10


def test_guesses_are_never_lost_to_silence():
    """A draft sent guesses and fell silent: they are all tested before it loses the session."""
    hand = HandLoop(plan=Plan(1, 0, 0.0), window=32)
    hand.connect()
    answer = hand.submit([7], 200)
    hand.step()
    hand.say(guesses(1, 0, 2, *range(9, 35)))
    for _ in range(13):
        hand.step(5.0)
    assert answer.stats.accepted_tokens >= 13
    assert answer.stats.reassignments == 0
    while answer.link.session.pending_count:
        hand.step(5.0)
    hand.step(5.0)
    assert answer.stats.reassignments == 1
    assert answer.stats.accepted_tokens == 26


def test_silent_beside_others_gives_up_in_the_end():
    """A worker that speaks but never of this session loses it three times; then the answer decodes plainly."""
    hand = HandLoop()
    hand.connect()
    answer = hand.submit([7], 300)
    for _ in range(100):
        hand.say(Opened(999))
        hand.step(1.5)
    assert len(hand.opens()) == 3
    assert answer.link is None
    assert not hand.finished(answer)


def test_a_session_that_is_too_long_for_the_draft():
    """max_model_len is nobody's fault: no failure is counted."""
    hand = HandLoop()
    hand.connect()
    answer = hand.submit([7], 20)
    hand.step()
    hand.say(Ended(1, EndReason.MAX_MODEL_LEN))
    assert (answer.draft_failures, answer.stats.reassignments, answer.link) == (0, 1, None)


def test_a_plan_goes_by_the_sessions_own_worker():
    """It is made when the session gets its worker, and anew when it moves, by what that worker was measured at."""
    hand = HandLoop()
    hand.connect(1)
    answer = hand.submit([7], 50)
    hand.step()
    assert hand.planner.basis[-1] == answer.link.worker == 1
    hand.say(guesses(1, 0, 2, 50))  # wrong: refuted by commit 2
    hand.step()
    hand.now += 0.4
    hand.say(guesses(1, 2, 3, 10))
    hand.connect(2)
    assert hand.clock.times(1).draft_restart == pytest.approx(0.4)
    assert hand.clock.times(2).draft_restart == 0
    hand.loop.receive(DraftDown(1))
    hand.step()
    assert hand.planner.basis[-1] == answer.link.worker == 2
    assert hand.clock.times(1).draft_restart == 0, "a worker that is gone is forgotten"


class TestRestart:
    """What the policy learns of the time from a correction to the first guess behind it."""

    def test_prefill_is_none(self):
        """The first proposal of a session comes after the draft's prefill, which says nothing of a restart."""
        hand = HandLoop()
        hand.connect()
        hand.submit([7], 20)
        hand.step()
        hand.now += 5
        hand.say(guesses(1, 0, 2, 9))
        assert not hand.clock.times(1).draft_restart

    def test_from_the_commit_that_names_the_path(self):
        """While the new path is on its way commits follow; it counts from its own, also if it is stale by then."""
        hand = HandLoop()
        hand.connect()
        answer = hand.submit([7], 50)
        hand.step()
        hand.say(guesses(1, 0, 2, 50))  # wrong: refuted by commit 2
        hand.step()
        for _ in range(4):
            hand.step(0.1)
        hand.say(guesses(1, 2, 3, 60))  # and wrong again
        assert answer.stats.stale_tokens == 1
        assert hand.clock.times(1).draft_restart == pytest.approx(0.4)

    def test_a_later_guess_is_none(self):
        """A draft that had nothing to say at first (n-grams) and guesses further on was not restarting."""
        hand = HandLoop()
        hand.connect()
        hand.submit([7], 50)
        hand.step()
        hand.say(guesses(1, 0, 2, 50))
        hand.step()
        hand.step()
        hand.say(guesses(1, 2, 4, 11))
        assert not hand.clock.times(1).draft_restart


def test_fruitless_waits_are_those_that_were_waited():
    """A wait counts as fruitless once its tau is over and nothing came; riding along or prefilling is no wait."""
    hand = HandLoop(plan=Plan(4, 2, 10.0))
    hand.connect()
    waiting = hand.submit([7], 50)
    hand.step()
    hand.submit([7] * 5, 50)
    assert waiting.link.fruitless_waits == 0, "the step after prefill"
    assert hand.step() == 0, "the other prefills, so this one rides along"
    assert waiting.link.fruitless_waits == 0
    assert hand.step() == 10, "both wait"
    hand.step(10.0)
    assert waiting.link.fruitless_waits == 1
