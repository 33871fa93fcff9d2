"""An evaluation as tables for people, in the terminal and in Markdown, and as one JSON object for programs."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table as RichTable

from distill.evaluate import MAX_K, Evaluation, Row
from distill.forecast import Forecast, Times, forecast
from distill.scores import DrafterName

NAMES = {
    "model": "the model alone",
    "ngram": "n-gram lookup alone",
    "hybrid": "n-gram where it matches, else the model",
}


@dataclass(frozen=True, slots=True)
class Report:
    """What is shown.

    Attributes:
        evaluation: all of it.
        drafter: whose details are shown.
        k: of the tables by kind and of speeds.
        times: what speeds are foretold from; None = no speeds.
    """

    evaluation: Evaluation
    drafter: DrafterName
    k: int
    times: Times | None

    def forecast(self, temperature: float, kind: str | None = None, k: int | None = None) -> Forecast | None:
        """The speed to expect on texts of a kind; None if there are none or no times."""
        outcomes = self.evaluation.some(self.drafter, temperature, kind)
        return forecast(outcomes, k or self.k, self.times) if outcomes and self.times else None


@dataclass(frozen=True, slots=True)
class Table:
    """Text in columns: the first is a name, the others are numbers."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def rich(self) -> RichTable:
        """For the terminal."""
        made = RichTable(title=self.title, title_justify="left")
        for index, name in enumerate(self.header):
            made.add_column(name, justify="right" if index else "left")
        for row in self.rows:
            made.add_row(*row)
        return made

    def markdown(self) -> str:
        """For a card."""
        rule = ("---", *("---:" for _ in self.header[1:]))
        lines = [f"| {' | '.join(cells)} |" for cells in (self.header, rule, *self.rows)]
        return "\n".join([f"**{self.title}**", "", *lines, ""])


def tables(report: Report) -> list[Table]:
    """Acceptance of every drafter; then of the chosen one tokens per step, kinds of prompts, and speeds."""
    made = [_acceptance(report), _tokens_per_step(report)]
    made += [_kinds(report, temperature) for temperature in report.evaluation.temperatures]
    return made if report.times is None else [*made, _speeds(report)]


def summary(report: Report) -> dict[str, Any]:
    """For --json: probabilities, tokens per step at K = 1 .. 8, tokens per second, step times in seconds."""
    evaluation = report.evaluation
    return {
        "target": evaluation.target,
        "draft": evaluation.draft,
        "drafter": report.drafter,
        "positions": evaluation.positions,
        "positions_per_second": evaluation.positions / evaluation.seconds,
        "rows": [
            {"drafter": drafter, "temperature": temperature, "kind": kind or "all", **_numbers(row)}
            for drafter in evaluation.drafters
            for temperature in evaluation.temperatures
            for kind, row in _rows(evaluation, drafter, temperature)
        ],
        "times": asdict(report.times) if report.times else None,
        "forecasts": [
            {
                "temperature": temperature,
                **asdict(expected),
                "lock_step_speedup": expected.lock_step_speedup,
                "streaming_speedup": expected.streaming_speedup,
            }
            for temperature in evaluation.temperatures
            for k in range(1, MAX_K + 1)
            if (expected := report.forecast(temperature, k=k))
        ],
    }


def _numbers(row: Row) -> dict[str, Any]:
    last = row.steps[-1]
    return {
        "texts": row.texts,
        "positions": row.positions,
        "acceptance": row.acceptance,
        "accepted_per_tested": [steps.acceptance for steps in row.steps],
        "tokens_per_step": [steps.tokens_per_step for steps in row.steps],
        "acceptance_by_place": (last.accepted / last.tested.clip(1e-300)).tolist(),
        "acceptance_by_position": row.by_position,
    }


def _rows(evaluation: Evaluation, drafter: DrafterName, temperature: float) -> Iterator[tuple[str | None, Row]]:
    for kind in (None, *evaluation.kinds):
        row = evaluation.row(drafter, temperature, kind)
        if row is not None:
            yield kind, row


def _acceptance(report: Report) -> Table:
    evaluation = report.evaluation
    header = ("drafter", *(_at(temperature) for temperature in evaluation.temperatures))
    title = "How often the target accepts a guess: mean of sum min(p, q) over all positions"
    rows = []
    for drafter in evaluation.drafters:
        found = (evaluation.row(drafter, temperature) for temperature in evaluation.temperatures)
        rows.append((NAMES[drafter], *(f"{row.acceptance:.3f}" if row else "" for row in found)))
    return Table(title, header, rows)


def _tokens_per_step(report: Report) -> Table:
    evaluation = report.evaluation
    rows = []
    for temperature in evaluation.temperatures:
        row = evaluation.row(report.drafter, temperature)
        if row is not None:
            rows.append((_at(temperature), *(f"{steps.tokens_per_step:.2f}" for steps in row.steps)))
    header = ("", *(f"K = {k}" for k in range(1, MAX_K + 1)))
    return Table(f"Tokens per step to expect in lock step ({NAMES[report.drafter]})", header, rows)


def _kinds(report: Report, temperature: float) -> Table:
    header = ("prompts", "texts", "acceptance", "accepted / tested", "tokens per step", "streaming speed-up")
    rows: list[tuple[str, ...]] = []
    for kind, row in _rows(report.evaluation, report.drafter, temperature):
        steps, expected = row.steps[report.k - 1], report.forecast(temperature, kind)
        numbers = (row.acceptance, steps.acceptance, steps.tokens_per_step)
        cells = (kind or "all", str(row.texts), *(f"{number:.3f}" for number in numbers))
        rows.append((*cells, f"{expected.streaming_speedup:.2f}") if expected else cells)
    title = f"By kind of prompt, {_at(temperature)}, K = {report.k} ({NAMES[report.drafter]})"
    return Table(title, header if report.times else header[:-1], rows)


def _speeds(report: Report) -> Table:
    rows = []
    for temperature in report.evaluation.temperatures:
        if expected := report.forecast(temperature):
            both = (expected.lock_step, expected.lock_step_speedup), (expected.streaming, expected.streaming_speedup)
            speeds = (f"{speed:.1f} ({speedup:.2f}x)" for speed, speedup in both)
            rows.append((_at(temperature), f"{expected.plain:.1f}", *speeds))
    return Table(f"Tokens per second to expect at K = {report.k}", ("", "plain", "lock step", "streaming"), rows)


def _at(temperature: float) -> str:
    return f"temperature {temperature:g}" if temperature else "greedy"
