"""Hugging Face's Trainer with the distillation loss, and agreement with the teacher as its evaluation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments
from transformers.utils import SAFE_WEIGHTS_NAME

from distill.agreement import TEMPERATURES, agreement
from distill.average import AverageWeights
from distill.losses import DistillationLoss
from distill.optimizer import MuonWithAdamW
from distill.student import Student


class DistillationTrainer(Trainer):  # type: ignore[misc]  # the library has no types
    """Trainer whose loss is the distillation loss and whose evaluation is agreement with the teacher.

    Args:
        student: is trained.
        arguments: of the Trainer.
        muon: learn with Muon and AdamW rather than AdamW alone.
        loss: compares logits with the teacher's rows.
        rows: [V], the student's row for each id of the target; None = the id itself.
        batches: the whole run of this process, a batch for each step.
        held_out: this process's share of the held-out data; None = no learning curve.
        average: of the student's weights; what is evaluated.
        seen: supervised tokens of all processes up to the end of each step.
    """

    control: Any  # the library has no types
    optimizer: Any

    def __init__(
        self,
        student: Student,
        arguments: TrainingArguments,
        *,
        muon: bool,
        loss: DistillationLoss,
        rows: Tensor | None,
        batches: DataLoader[Any],
        held_out: DataLoader[Any] | None,
        average: AverageWeights,
        seen: Sequence[int],
    ) -> None:
        self._muon, self._loss, self._average, self._seen = muon, loss, average, seen
        self._student, self._batches, self._held_out = student, batches, held_out
        super().__init__(
            student,
            arguments,
            train_dataset=batches.dataset,
            eval_dataset=None if held_out is None else held_out.dataset,  # a share without a batch is false
            callbacks=[average],
        )
        self._rows = None if rows is None else rows.to(arguments.device)

    def get_train_dataloader(self) -> Any:
        """Every batch of the run; one pass is all of it."""
        return self._batches

    def create_optimizer(self, model: Any = None) -> Any:
        """The Trainer's own AdamW, or Muon with the same settings."""
        if not self._muon:
            return super().create_optimizer(model)
        if self.optimizer is None:
            arguments = self.args
            self.optimizer = MuonWithAdamW(
                self._student,
                learning_rate=arguments.learning_rate,
                weight_decay=arguments.weight_decay,
                betas=(arguments.adam_beta1, arguments.adam_beta2),
            )
        return self.optimizer

    def compute_loss(
        self, model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Mean per supervised token of this process's batch."""
        logits = model(inputs["input_ids"], inputs["positions"])
        loss = self._loss.from_top_k(
            logits, inputs["top_ids"], inputs["top_logprobs"], inputs["tail_logmass"], inputs["labels"], self._rows
        )
        return (loss, logits) if return_outputs else loss

    @torch.no_grad()
    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Agreement of the averaged student with the teacher on the held-out data, as a point of the learning curve."""
        assert self._held_out is not None
        self.model.eval()
        sums = torch.zeros(1 + len(TEMPERATURES), dtype=torch.float64, device=self.args.device)
        count = torch.zeros((), dtype=torch.float64, device=self.args.device)
        with self._average.swapped_in():
            for cpu_batch in self._held_out:
                batch = self._prepare_inputs(cpu_batch)
                logits = self.model(batch["input_ids"], batch["positions"])
                sums += agreement(logits, batch["top_ids"], batch["top_logprobs"], self._rows)
                count += len(logits)
        sums, count = self.accelerator.reduce((sums, count))
        values = (sums / count).tolist()
        metrics = {"eval_greedy": values[0], "eval_tokens_seen": self._seen[self.state.global_step - 1]}
        metrics |= {f"eval_acceptance_{t:g}": value for t, value in zip(TEMPERATURES, values[1:], strict=True)}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """The first part of a checkpoint: the weights, and the average beside them."""
        super().save_model(output_dir, _internal_call)
        if self.args.should_save:
            self._average.save(Path(output_dir or self.args.output_dir))

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        """Only what is learnt, tied weights once; what is frozen comes from the target again."""
        super()._save(output_dir, {name: parameter.detach() for name, parameter in self.model.learnt().items()})

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        self.model.load(load_file(Path(resume_from_checkpoint) / SAFE_WEIGHTS_NAME), resume_from_checkpoint)
