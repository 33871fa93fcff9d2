"""The goodput policy against a plain event-by-event simulation of the pipeline, and its behaviour at the edges."""

import random

import pytest

from verify_service.policy import (
    FIRST_WAIT,
    Acceptance,
    Plan,
    Planner,
    StepClock,
    StepTimes,
    choose,
    expected_tokens,
    goodput,
)

#: A 135M target and a two-layer draft on one CPU core each, in seconds.
EMBEDDED = StepTimes(verify_base=0.050, verify_per_token=0.001, draft_step=0.005, draft_restart=0.007)


def simulate(k, m, acceptance, times, steps, seed):
    """Tokens per second of one session whose draft free-runs: the same pipeline, event by event."""
    rng = random.Random(seed)
    now, tokens = 0.0, 0
    arrival = times.draft_restart  # of the guess for the next position, perhaps in the future; the others follow
    for _ in range(steps):
        if m:
            now = max(now, arrival + (m - 1) * times.draft_step)
        there = int((now - arrival) / times.draft_step + 1e-9) + 1 if now >= arrival else 0
        tested = min(k, there)
        now += times.verify(tested + 1)
        run = 0
        while run < tested and rng.random() < acceptance:
            run += 1
        tokens += run + 1
        if run == tested and rng.random() < acceptance:  # the bonus token is what the path has there, late-bound or not
            arrival += (tested + 1) * times.draft_step
        else:
            arrival = now + times.draft_restart
    return tokens / now


@pytest.mark.parametrize("acceptance", [0.3, 0.5, 0.8, 0.95])
@pytest.mark.parametrize(("k", "m"), [(1, 0), (3, 0), (5, 0), (3, 2), (5, 5), (5, 3)])
def test_goodput_matches_a_simulation(acceptance, k, m):
    """The two-state model is within 8 % of the simulated pipeline over 20,000 steps."""
    simulated = simulate(k, m, acceptance, EMBEDDED, 20_000, seed=1)
    assert goodput(k, m, acceptance, EMBEDDED) == pytest.approx(simulated, rel=0.08)


