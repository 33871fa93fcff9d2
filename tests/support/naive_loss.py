"""The distillation loss written out: one position and one token at a time, in float64, with the formulas as they stand.

Plain where `distill` is quick, so that the two can be compared. Everything is differentiable.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

KINDS = ("forward_kl", "reverse_kl", "jensen_shannon", "total_variation")

#: What a probability of zero counts as in the reverse KL.
TINY = 2.0**-126


def divergence(kind: str, p: Tensor, q: Tensor) -> Tensor:
    """Between two distributions over the same tokens, [V] each."""
    pairs = list(zip(p, q, strict=True))
    if kind == "forward_kl":  # over what the student can say
        pairs = [(a, b) for a, b in pairs if b > 0]
        mass = sum(a for a, _ in pairs)
        return total([a * torch.log(a / mass / b) for a, b in pairs if a > 0])
    if kind == "reverse_kl":
        return total([b * torch.log(b / max(a, TINY)) for a, b in pairs if b > 0])
    if kind == "jensen_shannon":
        to_p = total([a * torch.log(2 * a / (a + b)) for a, b in pairs if a > 0])
        return (to_p + total([b * torch.log(2 * b / (a + b)) for a, b in pairs if b > 0])) / 2
    assert kind == "total_variation"
    return 1 - total([torch.minimum(a, b) for a, b in pairs])


def loss(
    student: Tensor,  # [batch, seq, V] float64
    teacher: Tensor,  # [batch, seq, V] float64
    labels: Tensor,  # [batch, seq], -100 = masked
    temperature: float,
    alpha: float,
    kind: str,
) -> Tensor:
    """alpha T^2 D + (1 - alpha) CE, each a mean over what counts in it."""
    divergences, entropies = [], []
    for sequence in range(len(labels)):
        for position, label in enumerate(labels[sequence].tolist()):
            if label == -100:
                continue
            z, x = student[sequence, position], teacher[sequence, position]
            divergences.append(divergence(kind, (x / temperature).softmax(0), (z / temperature).softmax(0)))
            if z[label] > -math.inf:
                entropies.append(-z.softmax(0)[label].log())
    return alpha * temperature**2 * mean(divergences) + (1 - alpha) * mean(entropies)


def total(terms: Sequence[Tensor]) -> Tensor:
    """Their sum."""
    return torch.stack(list(terms)).sum() if terms else torch.zeros((), dtype=torch.float64)


def mean(terms: Sequence[Tensor]) -> Tensor:
    """Their mean; zero of none."""
    return total(terms) / max(1, len(terms))


def store(
    teacher: Tensor,  # [n, V]
    k: int,
    temperature: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """What a data set keeps of the teacher: top ids, their log-probabilities at 1, log of the mass outside at T."""
    top = teacher.log_softmax(-1).topk(k)
    outside = (teacher / temperature).softmax(-1).scatter(-1, top.indices, 0.0)
    return top.indices, top.values, outside.sum(-1).log()
