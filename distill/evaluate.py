"""What a draft is worth on its target's texts: acceptance and tokens per step, by drafter, temperature and prompt.

Every drafter that can be had is judged in the same pass, because they share the forwards of both models: the model
alone, the n-gram lookup alone, and the hybrid of both.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from distill.rounds import Steps, lock_step, total
from distill.scores import DrafterName, score
from distill.texts import TargetText
from draftwire.engine.base import Engine
from draftwire.errors import Incompatible, InvalidArgument

#: Expected tokens per step are given for each K up to this.
MAX_K = 8

#: Output positions that share a point of the curve of acceptance by position, and the least that make one.
BIN, FEW = 16, 50


@dataclass(frozen=True)
class Outcome:
    """One drafter on one text at one temperature.

    Attributes:
        kind: of the text's prompt.
        overlap: [n], chance that a guess is accepted at each output position; 0 where there is none.
        steps: what lock step makes of it at K = 1, 2, .. MAX_K.
        free: share of the guesses that cost no step of the draft model.
    """

    kind: str
    overlap: NDArray[np.float64]
    steps: tuple[Steps, ...]
    free: float = 0.0


@dataclass(frozen=True)
class Row:
    """Some texts together.

    Attributes:
        texts: how many.
        positions: their output positions.
        acceptance: mean over all positions of sum_x min(p(x), q(x)); at temperature 0 the greedy agreement.
        steps: at K = 1, 2, .. MAX_K.
        by_position: [bins], mean acceptance over each BIN output positions; ends where texts get few.
    """

    texts: int
    positions: int
    acceptance: float
    steps: tuple[Steps, ...]
    by_position: tuple[float, ...]


@dataclass(frozen=True)
class Evaluation:
    """Everything that was found out.

    Attributes:
        target, draft: names of the models; draft None = the n-gram drafter alone.
        positions: output positions judged; one that was judged at two temperatures counts twice.
        seconds: that took.
        outcomes: by drafter and temperature, an entry for each text.
    """

    target: str
    draft: str | None
    positions: int
    seconds: float
    outcomes: Mapping[tuple[DrafterName, float], tuple[Outcome, ...]]

    @property
    def drafters(self) -> list[DrafterName]:
        """Those that were judged."""
        return list(dict.fromkeys(drafter for drafter, _ in self.outcomes))

    @property
    def temperatures(self) -> list[float]:
        """At which they were."""
        return list(dict.fromkeys(temperature for _, temperature in self.outcomes))

    @property
    def kinds(self) -> list[str]:
        """Kinds of prompts, in the order in which they came."""
        return list(dict.fromkeys(outcome.kind for outcome in chain(*self.outcomes.values())))

    def some(self, drafter: DrafterName, temperature: float, kind: str | None = None) -> list[Outcome]:
        """The outcomes of a kind; None = of every kind."""
        return [outcome for outcome in self.outcomes[drafter, temperature] if kind in (None, outcome.kind)]

    def row(self, drafter: DrafterName, temperature: float, kind: str | None = None) -> Row | None:
        """The outcomes of a kind together; None if there are none."""
        some = self.some(drafter, temperature, kind)
        if not some:
            return None
        overlap = np.concatenate([outcome.overlap for outcome in some])
        return Row(
            texts=len(some),
            positions=len(overlap),
            acceptance=float(overlap.mean()),
            steps=tuple(total(outcome.steps[k] for outcome in some) for k in range(MAX_K)),
            by_position=tuple(_by_position([outcome.overlap for outcome in some])),
        )


def assign(texts: Sequence[TargetText], temperatures: Sequence[float]) -> list[tuple[TargetText, list[float]]]:
    """At which temperatures to judge each text: at the one that it was written at, if it is among them.

    At a temperature that no text was written at, all are judged: another's words, but better than nothing.
    """
    written = {text.temperature for text in texts}
    work = [(text, [t for t in temperatures if t == text.temperature or t not in written]) for text in texts]
    return [(text, own) for text, own in work if own]


def evaluate(
    work: Iterable[tuple[TargetText, Sequence[float]]],
    target: Engine,
    draft: Engine | None,
    progress: Callable[[int], None] = lambda _: None,
) -> Evaluation:
    """Judge the draft on texts, each at its temperatures (`assign`).

    Args:
        draft: None = judge the n-gram drafter, which needs no model.
        progress: told after each text how many output positions it had.

    Raises Incompatible if the models have different vocabularies, InvalidArgument if there is no text.
    """
    if draft:
        check_pair(target, draft)
    began, positions = time.monotonic(), 0
    outcomes: dict[tuple[DrafterName, float], list[Outcome]] = {}
    for text, temperatures in work:
        for (drafter, temperature), scores in score(text, target, draft, temperatures).items():
            steps = tuple(lock_step(scores, k) for k in range(1, MAX_K + 1))
            outcome = Outcome(text.kind, scores.overlap, steps, scores.free)
            outcomes.setdefault((drafter, temperature), []).append(outcome)
        positions += (len(text.token_ids) - text.begin) * len(temperatures)
        progress(len(text.token_ids) - text.begin)
    if not outcomes:
        raise InvalidArgument("data", "holds no text to evaluate on")
    return Evaluation(
        target.info.name,
        draft.info.name if draft else None,
        positions,
        time.monotonic() - began,
        {key: tuple(some) for key, some in outcomes.items()},
    )


def check_pair(target: Engine, draft: Engine) -> None:
    """Raises Incompatible unless the same ids mean the same tokens."""
    ours, theirs = target.info, draft.info
    if ours.vocab_fingerprint != theirs.vocab_fingerprint:
        raise Incompatible(
            f"vocab_fingerprint: draft {theirs.name!r} has {theirs.vocab_fingerprint[:12]}, target {ours.name!r} has "
            f"{ours.vocab_fingerprint[:12]}: they must share a vocabulary"
        )


def _by_position(overlaps: Sequence[NDArray[np.float64]]) -> Iterable[float]:
    for begin in range(0, max(map(len, overlaps)), BIN):
        values = np.concatenate([overlap[begin : begin + BIN] for overlap in overlaps])
        if len(values) < FEW:
            return
        yield float(values.mean())
