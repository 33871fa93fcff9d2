"""How long to wait for proposals and how many to test: whatever commits the most tokens per second.

A session that is to take its next step may go at once with the proposals that have arrived, or wait for more. Waiting
buys longer accepted runs; going at once lets the draft catch up while the target computes. Which is better depends on
the acceptance rate and on four times, all measured online: what the target's step costs, what one token more in it
costs, what the draft needs per token, and how long the first proposal takes after a correction. `choose` evaluates a
two-state model of the pipeline for every (K, m) and takes the best; plain decoding (K = 0) and lock step are among its
answers.

Nothing here looks at a proposal's value: only at counts and outcomes of earlier positions, so the choice can't bias
the output (docs/protocol.md, "The rule behind all rules").
"""

import math
from collections import defaultdict, deque
from dataclasses import dataclass
from statistics import median
from typing import Literal

#: "auto" chooses by goodput; "lockstep" waits for K proposals, as synchronous systems do; "eager" never waits.
Schedule = Literal["auto", "lockstep", "eager"]

#: Longest wait of lock step, seconds: it has to end where the draft is slow or gone.
LOCKSTEP_WAIT = 1.0

#: How long a session waits for a first proposal while nothing is known of the draft, seconds.
FIRST_WAIT = 0.25

#: Measured rates are kept this far from 0 and 1, where the model divides by zero.
LEAST_ACCEPTANCE = 0.001

#: After a choice of K = 0, every so many steps one proposal is tested all the same, to see acceptance rise.
PROBE_EVERY = 32


#: Restarts of the draft that its estimate is the median of.
RESTARTS = 64


