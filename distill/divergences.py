"""How far a student's distribution is from its teacher's, in the four ways that distillation of drafts uses.

Each function compares log-probabilities over the same cells, [.., C] and [.., C] -> [..]. A cell is a token, or a set
of tokens whose probabilities are summed (`distill.cells`). Gradients flow to the student's side only. Cells of
probability zero (-inf) are legal on either side and never make a NaN:

- the student cannot say a token (a trimmed head): no training changes that. The forward KL, which would be infinite,
  compares over the other cells alone, weighted by what the teacher gives these: P KL(p / P || q). This has the
  gradient of the part of KL(p || q) that depends on the student. The other divergences are finite.
- the teacher excludes a token: the reverse KL takes its probability for e**-87, the smallest normal float32.

| kind            | formula                                            | proposed for drafts or language models by  |
|-----------------|----------------------------------------------------|--------------------------------------------|
| forward_kl      | sum p log(p / q)                                   | Hinton et al., arXiv 1503.02531            |
| reverse_kl      | sum q log(q / p)                                   | Gu et al. (MiniLLM), arXiv 2306.08543      |
| jensen_shannon  | (KL(p || m) + KL(q || m)) / 2 with m = (p + q) / 2 | Agarwal et al. (GKD), arXiv 2306.13649     |
| total_variation | sum |p - q| / 2 = 1 - sum min(p, q)                | Zhou et al. (DistillSpec), arXiv 2310.08461 |

The last is one minus the probability that speculative sampling accepts a token (Leviathan et al., arXiv 2211.17192).
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["forward_kl", "reverse_kl", "jensen_shannon", "total_variation"]

#: Stands for log 0 where a difference of logarithms is taken.
_LOG_TINY = math.log(torch.finfo(torch.float32).tiny)


def forward_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """sum p log(p / q): punishes a student that misses what the teacher says."""
    p = torch.where(log_q == -math.inf, 0.0, log_p.exp())
    mass = p.sum(dim=-1)
    terms = p * torch.where(p > 0, log_p - log_q, 0.0)
    return terms.sum(dim=-1) - torch.xlogy(mass, mass)


def reverse_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """sum q log(q / p): punishes a student that says what the teacher would not."""
    log_p, log_q = log_p.clamp(min=_LOG_TINY), log_q.clamp(min=_LOG_TINY)
    return (log_q.exp() * (log_q - log_p)).sum(dim=-1)


def jensen_shannon(log_p: Tensor, log_q: Tensor) -> Tensor:
    """(KL(p || m) + KL(q || m)) / 2 with m = (p + q) / 2: between the two, at most log 2."""
    log_p, log_q = log_p.clamp(min=_LOG_TINY), log_q.clamp(min=_LOG_TINY)
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)
    return (log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m)).sum(dim=-1) / 2


def total_variation(log_p: Tensor, log_q: Tensor) -> Tensor:
    """sum |p - q| / 2: the probability of a rejection."""
    return (log_p.exp() - log_q.exp()).abs().sum(dim=-1) / 2


DIVERGENCES: dict[Kind, Callable[[Tensor, Tensor], Tensor]] = {
    "forward_kl": forward_kl,
    "reverse_kl": reverse_kl,
    "jensen_shannon": jensen_shannon,
    "total_variation": total_variation,
}
