"""Speed to expect of a draft: from its acceptance on texts, the step times of both models, and a round trip.

    plain       1 / t_v(1), nothing drafted meanwhile
    lock step   E_K / (R + K t_d + t_v(K + 1)), E_K the expected tokens of a step (distill.rounds), t_d in the mean over
                the text's guesses: those that are looked up take no time
    streaming   the pipeline's model by which the verify worker plans, at the text's accepted / tested
                (bench.predict.streaming, verify_service.policy.pace)

Each text is foretold alone and the median over texts is given, as `draftwire bench` measures: the worker plans for each
answer by that answer's acceptance, and speed is not linear in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from bench import predict
from distill.evaluate import Outcome
from verify_service.policy import StepTimes


@dataclass(frozen=True, slots=True)
class Times:
    """Step times in seconds.

    Attributes:
        plain: a target step over one token while nothing is drafted.
        steps: of target and draft while both are busy; draft_restart holds the round trip.
    """

    plain: float
    steps: StepTimes

    @classmethod
    def given(cls, verify_base: float, verify_per_token: float, draft_step: float) -> "Times":
        """Of two models that do not disturb each other and have no way between them; seconds."""
        steps = StepTimes(verify_base, verify_per_token, draft_step, draft_restart=draft_step)
        return cls(steps.verify(1), steps)

    def further_apart(self, round_trip: float) -> "Times":
        """With a round trip of so many seconds more between the two services."""
        return Times(self.plain, replace(self.steps, draft_restart=self.steps.draft_restart + round_trip))

    def with_lookups(self, free: float) -> "Times":
        """With a share of the guesses that take no time: R stays, and a draft step is as long as in the mean."""
        steps, saved = self.steps, free * self.steps.draft_step
        steps = replace(steps, draft_step=steps.draft_step - saved, draft_restart=steps.draft_restart - saved)
        return Times(self.plain, steps)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Tokens per second at K = k."""

    k: int
    plain: float
    lock_step: float
    streaming: float

    @property
    def lock_step_speedup(self) -> float:
        """Over plain decoding."""
        return self.lock_step / self.plain

    @property
    def streaming_speedup(self) -> float:
        """Over plain decoding."""
        return self.streaming / self.plain


def forecast(outcomes: Sequence[Outcome], k: int, times: Times) -> Forecast:
    """What to expect on texts like these, at least one, where a step tests at most k <= MAX_K guesses."""
    steps = [outcome.steps[k - 1] for outcome in outcomes]
    return Forecast(
        k,
        plain=1 / times.plain,
        lock_step=median(
            part.decoded_per_step / predict.lock_step_seconds(k, times.with_lookups(outcome.free).steps)
            for outcome, part in zip(outcomes, steps, strict=True)
        ),
        streaming=median(predict.streaming(part.acceptance, k, times.steps).tokens_per_second for part in steps),
    )
