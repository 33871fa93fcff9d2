"""From logits to the distribution that a token is drawn from.

Temperature, top-k, top-p and min-p apply in that order. Each of the last three keeps the tokens whose logit reaches
some floor, so a token is kept or dropped together with all tokens that are exactly as likely. The vocabulary is not
sorted: top-k and top-p look at the likeliest tokens only, top-p at more of them where these do not suffice.
Every step treats a row by itself, so a row's p does not depend on the rest of the batch.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from draftwire.errors import EngineError
from draftwire.types import SamplingParams

#: How many of the likeliest tokens top-p looks at; where these hold too little it goes on to the next, then to all.
TOP_P_WIDTHS = (128, 2048)

#: Smaller temperatures than this give the same distribution and would overflow.
_MIN_TEMPERATURE = 1e-30


def target_probs(
    logits: Tensor,  # [R, V]
    params: Sequence[SamplingParams],  # one per row
) -> Tensor:  # [R, V]
    """The distribution of each row: float32, or float64 for float64 logits.

    A greedy row (temperature 0) is one at its `greedy_tokens` and zero elsewhere. Logits of -inf exclude a token.
    Raises EngineError if a row holds NaN or +inf, or excludes every token.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    scaled = logits - _peaks(logits)  # so that floors and exponentials are relative to the likeliest token
    temperatures = [max(row.temperature, _MIN_TEMPERATURE) if row.temperature else 1.0 for row in params]
    if any(temperature != 1.0 for temperature in temperatures):
        scaled /= scaled.new_tensor(temperatures)[:, None]

    for applies, floors in _FILTERS:
        some = [i for i, row in enumerate(params) if row.temperature and applies(row)]
        if some:
            rows = torch.tensor(some, device=logits.device)
            part = scaled[rows]
            scaled[rows] = torch.where(part < floors(part, [params[i] for i in some]), -math.inf, part)
    probs = torch.softmax(scaled, dim=-1)

    greedy = [i for i, row in enumerate(params) if not row.temperature]
    if greedy:
        rows = torch.tensor(greedy, device=logits.device)
        probs[rows] = 0.0
        probs[rows, logits[rows].argmax(dim=-1)] = 1.0
    return probs


def greedy_tokens(
    logits: Tensor,  # [R, V]
) -> Tensor:  # [R] int64
    """The likeliest token of each row, ties to the lowest id. Raises EngineError as `target_probs` does."""
    _peaks(logits)
    return logits.argmax(dim=-1)


def _peaks(logits: Tensor) -> Tensor:
    """The largest logit of each row [R, 1]; it is finite exactly if the row is a distribution."""
    peaks = logits.amax(dim=-1, keepdim=True)
    if not torch.isfinite(peaks).all():
        raise EngineError("a row of logits is not a distribution: it holds NaN or +inf, or nothing but -inf")
    return peaks


def _top_k_floors(scaled: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """The k-th largest entry of each row [R, 1]."""
    ranks = [min(row.top_k, scaled.shape[1]) for row in params]
    largest = scaled.topk(max(ranks), dim=-1).values
    return largest.gather(1, torch.tensor(ranks, device=scaled.device)[:, None] - 1)


def _top_p_floors(scaled: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """The entry [R, 1] with which each row's likeliest tokens reach top_p."""
    probs = torch.softmax(scaled, dim=-1)
    top_p = torch.tensor([row.top_p for row in params], device=scaled.device, dtype=torch.float64)[:, None]
    floors = torch.empty_like(scaled[:, :1])
    vocab = scaled.shape[1]
    rows = torch.arange(len(params), device=scaled.device)  # those without a floor yet
    for width in (*TOP_P_WIDTHS, vocab):
        largest = scaled[rows].topk(min(width, vocab), dim=-1)
        reached = probs[rows].gather(1, largest.indices).double().cumsum(dim=-1)
        last = (reached < top_p[rows]).sum(dim=-1, keepdim=True)  # rank of the token that reaches top_p
        floors[rows] = largest.values.gather(1, last.clamp(max=largest.values.shape[1] - 1))
        rows = rows[last[:, 0] >= width]
        if not len(rows):
            break
    return floors


def _min_p_floors(scaled: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """log(min_p) of each row [R, 1]; the likeliest token stands at 0."""
    return scaled.new_tensor([math.log(row.min_p) for row in params])[:, None]


_FILTERS: tuple[tuple[Callable[[SamplingParams], bool], Callable[[Tensor, Sequence[SamplingParams]], Tensor]], ...] = (
    (lambda row: row.top_k > 0, _top_k_floors),
    (lambda row: row.top_p < 1, _top_p_floors),
    (lambda row: row.min_p > 0, _min_p_floors),
)
