"""What the target will probably say, as the draft sees it: by this a draft chooses which corrections to prepare for.

An outlook is no verdict and nothing is drawn from it. It only orders guesses by how likely they are to be of use.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from draftwire.sampling.randomness import gumbel
from draftwire.sampling.support import DrawKey
from draftwire.types import MAX_SUPPORT, VerificationMode


def outlook(
    logits: Tensor,  # [B, V]
    keys: Sequence[DrawKey],  # one per row
    count: int,
) -> list[list[tuple[int, float]]]:
    """The `count` likeliest tokens of each row with their chances, likeliest first.

    The chance is the draft's probability at the session's temperature (at 1 where the session is greedy); in coupled
    mode it is that of the logits plus the noise, which is known. Filters such as top-p are left out.
    """
    temperatures = [key.sampling.temperature or 1.0 for key in keys]
    coupled = [row for row, key in enumerate(keys) if key.mode is VerificationMode.COUPLED and key.sampling.temperature]
    width = min(MAX_SUPPORT if coupled else count, logits.shape[1])
    likeliest = logits.topk(width, dim=-1)
    heat = logits.new_tensor(temperatures)[:, None]
    scores, ids = likeliest.values / heat, likeliest.indices
    totals = torch.logsumexp(logits / heat if set(temperatures) != {1.0} else logits, dim=-1, keepdim=True)
    for row in coupled:
        key = keys[row]
        scores[row] += gumbel(key.seed, key.choice, key.position, ids[row]).to(scores)
        scores[row], order = scores[row].sort(descending=True)
        ids[row] = ids[row][order]
        totals[row] = scores[row].logsumexp(dim=-1)
    chances = (scores - totals).exp()[:, :count].tolist()
    return [list(zip(*row, strict=True)) for row in zip(ids[:, :count].tolist(), chances, strict=True)]