@pytest.mark.parametrize("acceptance", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("restart", [0.06, 0.09, 0.12])
def test_goodput_with_a_round_trip_longer_than_a_step(acceptance, restart):
    """Plain tokens may agree with a path that is still on its way: the model is within 25 % of the simulation."""
    slow = StepTimes(verify_base=0.050, verify_per_token=0.001, draft_step=0.005, draft_restart=restart)
    simulated = simulate(3, 0, acceptance, slow, 20_000, seed=1)
    assert goodput(3, 0, acceptance, slow) == pytest.approx(simulated, rel=0.25)


@pytest.mark.parametrize("acceptance", [0.2, 0.4, 0.6, 0.8, 0.95])
def test_choice_is_close_to_the_best_simulated(acceptance):
    """What `choose` picks is within 5 % of the best (K, m) by simulation."""
    plan = choose(5, acceptance, EMBEDDED)
    rates = {(k, m): simulate(k, m, acceptance, EMBEDDED, 5_000, seed=2) for k in range(6) for m in range(k + 1)}
    assert rates[plan.num_speculative_tokens, plan.min_proposals] > 0.95 * max(rates.values())


def test_no_speculation_where_it_cannot_pay():
    """Where tokens cost as much as steps (a full batch) and acceptance is low, K = 0."""
    compute_bound = StepTimes(verify_base=0.001, verify_per_token=0.001, draft_step=0.005, draft_restart=0.01)
    assert choose(5, 0.2, compute_bound, batch=64) == Plan(0, 0, 0.0)


def test_waits_for_a_good_draft():
    """A fast and good draft is worth waiting for, and waits are bounded."""
    plan = choose(5, 0.9, EMBEDDED)
    assert plan.num_speculative_tokens == 5
    assert plan.min_proposals >= 2
    assert 0 < plan.max_wait < 0.2


def test_expected_tokens_is_the_geometric_sum():
    """(1 - a^(K+1)) / (1 - a)."""
    assert expected_tokens(0.5, 3) == pytest.approx((1 - 0.5**4) / 0.5)
    assert expected_tokens(0.9, 0) == 1


def test_clock_recovers_a_linear_step_time():
    """Least squares finds base and slope of noiseless times."""
    clock = StepClock()
    for tokens in (1, 4, 6, 2, 8, 3):
        clock.saw_verify(tokens, 0.05 + 0.002 * tokens)
    clock.saw_draft_step(1, 0.004)
    clock.saw_restart(1, 0.01)
    times = clock.times(1)
    assert times.verify_base == pytest.approx(0.05, rel=1e-6)
    assert times.verify_per_token == pytest.approx(0.002, rel=1e-6)
    assert clock.known(1)


def test_one_hiccup_is_not_the_rule():
    """Sixteen sessions whose restarts a hiccup delays together leave the estimate where it was."""
    clock = StepClock()
    for seconds in (0.01,) * 20 + (0.5,) * 16:
        clock.saw_restart(1, seconds)
    assert clock.times(1).draft_restart == 0.01


def test_each_draft_worker_has_its_own_times():
    """One near, one far: each has its own estimates and plan beside one target, and what is gone leaves nothing."""
    clock = StepClock()
    for _ in range(4):
        clock.saw_verify(1, 0.051)
        clock.saw_verify(6, 0.056)
    for worker, step, restart in ((1, 0.005, 0.007), (2, 0.030, 0.300)):
        clock.saw_draft_step(worker, step)
        clock.saw_restart(worker, restart)
    near, far = clock.times(1), clock.times(2)
    assert (near.draft_step, near.draft_restart) == (0.005, 0.007)
    assert (far.draft_step, far.draft_restart) == (0.030, 0.300)
    assert (near.verify_base, near.verify_per_token) == (far.verify_base, far.verify_per_token)
    planner = Planner("auto", 5, clock)
    assert planner.plan(0.7, None, 1, 1, worker=1) == choose(5, 0.7, near)
    assert planner.plan(0.7, None, 1, 1, worker=2) == choose(5, 0.7, far) != choose(5, 0.7, near)
    assert planner.plan(0.7, None, 1, 1, worker=3) == Plan(5, 1, FIRST_WAIT), "a new one is not judged by the others"
    clock.worker_gone(2)
    assert not clock.known(2)
    assert clock.known(1)


def test_acceptance_follows_what_it_sees():
    """From the prior towards the measured rate; old outcomes fade."""
    acceptance = Acceptance(0.5)
    for _ in range(100):
        acceptance.saw(9, 10)
    assert acceptance.rate == pytest.approx(0.9, abs=0.01)
    for _ in range(100):
        acceptance.saw(0, 10)
    assert acceptance.rate < 0.05


def test_schedules():
    """Lock step waits for K, eager never waits, a caller's limit binds, and K = 0 is probed now and then."""
    clock = StepClock()
    assert Planner("lockstep", 5, clock).plan(0.5, None, 1, 0, 1).min_proposals == 5
    assert Planner("eager", 5, clock).plan(0.5, 3, 1, 0, 1) == Plan(3, 0, 0.0)
    assert Planner("auto", 5, clock).plan(0.5, 0, 1, 0, 1) == Plan(0, 0, 0.0)
    for _ in range(4):
        clock.saw_verify(1, 0.001)
        clock.saw_verify(64, 0.064)
    clock.saw_restart(1, 0.5)
    auto = Planner("auto", 5, clock)
    assert auto.plan(0.01, None, 64, 1, 1).num_speculative_tokens == 0
    assert auto.plan(0.01, None, 64, 32, 1).num_speculative_tokens == 1


@pytest.mark.parametrize("acceptance", [0.0, 5e-324, 1e-200, 1.0])
@pytest.mark.parametrize("restart", [0.001, 0.049, 0.2, 10.0])
def test_extreme_rates_have_a_plan(acceptance, restart):
    """Rates at the ends of their range, with restarts shorter and longer than a step, give a plan and no error."""
    plan = choose(5, acceptance, StepTimes(0.05, 0.001, 0.005, restart))
    assert 0 <= plan.min_proposals <= plan.num_speculative_tokens <= 5
    if acceptance < 0.5:
        assert plan.num_speculative_tokens == 0
