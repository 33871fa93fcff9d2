"""`draftwire distill collect`: its options. No torch here."""

import sys
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, model_validator

from draftwire.errors import DraftwireError

_Temperature = Annotated[float, Field(gt=0, le=100)]


class Collect(BaseModel):
    """Let a target write replies and keep what it thought. Goes on by itself where a killed run stopped."""

    output: Path = Field(description="folder of the data set")
    target: str = Field("embedded-target", description="local folder, hub id or embedded-target")
    prompts: Path | None = Field(
        None, description='prompts: a file with one a line, or of JSON lines with "prompt"; or what a worker collected'
    )
    corpus: Path | None = Field(
        None,
        description='text to judge, not to sample: one a line, or JSON lines with "text", or "prompt" and "reply"; '
        "or what a worker collected (--collect-prompts)",
    )
    tokens: int = Field(1_000_000, ge=1, description="supervised tokens to collect, or fewer if the file has no more")
    self_prompts: float = Field(
        0.25, ge=0, le=1, description="share of prompts that the target makes up (no --prompts)"
    )
    max_new_tokens: int = Field(256, ge=1, le=32768, description="longest reply")
    max_prompt_tokens: int = Field(
        512, ge=1, le=32768, description="longest prompt; a corpus is cut at what the target takes"
    )
    samplings: dict[str, float] = Field(
        {"0": 0.35, "0.7": 0.35, "1": 0.3},
        description="temperatures of the replies and their shares, as 0=0.35,0.7=0.35,1=0.3; 0 = greedy",
    )
    top_k: int = Field(32, ge=1, le=1024, description="likeliest tokens kept at each position")
    temperatures: list[_Temperature] = Field(
        [1.0, 1.5], min_length=1, description="at which the probability of all other tokens is kept"
    )
    batch_size: int = Field(256, ge=1, le=8192, description="replies written side by side")
    shard_sequences: int = Field(
        1024, ge=1, le=100_000, description="sequences of a shard, which a killed run may lose"
    )
    seed: int = Field(0, ge=0, lt=2**32, description="decides prompts and draws; odd and even seeds share no prompt")
    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        "auto", description="arithmetic; auto = bfloat16 where the hardware has it"
    )
    device: str = Field("cpu", description="where the target runs: cpu or cuda")
    threads: int | None = Field(None, ge=1, le=1024, description="CPU threads; default: torch's")
    max_disk_gib: float = Field(8.0, gt=0, description="most that the data set may occupy, GiB")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.prompts and self.corpus:
            raise ValueError("--prompts and --corpus: name one of them")
        try:
            shares = {float(temperature): share for temperature, share in self.samplings.items()}
        except ValueError:
            raise ValueError("--samplings: must be temperature=share,..., such as 0=0.5,1=0.5") from None
        if not shares or any(not 0 <= t <= 100 for t in shares) or any(not 0 < s <= 1 for s in shares.values()):
            raise ValueError("--samplings: temperatures must be 0 to 100 and shares above 0, at most 1")
        if abs(sum(shares.values()) - 1) > 1e-6:
            raise ValueError(f"--samplings: shares must sum to 1 (got {sum(shares.values()):g})")
        if len(set(self.temperatures)) < len(self.temperatures):
            raise ValueError("--temperatures: must be distinct")
        return self

    def cli_cmd(self) -> None:
        """Run the command; exit code 1 where it cannot go on, 130 where it was interrupted."""
        from distill.collect import collect  # noqa: PLC0415  loads torch

        try:
            collect(self)
        except DraftwireError as error:
            print(f"draftwire distill collect: {error}", file=sys.stderr)
            sys.exit(1)
        except KeyboardInterrupt:
            print("draftwire distill collect: interrupted; the same command goes on", file=sys.stderr)
            sys.exit(130)
