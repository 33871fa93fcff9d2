"""Speculative sampling as the papers write it: dense distributions, one sequence, nothing else of draftwire needed.

Leviathan, Kalman, Matias, arXiv 2211.17192; Chen et al., arXiv 2302.01318.
"""

import torch
from torch import Tensor

from draftwire.errors import InvalidArgument


def verify_draft_tokens(
    target_probs: Tensor,  # [K+1, V]
    draft_probs: Tensor,  # [K, V]
    draft_tokens: Tensor,  # [K]
    generator: torch.Generator,
) -> tuple[Tensor, int]:
    """Turn K draft tokens into 1 to K + 1 tokens that are distributed as if drawn from the target alone.

    For each i < K, x_i = draft_tokens[i] is accepted with probability min(1, p_i(x_i) / q_i(x_i)). At the first
    rejection one token is drawn from max(p_i - q_i, 0), normalised, and nothing after it is looked at. If all K are
    accepted, one more token is drawn from p_K. The result has law p, provided that x_i was drawn from q_i.

    Args:
        target_probs: p_0 .. p_K, where p_i is the target's distribution after x_0 .. x_{i-1}; each row sums to 1.
        draft_probs: q_0 .. q_{K-1}, likewise; the distributions that the draft tokens were drawn from.
        draft_tokens: x_0 .. x_{K-1}, integer ids; K may be 0.
        generator: the only source of randomness; on any device.

    Returns:
        tokens: int64 [first_rejected + 1], on the device of target_probs: accepted draft tokens, then the token drawn.
        first_rejected: index of the first rejected draft token, K if none was.

    Raises:
        InvalidArgument: shapes that do not fit, ids outside the vocabulary, entries that are no probabilities, or a
            draft token with q_i(x_i) = 0, which cannot have been drawn.
    """
    _check(target_probs, draft_probs, draft_tokens)
    p, q = target_probs.double(), draft_probs.double()
    accepted = 0
    for x in draft_tokens.tolist():
        if not _uniform(generator) * float(q[accepted, x]) < float(p[accepted, x]):
            break
        accepted += 1
    weights = p[accepted]
    if accepted < len(draft_tokens):
        residual = (weights - q[accepted]).clamp(min=0.0)
        if residual.any():  # else p = q up to rounding, and p is what to draw from
            weights = residual
    reached = weights.cumsum(dim=0)
    drawn = torch.searchsorted(reached, reached[-1:] * _uniform(generator), right=True)
    return torch.cat([draft_tokens[:accepted].to(drawn), drawn]), accepted


def _uniform(generator: torch.Generator) -> float:
    """Uniform in [0, 1), float64."""
    return torch.rand((), generator=generator, device=generator.device, dtype=torch.float64).item()


def _check(target_probs: Tensor, draft_probs: Tensor, draft_tokens: Tensor) -> None:
    if draft_tokens.ndim != 1 or draft_tokens.is_floating_point():
        raise InvalidArgument("draft_tokens", "must be integer ids of shape [K]")
    count = len(draft_tokens)
    if target_probs.ndim != 2 or target_probs.shape[0] != count + 1 or not target_probs.shape[1]:
        raise InvalidArgument("target_probs", f"must be [K+1, V] with K={count}, not {list(target_probs.shape)}")
    vocab = target_probs.shape[1]
    if draft_probs.shape != (count, vocab):
        raise InvalidArgument("draft_probs", f"must be [K, V] = {[count, vocab]}, not {list(draft_probs.shape)}")
    for name, probs in (("target_probs", target_probs), ("draft_probs", draft_probs)):
        if not (probs.isfinite().all() and (probs >= 0).all() and (probs.sum(dim=-1) > 0).all()):
            raise InvalidArgument(name, "every row must be a distribution: finite, not negative, not all zero")
    if not count:
        return
    if draft_tokens.min() < 0 or draft_tokens.max() >= vocab:
        raise InvalidArgument("draft_tokens", f"every id must be in [0, {vocab})")
    drawn = draft_probs.gather(1, draft_tokens.long().to(draft_probs.device)[:, None])
    if not (drawn > 0).all():
        raise InvalidArgument("draft_tokens", "a token with q(x) = 0 cannot have been drawn from draft_probs")
