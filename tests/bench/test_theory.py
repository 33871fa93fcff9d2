"""bench.theory on two answers whose steps can be reckoned by hand."""

import pytest

from bench import theory
from bench.load import Result, Task
from draftwire.cli.client import Transcript
from draftwire.types import SpeculationStats
from verify_service.policy import StepTimes, choose, goodput

#: A target step of 100 ms and 10 ms a token; a draft far too slow to be worth a wait or a test.
SLOW_DRAFT = StepTimes(verify_base=0.1, verify_per_token=0.01, draft_step=9.0, draft_restart=9.0)
QUICK_DRAFT = StepTimes(verify_base=0.1, verify_per_token=0.001, draft_step=0.001, draft_restart=0.002)


def answer(seconds, tokens, **stats):
    """An answer that decoded so many tokens in so many seconds after its first event."""
    return Transcript(began=0.0, arrivals=[(1.0, 1), (1.0 + seconds, tokens)], speculation=SpeculationStats(**stats))


def test_measured_step_by_hand():
    """First answer: 2 decode steps, 6 tokens in 0.5 s, 4 guesses a step of which 1 came late in all: 3 + 3 untested and
    6 tested less 1 over 3 steps = (6 + 3 - 1) / 3 = 8/3 in the forward, so 0.1 + 0.01 * 11/3 s in the target."""
    result = Result()
    result.answers.append(
        (Task("chat", (1,)), answer(0.5, 6, steps=3, tested_tokens=6, untested_tokens=3, late_bound_tokens=1))
    )
    made = theory.streaming(result, 4, SLOW_DRAFT)
    assert made.measured.tokens == 3
    assert made.measured.verify == pytest.approx(0.1 + 0.01 * 11 / 3)
    assert made.measured.wait == pytest.approx(0.25 - made.measured.verify)


def test_steps_weigh_the_mean():
    """1 step of 4 tokens and 3 steps of 2: the mean step has 2.5 tokens and lasts (0.4 + 0.6) / 4 s."""
    result = Result()
    result.answers.append((Task("chat", (1,)), answer(0.4, 4, steps=2)))
    result.answers.append((Task("code", (1,)), answer(0.6, 6, steps=4)))
    measured = theory.streaming(result, 4, SLOW_DRAFT).measured
    assert measured.tokens == 2.5
    assert measured.verify + measured.wait == pytest.approx(0.25)


def test_each_answer_is_predicted_at_its_own_acceptance():
    """The median over acceptances 0, 0.5 and 0.9 is the prediction at 0.5, not at the mean; a useless draft predicts
    plain decoding."""
    result = Result()
    for accepted in (0, 5, 9):
        stats = {"steps": 2, "tested_tokens": 10, "accepted_tokens": accepted}
        result.answers.append((Task("chat", (1,)), answer(1.0, 4, **stats)))
    plan = choose(4, 0.5, QUICK_DRAFT)
    expected = goodput(plan.num_speculative_tokens, plan.min_proposals, 0.5, QUICK_DRAFT)
    assert theory.streaming(result, 4, QUICK_DRAFT).tokens_per_second["streaming"] == pytest.approx(expected)
    plain = theory.streaming(result, 4, SLOW_DRAFT)
    assert plain.tokens_per_second["streaming"] == pytest.approx(1 / 0.11)
    assert (plain.predicted.tokens, plain.predicted.wait) == (1, 0)


def test_lock_step_at_acceptance_one():
    """Everything is accepted: 5 tokens in 2 ms + 3 * 1 ms + (100 + 5 * 1) ms."""
    result = Result()
    stats = {"steps": 2, "tested_tokens": 4, "accepted_tokens": 4}
    result.answers.append((Task("chat", (1,)), answer(1.0, 5, **stats)))
    made = theory.lock_step(result, 4, QUICK_DRAFT)
    assert made.tokens_per_second["lock step"] == pytest.approx(5 / 0.110)
    assert made.measured is None
