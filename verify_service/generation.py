"""One answer in progress, as the engine's thread sees it: its tokens, its place in the KV cache, its draft."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from draftwire.session import VerifierSession
from draftwire.types import FinishReason, GenerateRequest, ModelInfo, SpeculationStats, Usage, VerificationMode
from verify_service.output import Output
from verify_service.policy import Acceptance, Plan

#: How far back a commit may lie that a path's first proposal is timed by.
TIMED_COMMITS = 64

NO_SPECULATION = Plan(0, 0, 0.0)


@dataclass(slots=True)
class DraftLink:
    """A generation's session on one draft worker.

    Attributes:
        worker: id of the connection (draft_pool.DraftWorker.id).
        model: the draft's name, for metrics.
        session: the protocol's state.
        heard_at: since when the draft owes a sign of life: it said something, was opened or got its credit back then.
            time.monotonic(), seconds.
        steps_unheard: target steps since then.
        fruitless_waits: how often in a row the session waited its tau and nothing came.
        idle: number of the last commit after which the draft said that it has no further guess; -1 = none.
        commits: (number, end, time) of the latest, by which the first proposal of a path is timed.
    """

    worker: int
    model: str
    session: VerifierSession
    heard_at: float
    steps_unheard: int = 0
    fruitless_waits: int = 0
    idle: int = -1
    commits: deque[tuple[int, int, float]] = field(default_factory=lambda: deque(maxlen=TIMED_COMMITS))


class Answer(Protocol):
    """An answer in progress as its draft side sees it: a `Generation`, or a request of another engine.

    Attributes as in `Generation`.
    """

    link: DraftLink | None
    draft_retry_at: float
    draft_failures: int
    plan: Plan
    ready_since: float
    stats: SpeculationStats

    @property
    def request(self) -> GenerateRequest: ...
    @property
    def seed(self) -> int: ...
    @property
    def mode(self) -> VerificationMode: ...
    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def limit(self) -> int: ...
    @property
    def missing(self) -> int: ...
    @property
    def speculates(self) -> bool: ...


@dataclass(slots=True, eq=False)
class Generation:
    """One answer in progress.

    Attributes:
        request: what was asked.
        output: where its events go.
        seed, mode: key of its randomness, and how proposals are verified.
        tokens: prompt and committed output.
        limit: length of tokens at which the answer ends.
        stop_ids: ids that end it.
        slot: KV slot of the engine; None while it waits for one.
        computed: how many of tokens have keys and values in the slot.
        cached: prompt tokens that were reused.
        link: its draft session, if it has one.
        draft_retry_at: when a draft may be looked for again.
        draft_failures: sessions that a draft worker or a broken rule ended.
        plan: how many proposals to wait for and to test.
        ready_since: since when it could have joined a step.
        over: finished, cancelled or failed.
    """

    request: GenerateRequest
    output: Output
    seed: int
    mode: VerificationMode
    limit: int
    stop_ids: frozenset[int]
    acceptance: Acceptance
    tokens: list[int] = field(default_factory=list)
    slot: int | None = None
    computed: int = 0
    cached: int = 0
    link: DraftLink | None = None
    draft_retry_at: float = 0.0
    draft_failures: int = 0
    plan: Plan = NO_SPECULATION
    ready_since: float = 0.0
    over: bool = False
    stats: SpeculationStats = field(default_factory=SpeculationStats)

    @classmethod
    def of(
        cls, request: GenerateRequest, model: ModelInfo, output: Output, fresh_seed: int, prior: float
    ) -> "Generation":
        """A new generation for a validated request; `fresh_seed` keys it if the caller gave no seed."""
        prompt = len(request.prompt_token_ids)
        most = request.max_tokens if request.max_tokens is not None else model.max_model_len - prompt
        own_stops = () if request.ignore_eos else model.eos_token_ids
        return cls(
            request=request,
            output=output,
            seed=fresh_seed if request.seed is None else request.seed,
            mode=VerificationMode.REJECTION if request.seed is None else VerificationMode.COUPLED,
            limit=prompt + most,
            stop_ids=frozenset((*own_stops, *request.stop_token_ids)),
            acceptance=Acceptance(prior),
            tokens=[*request.prompt_token_ids, *request.committed_token_ids],
        )

    @property
    def missing(self) -> int:
        """Tokens that the engine has still to run before it can predict: 1 in steady decoding, more during prefill."""
        return len(self.tokens) - self.computed

    @property
    def speculates(self) -> bool:
        """Whether the caller allows speculation."""
        return self.request.num_speculative_tokens != 0

    def append(self, token_ids: tuple[int, ...]) -> tuple[tuple[int, ...], FinishReason | None]:
        """Add verified tokens up to and including the first that ends the answer.

        Returns (the tokens that count, why the answer is over or None).
        """
        for count, token in enumerate(token_ids, 1):
            if token in self.stop_ids:
                self.tokens += token_ids[:count]
                return token_ids[:count], FinishReason.STOP
        self.tokens += token_ids
        return token_ids, FinishReason.LENGTH if len(self.tokens) >= self.limit else None

    def usage(self) -> Usage:
        """Tokens counted for the caller."""
        prompt = len(self.request.prompt_token_ids)
        return Usage(prompt, len(self.tokens) - prompt, self.cached)
