"""A vLLM request as the draft side sees it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from draftwire.types import GenerateRequest, SamplingParams, SpeculationStats, VerificationMode
from verify_service.generation import NO_SPECULATION, DraftLink
from verify_service.policy import Acceptance, Plan

#: vLLM is given no q, so it takes every guess for a point mass and accepts it with p(x). That is exact whatever the
#: guess is, and accepts most often if it is the draft's likeliest token: so drafts are asked for greedy ones.
GREEDY = SamplingParams(temperature=0.0)

#: The field of a request's `SamplingParams.extra_args` (`vllm_xargs` over HTTP) that limits K for this request.
LIMIT_ARGUMENT = "draftwire_num_speculative_tokens"

#: The field there that asks for what speculation did, and where that stands in an output's `kv_transfer_params`: the
#: only part of vLLM's outputs that a scheduler can put something into. Not for requests that use it themselves.
REPORT_ARGUMENT, REPORT_KEY = "draftwire_report", "draftwire"


@dataclass(slots=True, eq=False)
class Speculation:
    """`verify_service.generation.Answer` for a vLLM request; vLLM alone changes the request.

    Attributes:
        vllm_request: the request, vllm.v1.request.Request.
        request: what the draft is told of it.
        max_model_len: vLLM's longest sequence, tokens.
        acceptance: its measured rate.
        draft_model: whose the latest proposals are, for metrics; the session may have moved on meanwhile.
    """

    vllm_request: Any
    request: GenerateRequest
    max_model_len: int
    acceptance: Acceptance = field(default_factory=Acceptance)
    draft_model: str = ""
    seed: int = 0  # unused: a greedy draft draws nothing
    mode: VerificationMode = VerificationMode.REJECTION
    link: DraftLink | None = None
    draft_retry_at: float = 0.0
    draft_failures: int = 0
    plan: Plan = NO_SPECULATION
    ready_since: float = 0.0
    stats: SpeculationStats = field(default_factory=SpeculationStats)

    @property
    def tokens(self) -> Sequence[int]:
        """Prompt and committed output."""
        tokens: Sequence[int] = self.vllm_request.all_token_ids
        return tokens

    @property
    def limit(self) -> int:
        """Length at which the answer ends, tokens."""
        request = self.vllm_request
        return min(int(request.num_prompt_tokens + request.max_tokens), self.max_model_len)

    @property
    def missing(self) -> int:
        """Tokens that vLLM has still to run before it can predict: 1 in steady decoding, more in prefill and resume."""
        return int(self.vllm_request.num_tokens - self.vllm_request.num_computed_tokens)

    @property
    def reports(self) -> bool:
        """Whether the caller asked for what speculation did."""
        return REPORT_ARGUMENT in (self.vllm_request.sampling_params.extra_args or {})

    @property
    def speculates(self) -> bool:
        """Whether the caller allows speculation."""
        return self.request.num_speculative_tokens != 0
