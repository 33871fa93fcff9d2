"""Expected steps against every possible course of an answer."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distill.rounds import lock_step, total
from distill.scores import Scores
from verify_service.policy import expected_tokens


def scores(chance, proposed=None):
    known = np.ones(len(chance), dtype=bool) if proposed is None else np.array(proposed)
    return Scores(np.array(chance) * known, np.array(chance) * known, known)


def walk(accepts, proposed, k):
    """Steps, tested and accepted by place of one course: accepts[i] says whether a guess at i would be accepted."""
    steps, tested, accepted, position = 1, [0] * k, [0] * k, 1  # position 0 comes with the prefill
    while position < len(accepts):
        steps += 1
        for place in range(k):
            if position == len(accepts) or not proposed[position]:
                break
            tested[place] += 1
            if not accepts[position]:
                break
            accepted[place] += 1
            position += 1
        position += 1  # the correction or the free token
    return steps, tested, accepted


@given(
    positions=st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.6, 1.0]), st.booleans()), min_size=1, max_size=7),
    k=st.integers(1, 8),
)
def test_the_mean_of_every_course(positions, k):
    """Weighted by its probability, over all 2^n outcomes of n guesses."""
    chance, proposed = zip(*positions, strict=True)
    steps, tested, accepted = 0.0, np.zeros(k), np.zeros(k)
    for accepts in product([False, True], repeat=len(chance)):
        weight = np.prod([c if a else 1 - c for c, a in zip(chance, accepts, strict=True)])
        made = [np.array(part) for part in walk(accepts, proposed, k)]
        steps, tested, accepted = steps + weight * made[0], tested + weight * made[1], accepted + weight * made[2]
    found = lock_step(scores(chance, proposed), k)
    assert found.steps == pytest.approx(steps, abs=1e-12)
    assert found.tested == pytest.approx(tested, abs=1e-12)
    assert found.accepted == pytest.approx(accepted, abs=1e-12)
    assert found.committed == len(chance)


def test_perfect_guesses_by_hand():
    """Seven tokens at K = 2: the prefill brings one, two steps bring three each."""
    found = lock_step(scores([1.0] * 7), 2)
    assert (found.steps, found.tested.tolist(), found.acceptance) == (3, [2, 2], 1)
    assert (found.tokens_per_step, found.decoded_per_step) == (7 / 3, 3)


def test_nothing_proposed_is_plain_decoding():
    found = lock_step(scores([0.0] * 5, [False] * 5), 3)
    assert (found.steps, found.acceptance, found.tokens_per_step, found.decoded_per_step) == (5, 0, 1, 1)


def test_single_tokens_have_no_speed():
    assert lock_step(scores([1.0]), 3).decoded_per_step == 1
    assert total([lock_step(scores([1.0]), 3)] * 2).decoded_per_step == 1


def test_accepted_per_tested_is_not_the_mean():
    """Sure and hopeless in turn: behind each sure guess the free token takes the hopeless one's place, untested."""
    found = lock_step(scores([0.0] + [1.0, 0.0] * 500), 1)
    assert found.acceptance == 1


@pytest.mark.parametrize("k", [1, 3, 8])
def test_a_constant_acceptance_gives_the_formula(k):
    """(1 - a^(K+1)) / (1 - a) tokens a step in a long answer."""
    found = lock_step(scores([0.7] * 3000), k)
    assert found.acceptance == pytest.approx(0.7)
    assert found.tokens_per_step == pytest.approx(expected_tokens(0.7, k), rel=0.002)


def test_total_adds_answers():
    both = total([lock_step(scores([1.0] * 7), 2), lock_step(scores([0.0] * 4), 2)])
    assert (both.answers, both.steps, both.committed) == (2, 3 + 4, 11)
    assert (both.tested.tolist(), both.accepted.tolist()) == ([2 + 3, 2], [2, 2])
    assert both.decoded_per_step == 9 / 5
