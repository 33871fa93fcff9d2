"""Which tokens a trimmed draft can propose: those that its target says most often.

A head over the whole vocabulary is most of a small draft's cost, and a few thousand tokens make up nearly all text
(FR-Spec, arXiv 2502.14856). What is not among them is left to the target.
"""

import torch
from torch import Tensor

from distill.data import DistillationData


def frequent_tokens(data: DistillationData, size: int) -> Tensor:
    """The ids that the teacher expects most often, at most `size` of them, most frequent first.

    The teacher's probabilities stand in for counts: they see a rare token wherever it was likely, not only where it
    was drawn.
    """
    expected = torch.zeros(data.manifest.vocab_size, dtype=torch.float64)
    for i in range(len(data)):
        example = data[i]
        expected.index_add_(0, example.top_ids.flatten(), example.top_logprobs.double().exp().flatten())
    return expected.argsort(descending=True, stable=True)[:size]
