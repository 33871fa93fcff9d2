"""How well a student agrees with stored rows of its teacher: the points of the learning curve.

The probability that a proposal is accepted is sum_x min(p(x), q(x)), p target, q draft (Leviathan et al. 2023, arXiv
2211.17192). Of p only the likeliest ids are stored, so the sum runs over these: a lower bound. At temperature 1 their p
is exact; elsewhere it is normalised over the stored ids alone, which is close below 1. `draftwire distill evaluate` has
the exact numbers.
"""

import torch
from torch import Tensor

#: Temperatures of the learning curve; greedy agreement comes beside them.
TEMPERATURES = (1.0, 0.7)


def agreement(logits: Tensor, top_ids: Tensor, top_logprobs: Tensor, rows: Tensor | None) -> Tensor:
    """Sums over positions, [1 + len(TEMPERATURES)]: greedy agreement, then acceptance at each temperature.

    Args:
        logits: [n, R], of the student.
        top_ids: [n, k], the teacher's likeliest ids, likeliest first.
        top_logprobs: [n, k], at temperature 1.
        rows: [V], the student's row for each id, -1 where it has none; None = the id itself.
    """
    wanted = top_ids if rows is None else rows[top_ids]
    known = wanted >= 0
    sums = [(logits.argmax(-1) == wanted[:, 0]).sum()]
    for temperature in TEMPERATURES:
        scaled = logits.float() / temperature
        log_q = scaled.gather(-1, wanted.clamp(min=0)) - scaled.logsumexp(-1, keepdim=True)
        log_p = top_logprobs if temperature == 1.0 else (top_logprobs / temperature).log_softmax(-1)
        sums.append((torch.minimum(log_p, log_q).exp() * known).sum())
    return torch.stack([part.double() for part in sums])
