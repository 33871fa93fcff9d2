"""The flags of a draft worker; names as in vLLM."""

from typing import Literal, Self

from pydantic import Field, model_validator

from draftwire.config import ServiceConfig


class DraftConfig(ServiceConfig):
    """A draft worker: guesses the tokens that a target is about to produce."""

    port: int = Field(50051, ge=0, le=65535, description="gRPC port; 0 = any free one")
    metrics_port: int = Field(9051, ge=0, le=65535, description="Prometheus port; 0 = any free one")

    draft: str = Field("embedded-draft", description="local folder, hub id, embedded-draft or fake:...")
    served_model_name: str | None = Field(None, description="name that it goes by; default: the draft's last part")
    drafter: Literal["model", "ngram", "hybrid", "replay"] = Field(
        "hybrid",
        description="what guesses: model, ngram (repeats the text, needs no model), hybrid (ngram where it matches), "
        "replay (for benchmarks only: a recording at a set acceptance)",
    )

    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        "auto", description="arithmetic of the weights; auto = float32 on a CPU, bfloat16 on a GPU"
    )
    device: str = Field("cpu", description="cpu or cuda[:N]")
    threads: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="CPU threads of the engine; default: as many as --cpu-affinity, else torch's own",
    )
    cpu_affinity: tuple[int, ...] = Field((), description="CPU cores that the process may use; repeatable")
    max_model_len: int | None = Field(None, ge=2, description="longest prompt + output, tokens; default: the model's")
    max_num_seqs: int = Field(64, ge=1, le=1024, description="sessions that it can hold")
    max_num_batched_tokens: int = Field(512, ge=8, le=65536, description="most tokens in one step")

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

    @property
    def engine_threads(self) -> int | None:
        """CPU threads of the engine; None = torch's own choice."""
        return self.threads or len(self.cpu_affinity) or None

    @model_validator(mode="after")
    def _fields_fit(self) -> Self:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(f"--max-num-batched-tokens must be at least --max-num-seqs = {self.max_num_seqs}")
        if (self.drafter == "replay") != (self.replay_file is not None):
            raise ValueError("--replay-file and --drafter replay need each other")
        return self
