"""The model card: what an evaluation found, as a part of a folder's README.md with a picture beside it.

The part stands between two comment lines. It is replaced if it is there and appended otherwise, so that the rest of the
card may be written by hand.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from distill.run_folder import STATE, last_checkpoint
from distill.tables import Report, tables
from draftwire.errors import InvalidArgument

BEGIN, END = "<!-- draftwire distill evaluate -->", "<!-- end of evaluation -->"
README, PICTURE = "README.md", "acceptance.png"


@dataclass(frozen=True, slots=True)
class Curve:
    """Agreement with the teacher on held-out text while the draft was trained.

    Attributes:
        axis: what stands along it: "supervised tokens" or "steps".
        lines: by name ("greedy", "acceptance_0.7"), points (where on the axis, value).
    """

    axis: str
    lines: Mapping[str, Sequence[tuple[float, float]]]


def read_curve(run: Path) -> Curve:
    """The learning curve of a training run (distill.run_folder). Raises InvalidArgument if there is none."""
    folder = run if (run / STATE).is_file() else last_checkpoint(run)
    try:
        history = json.loads(((folder or run) / STATE).read_text())["log_history"]
        points = [entry for entry in history if "eval_greedy" in entry]
        axis = "eval_tokens_seen" if all("eval_tokens_seen" in entry for entry in points) else "step"
        names = {
            name: None for entry in points for name in entry if name.startswith(("eval_greedy", "eval_acceptance"))
        }
        lines = {
            name.removeprefix("eval_"): [(float(e[axis]), float(e[name])) for e in points if name in e]
            for name in names
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidArgument("--run", f"{run} holds no learning curve: {STATE}: {error!r}") from None
    if not lines:
        raise InvalidArgument("--run", f"{run} holds no learning curve; train with --eval-data")
    return Curve("steps" if axis == "step" else "supervised tokens", lines)


def prepare_card(folder: Path) -> None:
    """Make the folder, before hours of work. Raises InvalidArgument if that or matplotlib fails."""
    try:
        import distill.plot  # noqa: F401, PLC0415  matplotlib is wanted for cards alone

        folder.mkdir(parents=True, exist_ok=True)
    except ImportError as error:
        raise InvalidArgument("--card", f"its picture needs the extra `distill`: {error}") from None
    except OSError as error:
        raise InvalidArgument("--card", f"{folder} cannot be written: {error}") from None


def write_card(folder: Path, report: Report, curve: Curve | None) -> None:
    """Write the picture, then the card, into a folder that is there. Raises InvalidArgument if it cannot be written."""
    from distill.plot import draw  # noqa: PLC0415

    try:
        _replace(folder / PICTURE, draw(report, curve))
        card = folder / README
        text = card.read_text(encoding="utf-8") if card.exists() else _opening(report)
        _replace(card, with_part(text, part(report)).encode())
    except OSError as error:
        raise InvalidArgument("--card", f"{folder} cannot be written: {error}") from None


def part(report: Report) -> str:
    """The evaluation in Markdown, with the lines that mark it."""
    evaluation = report.evaluation
    texts = sum(len(evaluation.some(report.drafter, temperature)) for temperature in evaluation.temperatures)
    story = (
        f"Judged by `draftwire distill evaluate` on {texts} texts of {evaluation.target} ({evaluation.positions} "
        "positions), with the target's full distribution and the very q that the draft service draws from. "
        "*Accepted / tested* and *tokens per step* are what lock step makes of it (docs/distill.md)."
    )
    body = "\n".join(table.markdown() for table in tables(report))
    return f"{BEGIN}\n## How often it guesses right\n\n{story}\n\n{body}\n![Acceptance]({PICTURE})\n{END}"


def with_part(text: str, new: str) -> str:
    """A card's text with its part replaced, or with the part behind everything else."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if begin and end:
        return before + new + after
    return f"{text.rstrip()}\n\n{new}\n"


def _opening(report: Report) -> str:
    name, target = report.evaluation.draft, report.evaluation.target
    story = f"Guesses the next tokens of {target}, which checks the guesses. It is of no use alone."
    return f"# {name or 'n-gram lookup'}\n\n{story}\n"


def _replace(file: Path, content: bytes) -> None:
    """At once or not at all."""
    unfinished = file.with_name(f"{file.name}.unfinished")
    unfinished.write_bytes(content)
    os.replace(unfinished, file)
