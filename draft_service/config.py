"""The flags of a draft worker; names as in vLLM."""

from typing import Literal, Self

from pydantic import Field, model_validator

from draftwire.config import EngineConfig


class DraftConfig(EngineConfig):
    """A draft worker: guesses the tokens that a target is about to produce."""

    port: int = Field(50053, ge=0, le=65535, description="gRPC port; 0 = any free one")
    metrics_port: int = Field(9053, ge=0, le=65535, description="Prometheus port; 0 = any free one")

    draft: str = Field("embedded-draft", description="local folder, hub id, embedded-draft or fake:...")
    drafter: Literal["model", "ngram", "hybrid", "replay"] = Field(
        "hybrid",
        description="what guesses: model, ngram (repeats the text, needs no model), hybrid (ngram where it matches), "
        "replay (for benchmarks only: a recording at a set acceptance)",
    )

    max_num_seqs: int = Field(64, ge=1, le=1024, description="sessions that it can hold")

    max_streams: int = Field(64, ge=1, le=1024, description="verify workers that may be connected")
    max_sessions_per_stream: int | None = Field(
        None, ge=1, le=1024, description="sessions of one verify worker; default: --max-num-seqs"
    )
    stall_seconds: float = Field(
        10.0, gt=0, le=3600, description="a verify worker that reads nothing for so long is cut off"
    )

    replay_file: str | None = Field(
        None, description='for --drafter replay: JSON lines of {"prompt_token_ids": [..], "output_token_ids": [..]}'
    )
    acceptance: float = Field(
        0.8, ge=0, le=1, description="for --drafter replay: how often it proposes the recorded token"
    )

    @property
    def stream_sessions(self) -> int:
        """Sessions of one verify worker."""
        return self.max_sessions_per_stream or self.max_num_seqs

    @model_validator(mode="after")
    def _replay_is_complete(self) -> Self:
        if (self.drafter == "replay") != (self.replay_file is not None):
            raise ValueError("--replay-file and --drafter replay need each other")
        return self
