"""The card's picture: acceptance by place in a step, by position in the output, and the learning curve."""

from io import BytesIO
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from distill.card import Curve
from distill.evaluate import BIN, MAX_K, Row
from distill.tables import NAMES, Report

#: A place that fewer guesses reach says nothing.
FEW_TESTED = 20


def draw(report: Report, curve: Curve | None) -> bytes:
    """A PNG."""
    figure = Figure(figsize=(14 if curve else 9.5, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    panels: list[Any] = list(figure.subplots(1, 3 if curve else 2))
    evaluation = report.evaluation
    for temperature in evaluation.temperatures:
        row = evaluation.row(report.drafter, temperature)
        if row is not None:
            label = f"T = {temperature:g}" if temperature else "greedy"
            panels[0].plot(*by_place(row), marker="o", label=label)
            middles = [BIN * (index + 0.5) for index in range(len(row.by_position))]
            panels[1].plot(middles, row.by_position, marker=".", label=label)
    panels[0].set_xticks(range(1, MAX_K + 1))
    _label(panels[0], "by place in the step", "place")
    _label(panels[1], "by position in the output", "position")
    if curve:
        for name, points in curve.lines.items():
            panels[2].plot(*zip(*points, strict=True), marker=".", label=name.replace("_", " at T = "))
        _label(panels[2], "while it was trained (the model alone)", curve.axis)
    figure.suptitle(f"Acceptance: {NAMES[report.drafter]}")
    image = BytesIO()
    figure.savefig(image, format="png", dpi=100)
    return image.getvalue()


def by_place(row: Row) -> tuple[list[int], list[float]]:
    """Places 1, 2, .. of a step, and how often a guess that is tested there is accepted."""
    steps = row.steps[-1]
    reached = [place for place in range(len(steps.tested)) if steps.tested[place] >= FEW_TESTED]
    return [place + 1 for place in reached], [float(steps.accepted[place] / steps.tested[place]) for place in reached]


def _label(panel: Any, title: str, axis: str) -> None:
    panel.set_title(title, fontsize="medium")
    panel.set_xlabel(axis)
    panel.set_ylim(0, 1)
    panel.grid(alpha=0.3)
    panel.legend(fontsize="small")
