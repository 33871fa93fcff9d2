"""The flags of a verify worker; names as in vLLM."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from draftwire.config import Addresses, EngineConfig
from draftwire.types import MAX_PROPOSAL_TOKENS
from verify_service.policy import Schedule


class VerifyConfig(EngineConfig):
    """A verify worker: holds the target and produces exactly the target's tokens."""

    port: int = Field(50052, ge=0, le=65535, description="gRPC port; 0 = any free one")
    metrics_port: int = Field(9052, ge=0, le=65535, description="Prometheus port; 0 = any free one")

    target: str = Field("embedded-target", description="local folder, hub id, embedded-target or fake:...")
    drafts: Addresses = Field((), description="draft workers, host:port,host:port; none = plain decoding")

    backend: Literal["native", "vllm"] = Field(
        "native", description="what runs the target; vllm (paged attention, several machines) must be installed"
    )
    vllm_args: dict[str, Any] = Field(
        {}, description='for --backend vllm: more arguments of its engine, as JSON: {"gpu_memory_utilization": 0.8}'
    )
    tensor_parallel_size: int = Field(
        1, ge=1, le=64, description="processes that share the target, each with a part of every layer"
    )
    batch_invariant: bool = Field(False, description="keep a row's logits bit-identical whatever shares its batch")
    max_waiting: int = Field(256, ge=0, le=65536, description="requests that may wait for a slot; more are refused")

    num_speculative_tokens: int = Field(5, ge=0, le=32, description="K: most proposals tested in one step; 0 = plain")
    draft_window: int | None = Field(
        None, ge=1, le=MAX_PROPOSAL_TOKENS, description="how far past the last commit a draft may run; default 2K + 1"
    )
    schedule: Schedule = Field(
        "auto", description="when a step starts: auto (goodput), eager (never wait), lockstep (wait for K)"
    )

    max_pending_tokens: int = Field(
        256, ge=1, le=65536, description="tokens that a caller may lag before its session pauses"
    )
    stall_seconds: float = Field(30.0, gt=0, le=3600, description="a caller that reads nothing for so long is cut off")

    collect_prompts: Path | None = Field(
        None,
        description="folder that keeps a sample of prompts and answers, to train drafts on; default: nothing is kept",
    )
    collect_fraction: float = Field(0.1, gt=0, le=1, description="share of the answers that --collect-prompts keeps")
    collect_max_mib: int = Field(256, ge=1, le=1 << 20, description="most that --collect-prompts keeps, MiB")

    @model_validator(mode="after")
    def _arguments_have_a_taker(self) -> Self:
        if self.vllm_args and self.backend != "vllm":
            raise ValueError("--vllm-args needs --backend vllm")
        if self.collect_prompts and self.backend != "native":
            raise ValueError("--collect-prompts needs --backend native")
        return self

    @property
    def window(self) -> int:
        """The credit that drafts get."""
        if self.draft_window is not None:
            return self.draft_window
        if self.schedule == "lockstep":
            return self.num_speculative_tokens
        return min(2 * self.num_speculative_tokens + 1, MAX_PROPOSAL_TOKENS)
