"""A run held against bench.predict: what its own acceptance and step times would give, and where the two differ.

Each answer is predicted at its own acceptance, because the policy plans for each answer alone and speed is not linear
in acceptance: the prediction at the mean acceptance is not the mean of the predictions.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median

from bench import predict
from bench.load import Result
from draftwire.cli.client import Transcript
from verify_service.policy import Pace, StepTimes


@dataclass(frozen=True, slots=True)
class Theory:
    """What theory says to one configuration.

    Attributes:
        tokens_per_second: the median over the answers, for each formula that applies, by name.
        step_times: measured by the verify worker in the same run; None where nothing was drafted.
        measured, predicted: streaming's mean step, to tell tokens in a step from time in and beside the target. Here
            `wait` is all time that is not the target's: waiting for proposals, and every cost of the way.
    """

    tokens_per_second: dict[str, float] = field(default_factory=dict)
    step_times: StepTimes | None = None
    measured: Pace | None = None
    predicted: Pace | None = None

    def summary(self) -> dict[str, object]:
        """For --json."""
        parts = {"step_times": self.step_times, "measured_step": self.measured, "predicted_step": self.predicted}
        return {
            "predicted_tokens_per_second": self.tokens_per_second,
            **{name: asdict(part) for name, part in parts.items() if part is not None},
        }


def lock_step(result: Result, k: int, times: StepTimes) -> Theory:
    """Of a run in lock step."""
    return Theory({"lock step": _median(result, lambda acceptance: predict.lock_step(acceptance, k, times))}, times)


def streaming(result: Result, k: int, times: StepTimes) -> Theory:
    """Of a run that streamed."""

    def ceiling(acceptance: float) -> float:
        return max(predict.pipelined_ceiling(acceptance, j, times) for j in range(k + 1))

    answers = [answer for _, answer in result.answers]
    steps = [_steps(answer) for answer in answers]
    paces = [predict.streaming(_acceptance(answer), k, times) for answer in answers]
    return Theory(
        {"streaming": median(pace.tokens_per_second for pace in paces), "ceiling": _median(result, ceiling)},
        times,
        measured=_mean([_measured(answer, times) for answer in answers], steps),
        predicted=_mean(paces, steps),
    )


def _median(result: Result, formula: Callable[[float], float]) -> float:
    return median(formula(_acceptance(answer)) for _, answer in result.answers)


def _acceptance(answer: Transcript) -> float:
    return answer.speculation.accepted_tokens / max(1, answer.speculation.tested_tokens)


def _steps(answer: Transcript) -> int:
    """Steps that decoded; the first one ended the prefill."""
    return max(1, answer.speculation.steps - 1)


def _measured(answer: Transcript, times: StepTimes) -> Pace:
    stats, steps = answer.speculation, _steps(answer)
    proposals = (stats.tested_tokens + stats.untested_tokens - stats.late_bound_tokens) / max(1, stats.steps)
    verify = times.verify(1 + proposals)
    return Pace(answer.decode_tokens / steps, verify, answer.decode_seconds / steps - verify)


def _mean(paces: Sequence[Pace], steps: Sequence[int]) -> Pace:
    """The mean step, each answer's weighted by how many it made."""

    def mean(values: Sequence[float]) -> float:
        return sum(value * n for value, n in zip(values, steps, strict=True)) / sum(steps)

    return Pace(*(mean([getattr(pace, name) for pace in paces]) for name in ("tokens", "verify", "wait")))
