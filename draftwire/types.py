"""The words that every package shares: plain values, no torch, no proto.

Position always means the 0-based index in prompt + output. p is the target's distribution, q the draft's.
"""

import enum
from dataclasses import dataclass, field

#: The integer weights of a draft distribution sum to exactly this (q is what was drawn from).
WEIGHT_TOTAL = 1 << 16

#: Most tokens in one proposal message, and so the largest window and number of speculative tokens.
MAX_PROPOSAL_TOKENS = 64

#: Most entries of a draft distribution on the wire.
MAX_SUPPORT = 64


class VerificationMode(enum.Enum):
    """How the target verifies proposals; both give exactly the target's distribution."""

    REJECTION = "rejection"
    COUPLED = "coupled"


class FinishReason(enum.Enum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"


class EndReason(enum.Enum):
    """Why a draft worker gave a session up."""

    INVALID = "invalid"
    OVERLOADED = "overloaded"
    MAX_MODEL_LEN = "max_model_len"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What turns logits into the distribution that a token is drawn from, applied in this order.

    Attributes:
        temperature: divides the logits; 0 = greedy. 0 to 100.
        top_k: keep the k likeliest; 0 = all.
        top_p: keep the smallest set of likeliest tokens that reaches this probability; (0, 1].
        min_p: keep tokens at least this times as likely as the likeliest; [0, 1].
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


@dataclass(frozen=True, slots=True)
class Support:
    """A draft distribution q: q(ids[i]) = weights[i] / WEIGHT_TOTAL, zero elsewhere.

    ids are distinct; weights are >= 1 and sum to WEIGHT_TOTAL; both have 1 to MAX_SUPPORT entries.
    """

    ids: tuple[int, ...]
    weights: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DraftToken:
    """One guess: the token and the q that it was drawn from (None = a point mass on it)."""

    token: int
    q: Support | None = None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model that a worker serves; fields as in sampling.proto."""

    name: str
    vocab_fingerprint: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...] = ()
    engine: str = "native"
    dtype: str = "float32"


@dataclass(slots=True)
class SpeculationStats:
    """What speculation did for one answer (docs/protocol.md, "Words with one meaning")."""

    steps: int = 0
    committed_tokens: int = 0
    tested_tokens: int = 0
    accepted_tokens: int = 0
    late_bound_tokens: int = 0
    untested_tokens: int = 0
    stale_tokens: int = 0
    reassignments: int = 0

    def add(self, other: "SpeculationStats") -> None:
        """Add another's counts to these."""
        self.steps += other.steps
        self.committed_tokens += other.committed_tokens
        self.tested_tokens += other.tested_tokens
        self.accepted_tokens += other.accepted_tokens
        self.late_bound_tokens += other.late_bound_tokens
        self.untested_tokens += other.untested_tokens
        self.stale_tokens += other.stale_tokens
        self.reassignments += other.reassignments

    def copy(self) -> "SpeculationStats":
        """The counts as they are now."""
        snapshot = SpeculationStats()
        snapshot.add(self)
        return snapshot

    @property
    def acceptance(self) -> float:
        """accepted / tested; 0 where nothing was tested."""
        return self.accepted_tokens / self.tested_tokens if self.tested_tokens else 0.0

    @property
    def tokens_per_step(self) -> float:
        """committed / steps; 0 before the first step."""
        return self.committed_tokens / self.steps if self.steps else 0.0


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens counted for the caller."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One answer to one prompt, as VerifyService.Generate takes it (fields as in verify_service.proto).

    seed None = rejection mode with fresh randomness; set = coupled mode, reproducible.
    num_speculative_tokens None = the worker's own; 0 = plain decoding.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    committed_token_ids: tuple[int, ...] = ()
    max_tokens: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int | None = None
    choice: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    num_speculative_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """First event of an answer: the session was admitted."""

    instance_id: str
    request_id: str


@dataclass(frozen=True, slots=True)
class Committed:
    """Tokens became final; position is where token_ids[0] stands, token_ids is never empty.

    speculation is what speculation did in this call so far (a copy), cached_tokens as in Usage.
    """

    position: int
    token_ids: tuple[int, ...]
    speculation: SpeculationStats = field(default_factory=SpeculationStats)
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """Last event of an answer."""

    reason: FinishReason
    usage: Usage
    speculation: SpeculationStats
