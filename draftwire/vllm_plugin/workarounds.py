"""Repairs of vLLM that verification needs until they are in vLLM itself; each finds out whether it is needed."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler

logger = logging.getLogger(__name__)


def apply() -> None:
    """Repair what is broken, in this process; every worker calls it once its kernels are set up."""
    if not current_platform.is_cpu():
        return
    if not expands_right():
        rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
        logger.warning("replaced vLLM's expand_batch_to_tokens, which leaves memory unset on CPUs (vLLM issue 55005)")
    if not takes_no_rows():
        rejection_sampler.apply_top_k_top_p = _unless_empty(rejection_sampler.apply_top_k_top_p)
        logger.warning("guarded vLLM's top-k, which fails on CPUs in a step without proposals")


def expands_right() -> bool:
    """Whether vLLM spreads sampling parameters over the tokens of a step as it should.

    vLLM issue 55005: on CPUs the kernel fills a copy of what it was given, so temperature, top-k and top-p are what the
    memory held before. Two inputs, because it may have held the right values once.
    """
    ends = torch.tensor([2, 5], dtype=torch.int32)
    for first, second in ((0.5, 2.0), (4.0, 0.25)):
        spread = rejection_sampler.expand_batch_to_tokens(torch.tensor([first, second]), ends, 5)
        if spread.tolist() != [first] * 2 + [second] * 3:
            return False
    return True


def expand_batch_to_tokens(
    x: Tensor,  # [B]
    cu_num_tokens: Tensor,  # [B], tokens up to the end of each request
    num_tokens: int,
    replace_from: float = 0,
    replace_to: float = 0,
) -> Tensor:  # [num_tokens]
    """Each request's value once for each of its tokens, with `replace_from` replaced; as vLLM's function should do."""
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    values = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return values.repeat_interleave(counts, output_size=num_tokens)


def takes_no_rows() -> bool:
    """Whether vLLM's top-k copes with a step that has nothing to verify, as prefills and late drafts make them."""
    try:
        rejection_sampler.apply_top_k_top_p(torch.empty(0, 4), torch.empty(0, dtype=torch.int32), None)
    except RuntimeError:
        return False
    return True


def _unless_empty(filter_logits: Callable[[Tensor, Tensor | None, Tensor | None], Tensor]) -> Any:
    def guarded(logits: Tensor, k: Tensor | None, p: Tensor | None) -> Tensor:
        return filter_logits(logits, k, p) if logits.shape[0] else logits

    return guarded
