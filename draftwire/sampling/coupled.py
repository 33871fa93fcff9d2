"""Coupled drawing: p and the seed alone decide the token, so draft and target agree wherever p and q nearly do.

Both sides draw by Gumbel-max with the same noise: argmax of log p + G (for speculation: Daliri, Musco, Suresh,
arXiv 2408.07978). It is computed as the equivalent race argmin of E / p with E = exp(-G), which takes one logarithm an
entry instead of three; a token without probability never wins.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from draftwire.sampling.randomness import exponential


def coupled_tokens(
    probs: Tensor,  # [R, V]
    keys: Sequence[int],  # `coupled_key` of each row
) -> Tensor:  # [R] int64
    """The token of each row: a draw from probs[r] that is the same wherever it is made."""
    ids = torch.arange(probs.shape[1], device=probs.device)
    noise = exponential(torch.tensor(keys, device=probs.device)[:, None], ids)
    return noise.div_(probs).argmin(dim=-1)
