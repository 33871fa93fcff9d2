"""`draftwire distill evaluate`: its options. No torch here."""

import sys
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, Field, model_validator

from draftwire.cli.verbatim import VerbatimPath
from draftwire.errors import DraftwireError


class Evaluate(BaseModel):
    """Tell how often the target would accept a draft's guesses, and the speed to expect."""

    data: list[VerbatimPath] = Field([], description="held-out data set (draftwire distill collect); repeatable")
    workload: Literal["bench"] | None = Field(
        None, description="instead of --data: the prompts of draftwire bench, answered by the target now"
    )
    target: str = Field("embedded-target", description="local folder, hub id or embedded-target")
    draft: str = Field("embedded-draft", description="local folder, hub id or embedded-draft")
    drafter: Literal["model", "ngram", "hybrid"] = Field("hybrid", description="what guesses; ngram loads no draft")
    temperature: list[float] = Field([0.0, 0.7, 1.0], min_length=1, description="0 = greedy; repeatable")
    dtype: Literal["auto", "bfloat16", "float32"] = Field("auto", description="arithmetic of the weights")
    device: str = Field("cpu", description="cpu or cuda[:N]")
    max_model_len: int = Field(2048, ge=2, description="longer texts are cut, tokens")
    max_texts: int | None = Field(None, ge=1, description="of --data, at most so many texts, evenly spread")

    max_tokens: int = Field(128, ge=1, le=4096, description="of --workload: new tokens for each prompt")
    samples: int = Field(1, ge=1, le=100, description="of --workload: answers to each prompt above temperature 0")
    seed: int = Field(1, ge=0, lt=2**64, description="of --workload: what they are sampled by")

    num_speculative_tokens: int = Field(5, ge=1, le=8, description="K of the tables by kind of prompt")
    measure: bool = Field(False, description="start the services for a minute and measure step times")
    target_ms: float | None = Field(None, gt=0, description="instead: a target step without its tokens, ms")
    target_token_ms: float | None = Field(None, ge=0, description="and what each token in it adds, ms")
    draft_ms: float | None = Field(None, ge=0, description="and a draft step, ms")
    round_trip_ms: float = Field(0.0, ge=0, description="between the services, beside what was measured, ms")

    card: Path | None = Field(None, description="folder that gets the model card: README.md and acceptance.png")
    run: Path | None = Field(None, description="training run (draftwire distill train) whose curve the card shows")
    json_output: bool = Field(False, alias="json", description="end with one JSON object on a line of its own")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if bool(self.data) == bool(self.workload):
            raise ValueError("--data, --workload: name one of them")
        given = [self.target_ms, self.target_token_ms, self.draft_ms]
        if any(value is None for value in given) and any(value is not None for value in given):
            raise ValueError("--target-ms, --target-token-ms and --draft-ms need each other")
        if self.measure and self.target_ms is not None:
            raise ValueError("--measure: step times are given already (--target-ms)")
        if not all(0 <= value <= 100 for value in self.temperature):
            raise ValueError("--temperature: must be 0 to 100")
        return self

    def cli_cmd(self) -> None:
        """Run the command; exit code 1 where something is wrong with what it was given."""
        try:
            from distill.evaluate_command import run  # noqa: PLC0415  torch and transformers take seconds to import

            run(self)
        except DraftwireError as error:
            print(f"draftwire distill evaluate: {error}", file=sys.stderr)
            sys.exit(1)
