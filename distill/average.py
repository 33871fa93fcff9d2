"""The exponential moving average of the weights, which is what evaluation sees and export ships.

A callback of Hugging Face's Trainer. The average is stored in every checkpoint, under the names of exported files, so a
run that goes on has the same average, and an export needs no other file of the checkpoint.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import TrainerCallback

from distill.student import Student

FILE = "average.safetensors"


class AverageWeights(TrainerCallback):  # type: ignore[misc]  # the library has no types
    """After each step, average <- d * average + (1 - d) * weights.

    d rises to `decay` with the steps t, min(decay, (1 + t) / (10 + t)), so that the untrained beginning is soon gone.

    Args:
        student: whose learnt weights are averaged.
        decay: 0 = no average, the weights themselves.
        resume_from: a checkpoint whose average is taken over; None = begin with the student's weights.
    """

    def __init__(self, student: Student, decay: float, resume_from: Path | None = None) -> None:
        self._student = student
        self._weights = student.learnt()
        self._average: dict[str, Tensor] = {}
        self._decay = decay
        self._resume_from = resume_from

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The Trainer has put the student on its device and loaded its checkpoint."""
        stored = load_file(self._resume_from / FILE) if self._resume_from else self._weights
        self._average = {
            name: stored[name].detach().to(parameter.device, copy=True) for name, parameter in self._weights.items()
        }

    @torch.no_grad()
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The optimizer has made a step."""
        decay = min(self._decay, (1 + state.global_step) / (10 + state.global_step))
        torch._foreach_lerp_(list(self._average.values()), list(self._weights.values()), 1 - decay)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Within the block, the student's weights are the average."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def save(self, folder: Path) -> None:
        """Write the average, and the student's draft_vocab if it has one. Raises OSError, SafetensorError."""
        tensors = {name: tensor.cpu() for name, tensor in self._average.items()}
        if self._student.draft_vocab is not None:
            tensors["draft_vocab"] = self._student.draft_vocab.cpu()
        save_file(tensors, folder / FILE)

    def _swap(self) -> None:
        for name, parameter in self._weights.items():
            parameter.data, self._average[name] = self._average[name], parameter.data
