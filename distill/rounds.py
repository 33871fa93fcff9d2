"""From the acceptance of each position to what a run of steps does with it, exactly.

A step tests the next K guesses up to its first rejection; what follows, the correction or the free token behind K
accepted guesses, is committed without a test. So where the steps of an answer begin depends on what was accepted
before, and positions are not tested equally often: behind every rejection one is left out. Accepted / tested, which
`draftwire bench` reports, is therefore not the mean acceptance over positions.

The chance that a step begins at a position follows from the earlier ones, by going once through the text.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distill.scores import Scores


@dataclass(frozen=True, slots=True)
class Steps:
    """Expected counts over some answers in lock step.

    Attributes:
        answers: how many.
        steps: of the target, each prefill's last included, which brings the first token.
        committed: output tokens.
        tested: [K] guesses tested at each place of a step; a step tests up to its first rejection.
        accepted: [K] of these.
    """

    answers: int
    steps: float
    committed: int
    tested: NDArray[np.float64]
    accepted: NDArray[np.float64]

    @property
    def acceptance(self) -> float:
        """accepted / tested, as `draftwire bench` has it; 0 where nothing was tested."""
        return float(self.accepted.sum() / max(self.tested.sum(), 1e-300))

    @property
    def tokens_per_step(self) -> float:
        """committed / steps."""
        return self.committed / self.steps

    @property
    def decoded_per_step(self) -> float:
        """The same without the prefills, which speed is counted from; 1 where an answer is a single token."""
        return (
            (self.committed - self.answers) / max(self.steps - self.answers, 1e-300)
            if self.steps > self.answers
            else 1.0
        )


def lock_step(scores: Scores, k: int) -> Steps:
    """One answer: each step tests k guesses, fewer where the drafter has no more or the answer ends."""
    chance, proposed = scores.chance.tolist(), scores.proposed.tolist()
    length = len(chance)
    begins = [0.0] * (length + 2)  # the chance that a step begins at this position
    begins[1] = 1.0  # position 0 comes with the prompt's prefill
    tested, accepted = np.zeros(k), np.zeros(k)
    for begin in range(1, length):
        reached = begins[begin]  # the chance that the next guess is tested
        position = begin
        while position < min(begin + k, length) and proposed[position]:
            tested[position - begin] += reached
            begins[position + 1] += reached * (1 - chance[position])  # rejected: its correction is committed
            reached *= chance[position]
            accepted[position - begin] += reached
            position += 1
        begins[position + 1] += reached  # behind the free token
    return Steps(1, 1 + sum(begins[1:length]), length, tested, accepted)


def total(parts: Iterable[Steps]) -> Steps:
    """All answers of at least one part together; every part has the same K."""
    some = list(parts)
    return Steps(
        sum(part.answers for part in some),
        sum(part.steps for part in some),
        sum(part.committed for part in some),
        np.sum([part.tested for part in some], axis=0),
        np.sum([part.accepted for part in some], axis=0),
    )
