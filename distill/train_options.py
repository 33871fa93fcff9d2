"""`draftwire distill train`: its options. No torch here."""

import sys
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, Field, model_validator

from draftwire.cli.verbatim import VerbatimPath
from draftwire.errors import DraftwireError

#: Frequent tokens that a trimmed student can propose, unless told otherwise.
DRAFT_VOCAB = 8192


class Train(BaseModel):
    """Train a student on collected data. Goes on by itself where a killed run of the same settings stopped."""

    data: list[VerbatimPath] = Field(
        min_length=1, description="data set to learn from (draftwire distill collect); repeatable"
    )
    output: Path = Field(description="folder of the run: settings, checkpoints, learning curve")
    eval_data: list[VerbatimPath] = Field([], description="held-out data set for the learning curve; repeatable")
    target: str = Field("embedded-target", description="local folder, hub id or embedded-target")

    num_layers: int | None = Field(
        None, ge=1, description="student: the first so many layers of the target (default 2)"
    )
    layers: list[int] | None = Field(None, min_length=1, description="student: these layers of the target, as 0,1")
    config: Path | None = Field(None, description="student: a model of this config.json, from scratch")
    init: str | None = Field(None, description="student: go on from this model or trimmed draft")
    draft_vocab: int | None = Field(
        None, ge=0, description=f"tokens that layers of the target can propose, 0 = all (default {DRAFT_VOCAB})"
    )

    loss: Literal["forward_kl", "reverse_kl", "total_variation", "jensen_shannon"] = Field(
        "forward_kl", description="what is small where student and teacher agree"
    )
    loss_temperature: float = Field(1.0, gt=0, description="temperature at which they are compared")
    loss_alpha: float = Field(0.9, ge=0, le=1, description="weight of that loss; the rest is cross-entropy")
    optimizer: Literal["muon", "adamw"] = Field(
        "muon", description="muon (for the matrices of the layers; AdamW for the rest) or AdamW for all"
    )
    learning_rate: float = Field(3e-3, gt=0, description="at the end of the warm-up; a cosine takes it to 0")
    warmup_steps: int = Field(30, ge=0, description="steps in which the learning rate rises")
    weight_decay: float = Field(0.05, ge=0, description="of matrices; norms have none")
    average_decay: float = Field(0.98, ge=0, lt=1, description="of the moving average of the weights; 0 = none")
    batch_tokens: int = Field(1200, ge=1, description="supervised tokens in a step, for each process")
    max_length: int = Field(1024, ge=2, description="longer sequences are cut, tokens")
    epochs: int = Field(1, ge=1, description="passes over the data")
    max_steps: int | None = Field(None, ge=1, description="most steps; the learning rate reaches 0 there")
    seed: int = Field(0, ge=0, lt=2**32, description="of the order of the data and of random weights")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="arithmetic of the matrix products; auto = bfloat16 where the hardware has it"
    )
    threads: int | None = Field(None, ge=1, le=1024, description="CPU threads; default: torch's")

    eval_sequences: int = Field(64, ge=1, description="held-out sequences in a point of the learning curve")
    eval_steps: int = Field(100, ge=1, description="steps between such points")
    save_steps: int = Field(100, ge=1, description="steps between checkpoints; two are kept")
    log_steps: int = Field(10, ge=1, description="steps between logged losses")

    @model_validator(mode="after")
    def _one_student(self) -> Self:
        named = [name for name in ("num_layers", "layers", "config", "init") if getattr(self, name) is not None]
        if len(named) > 1:
            flags = " and ".join("--" + name.replace("_", "-") for name in named)
            raise ValueError(f"{flags}: name one way to build the student")
        if self.draft_vocab is not None and (self.config or self.init):
            raise ValueError("--draft-vocab: only a student of the target's layers is trimmed here")
        return self

    @property
    def student_layers(self) -> list[int] | None:
        """The target's layers that the student begins as; None = it is built in another way."""
        if self.config or self.init:
            return None
        return self.layers or list(range(self.num_layers or 2))

    def cli_cmd(self) -> None:
        """Run the command; exit code 1 where something is wrong with what it was given."""
        try:
            from distill.train import train  # noqa: PLC0415  torch and transformers take seconds to import

            train(self)
        except DraftwireError as error:
            print(f"draftwire distill train: {error}", file=sys.stderr)
            sys.exit(1)
        except KeyboardInterrupt:
            print(
                "draftwire distill train: stopped; the same command goes on from the last checkpoint", file=sys.stderr
            )
            sys.exit(130)