@dataclass(frozen=True, slots=True)
class Plan:
    """What a session does in its next steps.

    Attributes:
        num_speculative_tokens: K, most proposals tested in one step.
        min_proposals: m, how many to wait for before joining a step; 0 to K.
        max_wait: tau, seconds after which the session joins with what has come.
    """

    num_speculative_tokens: int
    min_proposals: int
    max_wait: float


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The four times, in seconds.

    Attributes:
        verify_base: a target step without its tokens.
        verify_per_token: what each token in it adds.
        draft_step: one more proposal.
        draft_restart: from a commit that refutes the path to the first proposal of the new one.
    """

    verify_base: float
    verify_per_token: float
    draft_step: float
    draft_restart: float

    def verify(self, tokens: float) -> float:
        """A target step over `tokens` tokens."""
        return self.verify_base + self.verify_per_token * tokens


def expected_tokens(acceptance: float, k: int) -> float:
    """Tokens that a step which tests k proposals commits: (1 - a^(k+1)) / (1 - a). Source: arXiv 2211.17192, eq. 1."""
    return float(sum(acceptance**i for i in range(k + 1)))


@dataclass(frozen=True, slots=True)
class Pace:
    """A session's mean step: tokens that it commits, seconds in the target's step, seconds of waiting before it."""

    tokens: float
    verify: float
    wait: float

    @property
    def tokens_per_second(self) -> float:
        """The speed that follows."""
        return self.tokens / (self.verify + self.wait)


def goodput(k: int, m: int, acceptance: float, times: StepTimes, batch: int = 1) -> float:
    """Tokens per second and session when it tests at most k and waits for m, in the steady state (`pace`)."""
    return pace(k, m, acceptance, times, batch).tokens_per_second


def pace(k: int, m: int, acceptance: float, times: StepTimes, batch: int = 1) -> Pace:
    """A session's mean step when it tests at most k and waits for m, in the steady state.

    The model has two states at the moment of decision: *restart*, the draft's path was refuted and nothing is there;
    and *ahead*, the path survived and what was drafted during the last step is there. Late binding is part of it: with
    a proposal for the bonus position at hand, the path survives a step with probability a^(tested + 1).

    Args:
        batch: sessions that share the target's steps.
    """
    draft = max(times.draft_step, 1e-6)
    acceptance = min(max(acceptance, LEAST_ACCEPTANCE), 1 - LEAST_ACCEPTANCE)

    def step(tested: int, wait: float, drafted_before: float) -> tuple[Pace, float, int]:
        """The step, the chance that the path survives it, and what is then there."""
        verify = times.verify(batch * (tested + 1))
        ahead = drafted_before + verify / draft - tested
        survives = acceptance ** (tested + 1) if ahead >= 1 else 0.0
        return Pace(expected_tokens(acceptance, tested), verify, wait), survives, max(0, int(ahead) - 1)

    if m:
        restarted, restart_survives, there = step(m, times.draft_restart + (m - 1) * draft, m)
    else:
        restarted = Pace(1.0, times.verify(batch), 0.0)
        restart_survives, there = _catch_up(acceptance, draft, times.draft_restart, restarted.verify)
    tested = min(k, max(there, m))
    ahead, ahead_survives, _ = step(tested, max(0, m - there) * draft, max(there, m))
    # Share of steps taken in the state "ahead": x = (1 - x) * restart_survives + x * ahead_survives.
    share = restart_survives / (1 - ahead_survives + restart_survives)
    return Pace(
        (1 - share) * restarted.tokens + share * ahead.tokens,
        (1 - share) * restarted.verify + share * ahead.verify,
        (1 - share) * restarted.wait + share * ahead.wait,
    )


def _catch_up(acceptance: float, draft: float, restart: float, step: float) -> tuple[float, int]:
    """A session that decodes plainly while a new path is on its way: how it gets ahead again.

    The path survives a plain step if the target's token is the one that the path has there. The draft is ahead once
    that happened j times in a row, j steps being what it takes the path to show and to overtake the target.

    Returns (chance for each plain step to be the last of such a run, guesses that are then there).
    """
    if restart <= step:
        j = 1
    elif draft < step:
        j = math.ceil((restart - draft) / (step - draft))
    else:
        return 0.0, 0
    if acceptance**j < 1e-9:  # it never happens
        return 0.0, 0
    mean_steps = sum(acceptance**-i for i in range(1, j + 1))  # until j successes in a row
    return 1 / mean_steps, max(0, int(1 + (j * step - restart) / draft) - j)


def choose(limit: int, acceptance: float, times: StepTimes, batch: int = 1) -> Plan:
    """The (K, m) with the highest goodput, K <= limit; ties go to the smaller K and m."""
    best, best_rate = Plan(0, 0, 0.0), 1 / times.verify(batch)
    for k in range(1, limit + 1):
        for m in range(k + 1):
            rate = goodput(k, m, acceptance, times, batch)
            if rate > best_rate * 1.001:
                best, best_rate = Plan(k, m, _patience(m, times)), rate
    return best


def _patience(m: int, times: StepTimes) -> float:
    """Twice the time that m proposals usually take after a correction."""
    return 2 * (times.draft_restart + m * times.draft_step) if m else 0.0


class DraftClock:
    """Online estimates of a draft worker's two times: a moving average and a median (one hiccup delays the restarts of
    all sessions together, and must not count as often)."""

    def __init__(self) -> None:
        self._step = 0.0
        self._restarts: deque[float] = deque(maxlen=RESTARTS)

    def saw_step(self, seconds: float) -> None:
        """The worker reports the time of its step."""
        self._step = seconds if not self._step else 0.8 * self._step + 0.2 * seconds

    def saw_restart(self, seconds: float) -> None:
        """The first proposal of a new path came so long after the commit that began it."""
        self._restarts.append(seconds)

    @property
    def known(self) -> bool:
        """Whether there is enough to choose by."""
        return bool(self._restarts)

    def times(self) -> tuple[float, float]:
        """(draft_step, draft_restart); a step is never longer than a restart, which has one in it."""
        restart = median(self._restarts) if self._restarts else 0.0
        return min(self._step or restart, restart), restart


class StepClock:
    """Online estimates of the four times: the target's by decayed least squares, the draft's for each worker, by id."""

    def __init__(self, forget: float = 0.98) -> None:
        self._forget = forget
        self._weight = self._n = self._t = self._nn = self._nt = 0.0
        self._drafts: defaultdict[int, DraftClock] = defaultdict(DraftClock)

    def saw_verify(self, tokens: int, seconds: float) -> None:
        """A target step over `tokens` tokens took so long."""
        for name, value in (
            ("_weight", 1.0),
            ("_n", tokens),
            ("_t", seconds),
            ("_nn", tokens**2),
            ("_nt", tokens * seconds),
        ):
            setattr(self, name, getattr(self, name) * self._forget + value)

    def saw_draft_step(self, worker: int, seconds: float) -> None:
        """A draft worker reports the time of its step."""
        self._drafts[worker].saw_step(seconds)

    def saw_restart(self, worker: int, seconds: float) -> None:
        """The first proposal of a new path came so long after the commit that began it."""
        self._drafts[worker].saw_restart(seconds)

    def worker_gone(self, worker: int) -> None:
        """Forget a draft worker; its id never comes back."""
        self._drafts.pop(worker, None)

    def known(self, worker: int) -> bool:
        """Whether there is enough to choose by."""
        return self._weight >= 4 and self._drafts[worker].known

    def times(self, worker: int) -> StepTimes:
        """The current estimates."""
        weight = max(self._weight, 1e-9)
        mean_n, mean_t = self._n / weight, self._t / weight
        variance = self._nn / weight - mean_n**2
        slope = (self._nt / weight - mean_n * mean_t) / variance if variance > 1e-6 else 0.0
        slope = min(max(slope, 0.0), mean_t / max(mean_n, 1.0))
        return StepTimes(mean_t - slope * mean_n, slope, *self._drafts[worker].times())


class Acceptance:
    """A session's acceptance rate: a decayed count that starts from what other sessions of the worker have seen."""

    def __init__(self, prior: float = 0.5, forget: float = 0.98) -> None:
        self._accepted, self._tested, self._forget = 4 * prior, 4.0, forget

    def saw(self, accepted: int, tested: int) -> None:
        """Outcome of one step."""
        decay = self._forget**tested
        self._accepted = self._accepted * decay + accepted
        self._tested = self._tested * decay + tested

    @property
    def rate(self) -> float:
        """accepted / tested."""
        return self._accepted / self._tested


class Planner:
    """Gives each session its plan.

    Args:
        schedule: how to choose.
        limit: K, most proposals tested in one step (--num-speculative-tokens).
        clock: the times to choose by.
    """

    def __init__(self, schedule: Schedule, limit: int, clock: StepClock) -> None:
        self._schedule = schedule
        self._limit = limit
        self._clock = clock

    def plan(self, acceptance: float, limit: int | None, batch: int, step: int, worker: int) -> Plan:
        """A session's plan.

        Args:
            acceptance: its measured rate.
            limit: the caller's own K; None = the worker's.
            batch: sessions that share the target's steps.
            step: how many steps it has made; says when to probe.
            worker: the session's draft worker.
        """
        most = self._limit if limit is None else min(limit, self._limit)
        if self._schedule == "lockstep":
            return Plan(most, most, LOCKSTEP_WAIT)
        if self._schedule == "eager" or most == 0:
            return Plan(most, 0, 0.0)
        if not self._clock.known(worker):
            return Plan(most, 1, FIRST_WAIT)
        plan = choose(most, acceptance, self._clock.times(worker), batch)
        if plan.num_speculative_tokens == 0 and step % PROBE_EVERY == 0:
            return Plan(1, 0, 0.0)
        return plan
