"""The cells over which a loss compares a student with a stored teacher: the stored tokens, and one for all the rest.

A data set keeps the teacher's k likeliest tokens and the mass outside them. So teacher and student are compared over
k + 1 cells: each stored token, and the tail, whose probability is the sum over all other tokens. What such a loss is:

- A lower bound of the loss over the whole vocabulary (data-processing inequality), equal to it once k reaches V. For
  the forward KL of a trimmed head this holds as far as the head has the tokens of the tail.
- Exactly, value and gradient, the whole loss against the teacher that has the stored probabilities and spreads the
  tail as the student itself does. So nothing pulls at the student's shape within the tail, only at its mass; the
  forward KL pulls at the logit of a stored token as the whole loss does, whatever the tail looks like.

Without the tail's cell both would be wrong: a student could leave its mass on tokens that the teacher never says.
A stored token that a trimmed head lacks keeps its own cell, with probability zero on the student's side. Were it put
into the tail, the student would be asked to say something unlikely wherever the teacher says a token it lacks.

The student's tail is the log-sum-exp of what is left after the stored logits are taken out, not 1 - their sum, which
float32 cannot tell from 0 for a confident student. That also is the only pass over [n, R] that the loss at one
temperature needs.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

#: Logits of float32 in a block of rows: one megabyte stays in a core's cache, and a GPU wants few large steps.
_BLOCK_CPU, _BLOCK_GPU = 2**18, 2**24


def stored_cells(
    top_logprobs: Tensor,  # [n, k] at temperature 1
    tail_logmass: Tensor,  # [n] at `temperature`
    temperature: float,
) -> Tensor:  # [n, k + 1]
    """The teacher's log-probabilities at `temperature`: the stored tokens, then the tail. They sum to one."""
    tail = tail_logmass.clamp(max=0.0)[:, None]
    inside = torch.log(-torch.expm1(tail))
    return torch.cat([(top_logprobs / temperature).log_softmax(dim=-1) + inside, tail], dim=-1)


def student_cells(
    logits: Tensor,  # [n, R]
    rows: Tensor,  # [n, k] the stored tokens' rows of the head, distinct; R where the head has none
    labels: Tensor,  # [n] likewise
    temperature: float,
) -> tuple[Tensor, Tensor]:  # [n, k + 1], [n]
    """The student's log-probabilities: of the cells at `temperature`, and of the labels at temperature 1.

    float32, or float64 for float64 logits; the gradient has the dtype of the logits. What the head cannot say is -inf;
    a gradient that reaches such a value is lost.
    """
    cells, label_logprobs = _StudentCells.apply(logits, rows, labels, temperature)  # type: ignore[no-untyped-call]
    return cells, label_logprobs


class _StudentCells(torch.autograd.Function):
    """A few rows at a time, so that forward and backward need no second [n, R] beside the logits and their gradient.

    Blocks have a column more than the head: column R stands for whatever the head cannot say. Only the logits and
    [n, k] are kept for the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, rows: Tensor, labels: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(logits.dtype, torch.float32)
        cells = torch.empty(len(rows), rows.shape[1] + 1, dtype=dtype, device=logits.device)
        label_logits, norms = cells.new_empty(2, len(rows), 1)
        for part in _parts(logits):
            block = _block(logits[part], dtype)
            label_logits[part] = block.gather(1, labels[part, None])
            if temperature != 1.0:
                norms[part] = block.logsumexp(dim=1, keepdim=True)
                block /= temperature
            cells[part, :-1] = block.gather(1, rows[part])
            cells[part, -1] = block.scatter_(1, rows[part], -math.inf).logsumexp(dim=1)
        totals = cells.logsumexp(dim=1, keepdim=True)
        if temperature == 1.0:
            norms = totals
        ctx.temperature = temperature
        ctx.save_for_backward(logits, rows, labels, cells, totals, norms)
        return cells - totals, (label_logits - norms)[:, 0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cell_grads: Tensor, label_grads: Tensor) -> tuple[Tensor, None, None, None]:
        """With d log q_c / d z = (share of z in its cell) - q_z, and the same for the labels."""
        logits, rows, labels, cells, totals, norms = ctx.saved_tensors
        pulls = (cell_grads - (cells - totals).exp() * cell_grads.sum(dim=1, keepdim=True)) / ctx.temperature
        tails = cells[:, -1:].masked_fill(cells[:, -1:] == -math.inf, 0.0)  # an empty tail: exp(-inf - 0) is no NaN
        grads = torch.empty_like(logits)
        for part in _parts(logits):
            block = _block(logits[part], cells.dtype)
            label = (block - norms[part]).exp_().mul_(-label_grads[part, None])
            label.scatter_add_(1, labels[part, None], label_grads[part, None])
            block.div_(ctx.temperature).sub_(tails[part]).exp_().mul_(pulls[part, -1:])
            block.scatter_(1, rows[part], pulls[part, :-1])
            grads[part] = block.add_(label)[:, :-1]
        return grads, None, None, None


def _parts(logits: Tensor) -> Iterator[slice]:
    """Slices of rows that make a block each."""
    rows = max(1, (_BLOCK_GPU if logits.is_cuda else _BLOCK_CPU) // (logits.shape[1] + 1))
    return (slice(start, start + rows) for start in range(0, len(logits), rows))


def _block(logits: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy in the dtype that is computed in, with the column that stands for what the head cannot say."""
    block = torch.empty(len(logits), logits.shape[1] + 1, dtype=dtype, device=logits.device)
    block[:, :-1] = logits
    block[:, -1] = -math.inf
    return block
