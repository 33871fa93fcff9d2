"""A protocol slip makes every guess stale and still looks healthy; only the tokens per step betray it.

A perfect draft behind a delay of D ticks each way, a target whose step takes T ticks and tests at most K guesses, a
window of W: a commit shows in the guesses of the step that begins 2 D later, so with j = ceil(2 D / T) steps under way
the committed count obeys C[s+1] = max(C[s] + 1, min(C[s] + K + 1, C[s-j] + W + 1)), and its rate is
max(1, min(K + 1, (W + 1) / (j + 1))) tokens a step, exactly.
"""

from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import pytest
from support.session_mutants import ComparesEvents
from support.session_pipeline import Pipeline
from support.session_sim import SessionSim, Tokens, World

ENDLESS = 10**9


def world(k: int, window: int, **changes) -> World:
    return World(vocab_size=97, windows=(window,), k=k, length=ENDLESS, **changes)


def rate(sim: SessionSim, delay: int, step_ticks: int) -> Fraction:
    steps_under_way = -(-2 * delay // step_ticks)
    whole_periods = 6 * (steps_under_way + 1)
    pipeline = Pipeline(sim, delay=delay, step_ticks=step_ticks)
    pipeline.wait_for_guesses()
    return pipeline.tokens_per_step(whole_periods, warm_up=12)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_a_perfect_draft_reaches_what_the_window_allows(k: int):
    """The exact rate for every combination of delay, step time and window, from lock step to far apart."""
    for window, delay, step_ticks in product([1, 2, 4, 7, 16], [0, 1, 3, 8], [1, 2, 4]):
        steps_under_way = -(-2 * delay // step_ticks)
        expected = max(Fraction(1), min(Fraction(k + 1), Fraction(window + 1, steps_under_way + 1)))
        sim = SessionSim(world(k, window))
        assert rate(sim, delay, step_ticks) == expected, (window, delay, step_ticks)
        sim.check()


@pytest.mark.parametrize(
    ("k", "window", "delay", "step_ticks", "expected"),
    [
        (4, 4, 0, 1, Fraction(5)),  # no delay: K guesses and the bonus
        (4, 9, 1, 2, Fraction(5)),  # a round trip of one step: 2 (K + 1) - 1 of credit hides it
        (4, 8, 1, 2, Fraction(9, 2)),  # one token of credit less costs half a token a step
        (4, 4, 1, 2, Fraction(5, 2)),  # credit for one step only: every other step goes without
        (8, 3, 3, 2, Fraction(1)),  # three steps under way share a window of three
    ],
)
def test_worked_examples(k: int, window: int, delay: int, step_ticks: int, expected: Fraction):
    """The formula's numbers, written out for readers."""
    assert rate(SessionSim(world(k, window)), delay, step_ticks) == expected


def test_comparing_events_falls_to_one_token_a_step():
    """The slip this file is for: a bonus token refutes the path although the draft guessed the same."""
    assert rate(SessionSim(world(3, 3)), delay=1, step_ticks=4) == 2
    assert rate(SessionSim(world(3, 3, verifier=ComparesEvents)), delay=1, step_ticks=4) == 1


@dataclass(frozen=True)
class Sampled(World):
    """A target that samples and agrees with its draft in distribution (p = q): it accepts every guess of the perfect
    draft, but a token that it draws itself comes out different."""

    def free_draw(self, prefix: Tokens) -> int:
        return (self.target(prefix) + 1) % self.vocab_size


class WithoutLateBinding(SessionSim):
    """Draws the bonus freely, whatever has arrived meanwhile."""

    def finish(self, window: int) -> None:
        _, taken = self.forward
        self.forward = None
        self._commit(self._verify(taken, len(taken) + 1), window)


@pytest.mark.parametrize(("delay", "step_ticks"), [(1, 4), (2, 4), (3, 4), (7, 1)])
def test_late_binding_keeps_a_sampled_path_alive(delay: int, step_ticks: int):
    """With credit enough every step gives K + 1 tokens; a bonus drawn freely instead kills the path every time.

    One free draw is enough to end it where a round trip is longer than a step: the next step finds no guess, draws
    freely again, and so on. A scheduler must wait for the first guess then (tau above the round trip).
    """
    steps_under_way = -(-2 * delay // step_ticks)
    settings = Sampled(vocab_size=97, windows=(4 * (steps_under_way + 1) - 1,), k=3, length=ENDLESS)
    assert rate(SessionSim(settings), delay, step_ticks) == 4
    assert rate(WithoutLateBinding(settings), delay, step_ticks) == 1
