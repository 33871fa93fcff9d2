"""Muon for the weight matrices of the layers, AdamW for everything else, behind one optimizer.

Muon (arXiv 2502.16982) makes each update of a matrix orthogonal, so that no direction of it is learnt much faster than
the others. Embeddings and heads are not the linear maps that this is meant for, and vectors have no directions; they
keep AdamW.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import AdamW, Muon, Optimizer

from distill.student import Student


class MuonWithAdamW(Optimizer):
    """Two optimizers that share one learning rate schedule.

    Args:
        student: whose trainable parameters are learnt.
        learning_rate: of both; Muon's updates are scaled to the size of AdamW's, so one number fits both.
        weight_decay: of matrices; vectors have none.
        betas: of AdamW.
    """

    def __init__(
        self, student: Student, *, learning_rate: float, weight_decay: float, betas: tuple[float, float]
    ) -> None:
        learnt = list(student.learnt().values())
        tables = {id(parameter) for parameter in student.tables()}
        muon = [parameter for parameter in learnt if parameter.ndim == 2 and id(parameter) not in tables]
        rest: list[dict[str, Any]] = [
            {"params": [parameter for parameter in learnt if id(parameter) in tables]},
            {"params": [parameter for parameter in learnt if parameter.ndim != 2], "weight_decay": 0.0},
        ]
        self._parts: tuple[Optimizer, ...] = (
            Muon(muon, lr=learning_rate, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
            AdamW(rest, lr=learning_rate, weight_decay=weight_decay, betas=betas),
        )
        super().__init__(self._groups(), {})

    def _groups(self) -> list[dict[str, Any]]:
        """The parts' own groups, so that a schedule that sets a group's learning rate sets theirs."""
        return [group for part in self._parts for group in part.param_groups]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter."""
        loss = None if closure is None else closure()
        for part in self._parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"parts": [part.state_dict() for part in self._parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From a checkpoint of the same student. Raises ValueError if it is another's."""
        for part, state in zip(self._parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = self._groups()  # loading made new ones
