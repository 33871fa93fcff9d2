"""The draft's side: draw one token a row, and say exactly what it was drawn from.

In rejection mode q is what was drawn from: the processed distribution is cut to its likeliest tokens, rounded to
integer weights that sum to exactly 2**16, and the token is drawn from those integers. Nothing is rounded after the
draw, so the verifier judges by the very distribution that produced the token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftwire.sampling.coupled import coupled_tokens
from draftwire.sampling.distribution import greedy_tokens, target_probs
from draftwire.sampling.randomness import Purpose, coupled_key, uniform
from draftwire.types import MAX_SUPPORT, WEIGHT_TOTAL, DraftToken, SamplingParams, Support, VerificationMode


@dataclass(frozen=True, slots=True)
class DrawKey:
    """How to draw one row.

    Attributes:
        sampling: of the session.
        mode: of the session.
        seed: of the session.
        choice: of the session.
        position: index in prompt + output of the token to draw.
        path: number of the draft's path; a position drawn anew on another path gets fresh randomness.
    """

    sampling: SamplingParams
    mode: VerificationMode
    seed: int
    choice: int
    position: int
    path: int


def draw(
    logits: Tensor,  # [B, V]
    keys: Sequence[DrawKey],  # one per row
) -> list[DraftToken]:
    """Draw a token for each row by its key.

    q is None (a point mass) for greedy rows, in coupled mode, and where a single token is all that the cut leaves.
    A row's token depends on its logits and key only. Raises EngineError if a row of logits is not a distribution.
    """
    groups: dict[Callable[[Tensor, Sequence[DrawKey]], list[DraftToken]], list[int]]
    groups = {_draw_greedy: [], _draw_coupled: [], _draw_sparse: []}
    for row, key in enumerate(keys):
        if not key.sampling.temperature:
            groups[_draw_greedy].append(row)
        elif key.mode is VerificationMode.COUPLED:
            groups[_draw_coupled].append(row)
        else:
            groups[_draw_sparse].append(row)
    drawn: dict[int, DraftToken] = {}
    for draw_rows, rows in groups.items():
        if rows:
            part = logits if len(rows) == len(keys) else logits[torch.tensor(rows, device=logits.device)]
            drawn.update(zip(rows, draw_rows(part, [keys[row] for row in rows]), strict=True))
    return [drawn[row] for row in range(len(keys))]


def _draw_greedy(logits: Tensor, keys: Sequence[DrawKey]) -> list[DraftToken]:
    return [DraftToken(token) for token in greedy_tokens(logits).tolist()]


def _draw_coupled(logits: Tensor, keys: Sequence[DrawKey]) -> list[DraftToken]:
    noise = [coupled_key(key.seed, key.choice, key.position) for key in keys]
    probs = target_probs(logits, [key.sampling for key in keys])
    return [DraftToken(token) for token in coupled_tokens(probs, noise).tolist()]


def _draw_sparse(logits: Tensor, keys: Sequence[DrawKey]) -> list[DraftToken]:
    ids, weights = draft_weights(logits, [key.sampling for key in keys])
    marks = [
        int(uniform(key.seed, key.choice, key.position, Purpose.DRAFT, key.path) * WEIGHT_TOTAL) for key in keys
    ]  # integers in [0, WEIGHT_TOTAL): a mark falls into a token's stretch of weights with exactly its probability
    drawn = (weights.cumsum(dim=-1) <= torch.tensor(marks, device=weights.device)[:, None]).sum(dim=-1)
    sizes = (weights > 0).sum(dim=-1)

    tokens = []
    columns = (ids.tolist(), weights.tolist(), sizes.tolist(), drawn.tolist())
    for row_ids, row_weights, size, index in zip(*columns, strict=True):
        support = Support(tuple(row_ids[:size]), tuple(row_weights[:size])) if size > 1 else None
        tokens.append(DraftToken(row_ids[index], support))
    return tokens


def draft_weights(
    logits: Tensor,  # [N, V]
    params: Sequence[SamplingParams],  # one per row, none greedy
) -> tuple[Tensor, Tensor]:  # ids [N, C] int64, weights [N, C] int64
    """What each row is drawn from in rejection mode: q(ids[i]) = weights[i] / WEIGHT_TOTAL, likeliest first.

    Raises EngineError if a row of logits is not a distribution.
    """
    probs = target_probs(logits, params)
    likeliest = probs.topk(min(MAX_SUPPORT, probs.shape[1]), dim=-1)
    return likeliest.indices, quantise(likeliest.values)


def quantise(
    probs: Tensor,  # [N, C] descending, not necessarily normalised
) -> Tensor:  # [N, C] int64
    """Integer weights in proportion to probs: each row sums to exactly WEIGHT_TOTAL, and what is kept weighs >= 1.

    Probabilities below 1 / WEIGHT_TOTAL of the row's sum are dropped (weight 0). The others get one each and a share of
    the rest, rounded where the shares meet, so that no weight is off by more than rounding requires.
    """
    reached = probs.double().cumsum(dim=-1)
    kept = probs.double() * WEIGHT_TOTAL >= reached[:, -1:]
    reached = (probs.double() * kept).cumsum(dim=-1)
    rest = WEIGHT_TOTAL - kept.sum(dim=-1, keepdim=True)
    edges = (reached / reached[:, -1:] * rest).round().long()
    return edges.diff(dim=-1, prepend=torch.zeros_like(edges[:, :1])) + kept
