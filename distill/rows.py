"""What is kept of the target's distribution at a position, and a token drawn from it.

The likeliest ids with their log-probabilities, and how much probability the others hold at each temperature of
interest. The mass of the others is summed from the others, never got as one minus the rest: it may be 1e-9.

A bfloat16 head's logits near 32 are multiples of 0.125, so that the likeliest of them tie. The logits of the likeliest
candidates are therefore computed again in float32, from the hidden state and the head's rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

#: Rows of logits that are treated together on a CPU: few enough for a core's cache.
_CPU_ROWS = 8

#: The least that is stored as a logarithm of a mass; an empty tail has this instead of -inf.
MIN_LOGMASS = -100.0


@dataclass(frozen=True, slots=True)
class Rows:
    """n rows of a teacher.

    Attributes:
        tokens: [n] int64, drawn as asked for.
        top_ids: [n, k] int32, likeliest first.
        top_logprobs: [n, k] float16, at temperature 1.
        tail_logmass: [n, T] float32.
    """

    tokens: Tensor
    top_ids: Tensor
    top_logprobs: Tensor
    tail_logmass: Tensor


def teacher_rows(
    logits: Tensor,  # [n, V], float32 or bfloat16
    hidden: Tensor,  # [n, H]
    head: Tensor,  # [V, H]
    *,
    top_k: int,
    temperatures: Sequence[float],
    samplings: Sequence[float],  # [n] temperature at which a token is drawn; 0 = the likeliest
    uniforms: Sequence[float],  # [n] in [0, 1), what decides the draw
) -> Rows:
    """The rows of a batch. A token is drawn by the inverse of the cumulated distribution over the whole vocabulary."""
    step = _CPU_ROWS if logits.device.type == "cpu" else len(logits)
    parts = []
    for start in range(0, len(logits), step):
        some = slice(start, start + step)
        share = _Share(logits[some], hidden[some], head, top_k)
        tokens = share.draw(samplings[some], uniforms[some])
        parts.append((tokens, *share.describe(temperatures)))
    return Rows(*map(torch.cat, zip(*parts, strict=True)))


class _Share:
    """Some rows: the likeliest ids and the others, with logits relative to the row's largest.

    Attributes:
        ids: [n, k] int64, likeliest first.
        top: [n, k] float32, their logits.
        rest: [n, V] float32, all logits, but -inf at `ids`.
    """

    def __init__(self, logits: Tensor, hidden: Tensor, head: Tensor, top_k: int) -> None:
        rest = logits.to(torch.float32, copy=True)
        if logits.dtype == torch.float32:
            top, self.ids = logits.topk(top_k, dim=-1)
        else:  # half as many candidates more, for those that rounding put too low
            candidates = logits.topk(min(top_k + top_k // 2, logits.shape[1]), dim=-1).indices
            exact = torch.einsum("nch,nh->nc", head[candidates].float(), hidden.float())
            rest.scatter_(1, candidates, exact)
            top, order = exact.topk(top_k, dim=-1)
            self.ids = candidates.gather(1, order)
        self.rest = rest.sub_(top[:, :1]).scatter_(1, self.ids, -torch.inf)
        self.top = top - top[:, :1]
        self._masses: dict[float, Tensor] = {}

    def describe(self, temperatures: Sequence[float]) -> tuple[Tensor, Tensor, Tensor]:
        """What is stored: top_ids, top_logprobs and tail_logmass of Rows."""
        tails = []
        for temperature in temperatures:
            inside, outside = (self.top / temperature).exp().sum(-1), self._mass(temperature)
            tails.append((outside / (inside + outside)).log())
        normaliser = (self.top.exp().sum(-1) + self._mass(1.0)).log()
        logprobs = self.top - normaliser[:, None]
        return self.ids.int(), logprobs.half(), torch.stack(tails, -1).clamp_(min=MIN_LOGMASS)

    def _mass(self, temperature: float) -> Tensor:
        """Unnormalised probability [n] of the others."""
        if temperature not in self._masses:
            self._masses[temperature] = _weights(self.rest, temperature).sum(-1)
        return self._masses[temperature]

    def draw(self, samplings: Sequence[float], uniforms: Sequence[float]) -> Tensor:  # [n]
        """A token of each row."""
        tokens = self.ids[:, 0].clone()
        marks = torch.tensor(uniforms, dtype=torch.float64, device=tokens.device)
        for temperature in set(samplings) - {0.0}:
            rows = torch.tensor([i for i, own in enumerate(samplings) if own == temperature], device=tokens.device)
            tokens[rows] = self._draw_rows(rows, temperature, marks[rows])
        return tokens

    def _draw_rows(self, rows: Tensor, temperature: float, marks: Tensor) -> Tensor:
        """First the likeliest ids one after the other, then, seldom, the others."""
        reached = (self.top[rows] / temperature).exp().double().cumsum(-1)
        inside = reached[:, -1]
        marks = marks * (inside + self._mass(temperature)[rows].double())
        place = torch.searchsorted(reached, marks[:, None], right=True)[:, 0]
        drawn = self.ids[rows, place.clamp(max=self.ids.shape[1] - 1)]
        if len(beyond := (place == self.ids.shape[1]).nonzero()[:, 0]):
            within = _weights(self.rest[rows[beyond]], temperature).double().cumsum(-1)
            left = torch.minimum((marks - inside)[beyond], within[:, -1] * (1 - 2**-52))  # float32 sums differ a little
            drawn[beyond] = torch.searchsorted(within, left[:, None], right=True)[:, 0]
        return drawn


def _weights(logits: Tensor, temperature: float) -> Tensor:
    return logits.exp() if temperature == 1 else (logits * (1 / temperature)).exp_()
