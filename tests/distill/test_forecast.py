"""Speeds by hand, and step times measured by the services on fakes that take a known time."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from support.timing import in_some_try

from bench import predict
from distill.evaluate import MAX_K, Outcome
from distill.forecast import Times, forecast
from distill.measure import measure
from distill.rounds import lock_step
from distill.scores import Scores
from draftwire.cli.stack import StackOptions

#: A target step takes 40 ms and 2 ms a token, a draft step 5 ms; the services are side by side.
TIMES = Times.given(0.040, 0.002, 0.005)


def outcome(*chances: float) -> Outcome:
    """An answer whose guesses are accepted so."""
    chance = np.array(chances)
    scores = Scores(chance, chance, np.ones(len(chance), dtype=bool))
    return Outcome("a", chance, tuple(lock_step(scores, k) for k in range(1, MAX_K + 1)))


def test_lock_step_by_hand():
    """K = 2, all accepted: 3 tokens in 2 draft steps and a target step over 3: 3 / (2 * 5 + 46 ms); plain 1 / 42 ms."""
    found = forecast([outcome(*[1.0] * 13)], 2, TIMES)
    assert found.plain == pytest.approx(1 / 0.042)
    assert found.lock_step == pytest.approx(3 / 0.056)
    assert found.lock_step_speedup == pytest.approx(3 * 42 / 56)


def test_what_is_looked_up_takes_no_time():
    """K = 2, all accepted, half of the guesses looked up: 3 tokens in one draft step and a target step over 3.

    Streaming is foretold as the worker plans: with the step that was measured.
    """
    answer = outcome(*[1.0] * 13)
    found = forecast([replace(answer, free=0.5)], 2, TIMES)
    assert found.lock_step == pytest.approx(3 / 0.051)
    assert found.streaming == forecast([answer], 2, TIMES).streaming
    far = forecast([replace(answer, free=1.0)], 2, TIMES.further_apart(0.010))
    assert far.lock_step == pytest.approx(3 / 0.056)  # the way remains


def test_nothing_accepted():
    """Lock step pays for its guesses; streaming does not speculate and is as fast as plain decoding."""
    found = forecast([outcome(*[0.0] * 9)], 3, TIMES)
    assert found.lock_step == pytest.approx(1 / (3 * 0.005 + 0.048))
    assert found.streaming == pytest.approx(1 / TIMES.steps.verify(1))
    assert found.streaming_speedup == pytest.approx(1)


def test_streaming_is_the_policys_own_model():
    """At the answer's accepted / tested, whatever the mean over its positions is."""
    answer = outcome(0.0, 0.9, 0.2, 0.9, 0.9, 0.2, 0.9, 0.9, 0.9, 0.9)
    found = forecast([answer], 4, TIMES)
    acceptance = answer.steps[3].acceptance
    assert acceptance != pytest.approx(answer.overlap.mean(), abs=0.03)
    assert found.streaming == pytest.approx(predict.streaming(acceptance, 4, TIMES.steps).tokens_per_second)


def test_the_median_answer_is_foretold():
    """A good one, a bad one, one between: as the benchmark counts."""
    good, bad, between = outcome(*[1.0] * 20), outcome(*[0.0] * 20), outcome(*[0.5] * 20)
    assert forecast([good, bad, between], 3, TIMES) == forecast([between], 3, TIMES)


def test_distance_costs_lock_step_all_of_it_and_streaming_less():
    """30 ms more on the way: every lock step waits for them; a stream that is ahead does not."""
    near, far = TIMES, TIMES.further_apart(0.030)
    assert far.steps.draft_restart == pytest.approx(0.035)
    assert replace(far.steps, draft_restart=0.005) == near.steps
    answers = [outcome(*[0.95] * 40)]
    before, after = forecast(answers, 4, near), forecast(answers, 4, far)
    assert answers[0].steps[3].decoded_per_step / after.lock_step == pytest.approx(
        answers[0].steps[3].decoded_per_step / before.lock_step + 0.030
    )
    assert after.streaming / before.streaming > after.lock_step / before.lock_step
    assert after.plain == before.plain


@pytest.mark.e2e
async def test_measured_step_times():
    """Fakes that sleep 20 and 5 ms: the services' own costs come on top."""
    options = StackOptions(target="fake:step_seconds=0.02", draft="fake:step_seconds=0.005,drift=3", drafter="model")

    async def times() -> Times:
        return await asyncio.to_thread(measure, options, [("a", (1, 2, 3)), ("b", (7,))], temperature=0.0)

    def plausible(found: Times) -> bool:
        steps = found.steps
        return (
            0.02 < found.plain < 0.06
            and 0.02 < steps.verify(1) < 0.06
            and 0.005 < steps.draft_step < 0.03
            and steps.draft_step <= steps.draft_restart < 0.06
        )

    await in_some_try(times, plausible)
