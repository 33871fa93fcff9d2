"""The loss of distillation: alpha T^2 D(teacher_T, student_T) + (1 - alpha) cross-entropy of the labels.

D is one of `distill.divergences`, between the distributions at temperature T; T^2 keeps the size of the forward KL's
gradient while T changes (Hinton et al., arXiv 1503.02531), and is there for the others too so that alpha means the
same. The cross-entropy is at temperature 1. Both are means over the unmasked tokens: the length of a sequence and the
size of a batch do not scale the loss, which `batchmean` over [batch, seq, vocab] gets wrong.

The teacher is given by its logits, or by what a data set stores of it (`distill.cells` says what that loses).
"""

import math
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from distill.cells import stored_cells, student_cells
from distill.divergences import DIVERGENCES, Kind
from draftwire.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class DistillationLoss:
    """The loss; it holds settings only.

    The label in position i is the token that the logits in position i predict: nothing is shifted here. Logits may
    have any float type, nothing is computed below float32, and -inf is legal on either side. A position whose label
    is `ignore_index` counts in neither term and gets no gradient; if all are masked the loss is zero. A label that the
    student cannot say (outside a trimmed head, or at -inf) is left out of the cross-entropy and of its mean.

    Attributes:
        temperature: T > 0 of both distributions in the divergence.
        alpha: weight of the divergence, 0 to 1.
        kind: of divergence. `total_variation` is the rejection rate of drafts sampled at `temperature`.
        ignore_index: the label that masks a position; not a token.

    Raises InvalidArgument if a setting or a shape is wrong.
    """

    temperature: float = 1.5
    alpha: float = 0.5
    kind: Kind = "forward_kl"
    ignore_index: int = -100

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise InvalidArgument("temperature", f"is {self.temperature}, must be above 0 and finite")
        if not 0 <= self.alpha <= 1:
            raise InvalidArgument("alpha", f"is {self.alpha}, must be 0 to 1")
        if self.kind not in DIVERGENCES:
            raise InvalidArgument("kind", f"is {self.kind!r}, must be one of {', '.join(get_args(Kind))}")
        if self.ignore_index >= 0:
            raise InvalidArgument("ignore_index", f"is {self.ignore_index}, must be negative")

    def __call__(
        self,
        student_logits: Tensor,  # [.., V], such as [batch, seq, V]
        teacher_logits: Tensor,  # [.., V]
        labels: Tensor,  # [..]
    ) -> Tensor:  # scalar
        """The loss against a teacher's logits. It holds several float32 tensors of the logits' size meanwhile."""
        _check_shape("teacher_logits", teacher_logits, student_logits.shape)
        _check_shape("labels", labels, student_logits.shape[:-1])
        student, teacher, labels = self._unmasked(labels, student_logits, teacher_logits.detach())
        dtype = torch.promote_types(student.dtype, torch.float32)
        student, teacher = student.to(dtype), teacher.to(dtype)
        log_p = (teacher / self.temperature).log_softmax(dim=-1)
        log_q = (student / self.temperature).log_softmax(dim=-1)
        plain = log_q if self.temperature == 1.0 else student.log_softmax(dim=-1)
        return self._combine(log_p, log_q, plain.gather(1, labels[:, None])[:, 0])

    def from_top_k(
        self,
        student_logits: Tensor,  # [.., R], such as [n, R]
        top_ids: Tensor,  # [.., k] int64, distinct in a row
        top_logprobs: Tensor,  # [.., k] the teacher's log-probabilities of these, at temperature 1
        tail_logmass: Tensor,  # [..] log of its probability of all other ids, at this loss's temperature
        labels: Tensor,  # [..] int64
        vocab_map: Tensor | None = None,  # [V] int64, of a trimmed head; None: row i is id i
    ) -> Tensor:  # scalar
        """The loss against what is stored of a teacher. Ids are the teacher's, whatever head the student has."""
        positions = student_logits.shape[:-1]
        _check_shape("top_ids", top_ids, (*positions, top_ids.shape[-1]))
        _check_shape("top_logprobs", top_logprobs, top_ids.shape)
        _check_shape("tail_logmass", tail_logmass, positions)
        _check_shape("labels", labels, positions)
        student, top_ids, top_logprobs, tail_logmass, labels = self._unmasked(
            labels, student_logits, top_ids, top_logprobs, tail_logmass
        )
        rows, label_rows = (_rows(ids, vocab_map, student.shape[1]) for ids in (top_ids, labels))
        log_q, label_logprobs = student_cells(student, rows, label_rows, self.temperature)
        log_p = stored_cells(top_logprobs.to(log_q.dtype), tail_logmass.to(log_q.dtype), self.temperature)
        return self._combine(log_p, log_q, label_logprobs)

    def _unmasked(self, labels: Tensor, *tensors: Tensor) -> list[Tensor]:
        """The unmasked rows of each tensor, and of the labels, in one dimension; copied only if something is masked."""
        kept = labels.flatten() != self.ignore_index
        if (labels.flatten()[kept] < 0).any():
            raise InvalidArgument("labels", f"hold a negative id that is not ignore_index ({self.ignore_index})")
        flat = [tensor.flatten(0, labels.dim() - 1) for tensor in (*tensors, labels)]
        return flat if kept.all() else [tensor[kept] for tensor in flat]

    def _combine(self, log_p: Tensor, log_q: Tensor, label_logprobs: Tensor) -> Tensor:
        divergence = _mean(DIVERGENCES[self.kind](log_p, log_q))
        sayable = label_logprobs != -math.inf
        cross_entropy = _mean(-label_logprobs[sayable])
        return self.alpha * self.temperature**2 * divergence + (1 - self.alpha) * cross_entropy


def vocab_map(
    draft_vocab: Tensor,  # [R] ids that a trimmed head can say, in the order of its rows
    vocab_size: int,
) -> Tensor:  # [V] int64
    """The head's row of each id of the vocabulary; -1 for ids that it has no row for.

    Raises InvalidArgument if an id is outside the vocabulary or named twice.
    """
    ids = draft_vocab.long()
    if not ((ids >= 0) & (ids < vocab_size)).all() or (ids.bincount() > 1).any():
        raise InvalidArgument("draft_vocab", f"must hold distinct ids from 0 to {vocab_size - 1}")
    rows = torch.full((vocab_size,), -1, device=ids.device)
    rows[ids] = torch.arange(len(ids), device=ids.device)
    return rows


def _rows(ids: Tensor, vocab_map: Tensor | None, head: int) -> Tensor:
    """The head's rows of ids, with the number of rows standing for none, as `student_cells` wants it."""
    if vocab_map is None:
        return ids.clamp(max=head)
    rows = vocab_map[ids]
    return rows.masked_fill(rows < 0, head)


def _mean(values: Tensor) -> Tensor:
    """Zero with a zero gradient if there are none."""
    return values.sum() / max(1, len(values))


def _check_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != tuple(shape):
        raise InvalidArgument(name, f"has shape {list(tensor.shape)}, must be {list(shape)} as student_logits require")
