"""A toy language whose law is known, and the statistics that judge whether generated answers follow it.

`ToyChain` is a Markov chain over a few tokens: its logits depend on the last token only, so the law of whole answers
can be written down. `chi_square_p` compares samples with a law; `total_variation` compares two laws.
"""

import math
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import torch
from scipy.stats import chi2
from torch import Tensor

#: A right sampler passes a fixed-seed test above the first bound; a biased one must fall below the second.
P_VALUE_PASS = 1e-4
P_VALUE_REJECT = 1e-6

Answer = tuple[int, ...]


@dataclass(frozen=True)
class ToyChain:
    """rows[t] = distribution of the token after t; eos ends an answer (None: nothing does)."""

    rows: tuple[tuple[float, ...], ...]
    eos: int | None = None

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return len(self.rows)

    def logits(self, tokens: list[int] | Answer) -> Tensor:  # [len(tokens), V]
        """Float64 logits of the distributions after each of `tokens`; temperature 1 gives `rows` back."""
        return torch.tensor([self.rows[token] for token in tokens], dtype=torch.float64).log()

    def is_complete(self, tokens: Answer, length: int) -> bool:
        """Whether nothing may follow: eos was reached, or `length`."""
        return self.eos in tokens or len(tokens) >= length

    def cut(self, tokens: Answer, length: int) -> Answer:
        """An answer as its caller sees it: ended by eos (inclusive) or by `length`."""
        end = tokens.index(self.eos) + 1 if self.eos in tokens else len(tokens)
        return tokens[: min(end, length)]

    def answer_law(self, first: int, length: int) -> dict[Answer, float]:
        """The law of answers of at most `length` tokens after `first`."""
        law: dict[Answer, float] = {}
        open_answers: dict[Answer, float] = {(): 1.0}
        for _ in range(length):
            longer: dict[Answer, float] = {}
            for answer, mass in open_answers.items():
                for token, p in enumerate(self.rows[answer[-1] if answer else first]):
                    if p:
                        (law if token == self.eos else longer)[(*answer, token)] = mass * p
            open_answers = longer
        return law | open_answers


def total_variation(a: Mapping[Hashable, float], b: Mapping[Hashable, float]) -> float:
    """Half the sum of |a - b|: 0 for equal laws, 1 for disjoint ones."""
    return sum(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in a.keys() | b.keys()) / 2


def chi_square_p(samples: Counter[Answer], law: Mapping[Answer, float], *, least_expected: float = 5.0) -> float:
    """p value of Pearson's chi-square test of samples against a law.

    Outcomes expected less than `least_expected` times are pooled. 0.0 if an outcome that the law excludes was seen.
    """
    if any(law.get(outcome, 0.0) == 0.0 for outcome in samples):
        return 0.0
    total = samples.total()
    cells, pooled_seen, pooled_expected = [], 0, 0.0
    for outcome, mass in law.items():
        if mass * total < least_expected:
            pooled_seen += samples[outcome]
            pooled_expected += mass * total
        else:
            cells.append((samples[outcome], mass * total))
    if pooled_expected:
        cells.append((pooled_seen, pooled_expected))
    statistic = math.fsum((seen - expected) ** 2 / expected for seen, expected in cells)
    return float(chi2.sf(statistic, len(cells) - 1))
