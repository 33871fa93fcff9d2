"""Engines that remember, sessions by hand, and a drafter's loop without a thread."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from torch import Tensor

from draft_service.drafters.base import Drafted, Drafter, Key, Keyed
from draft_service.inbox import StepArrived, StreamClosed
from draft_service.loop import DraftLoop
from draft_service.metrics import Metrics
from draft_service.session import Session
from draftwire.engine.base import Chunk
from draftwire.engine.fake import FakeEngine
from draftwire.fake_model import FakeModel
from draftwire.metrics import new_registry
from draftwire.rpc.backlog import Backlog
from draftwire.session import Close, Commit, DrafterStep, Ended, Idle, Load, Open, VerifierStep
from draftwire.types import ModelInfo, SamplingParams, VerificationMode

GREEDY = SamplingParams(temperature=0.0)


class RecordingEngine(FakeEngine):
    """A fake engine that remembers the chunks of every forward."""

    def __init__(self, model: FakeModel | None = None, *, num_slots: int = 8, max_batched_tokens: int = 64) -> None:
        super().__init__(model or FakeModel(), num_slots=num_slots, max_batched_tokens=max_batched_tokens)
        self.forwards: list[list[Chunk]] = []

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        self.forwards.append(list(chunks))
        return super().forward(chunks)

    @property
    def chunk_sizes(self) -> list[list[int]]:
        """Tokens of each chunk of each forward so far."""
        return [[len(chunk.token_ids) for chunk in chunks] for chunks in self.forwards]


def opening(
    tokens: Sequence[int],
    window: int,
    *,
    session_id: int = 1,
    sampling: SamplingParams = GREEDY,
    mode: VerificationMode = VerificationMode.REJECTION,
    seed: int = 0,
) -> Open:
    """An Open with defaults that a reader can compute by hand: greedy."""
    return Open(session_id, tuple(tokens), sampling, mode, seed, choice=0, window=window)


def begin(drafter: Drafter, key: Key, opened: Open) -> Session:
    """Open a session on a drafter; it must find a place."""
    session = Session(opened, drafter.info)
    assert drafter.open(key, session)
    return session


def advance(drafter: Drafter, sessions: Sequence[Keyed]) -> list[Drafted] | None:
    """One step, its tokens appended to the sessions as the loop does."""
    drafts = drafter.step(sessions)
    for drafted in drafts or []:
        if drafted.tokens:
            dict(sessions)[drafted.key].draft(drafted.tokens)
    return drafts


def drawn(drafts: list[Drafted] | None) -> dict[Key, list[int]]:
    """The token ids of a step by session."""
    return {drafted.key: [token.token for token in drafted.tokens] for drafted in drafts or []}


def run_dry(drafter: Drafter, sessions: Sequence[Keyed]) -> None:
    """Step until there is nothing to do."""
    for _ in range(1000):
        if advance(drafter, sessions) is None:
            return
    raise AssertionError("the drafter never came to rest")


class HandLoop:
    """A DraftLoop driven by hand: post messages of a stream, run it to rest, read what was emitted."""

    def __init__(self, drafter: Drafter, *, max_sessions_per_stream: int = 8) -> None:
        self.registry = new_registry()
        self.emitted: list[tuple[int, DrafterStep]] = []
        self.loads: list[Load] = []
        self.loop = DraftLoop(
            drafter,
            self._emit,
            metrics=Metrics(self.registry),
            max_sessions_per_stream=max_sessions_per_stream,
            clock=lambda: 0.0,
        )

    def _emit(self, steps: Mapping[int, DrafterStep], load: Load) -> None:
        self.emitted += steps.items()
        self.loads.append(load)

    def say(self, stream: int, *entries: Open | Commit | Close, bad: tuple[Ended, ...] = ()) -> None:
        """A stream's message arrives."""
        step = VerifierStep(
            opens=tuple(entry for entry in entries if isinstance(entry, Open)),
            commits=tuple(entry for entry in entries if isinstance(entry, Commit)),
            closes=tuple(entry for entry in entries if isinstance(entry, Close)),
        )
        backlog = Backlog()
        backlog.add(1)
        self.loop.receive(StepArrived(stream, step, bad, 1, backlog))

    def lose(self, stream: int) -> None:
        """A stream is gone."""
        backlog = Backlog()
        backlog.add_end()
        self.loop.receive(StreamClosed(stream, backlog))

    def rest(self, most: int = 1000) -> None:
        """Step until every window is full."""
        for _ in range(most):
            if self.loop.step(0.0) is None:
                return
        raise AssertionError("the loop never came to rest")

    def tokens(self, stream: int, session_id: int = 1, path: int = 0) -> list[int]:
        """What was proposed on a path, in order; positions must be contiguous."""
        proposals = [
            proposal
            for emitted_to, step in self.emitted
            for proposal in step.proposals
            if (emitted_to, proposal.session_id, proposal.path) == (stream, session_id, path)
        ]
        for first, then in pairwise(proposals):
            assert then.position == first.position + len(first.tokens)
        return [token.token for proposal in proposals for token in proposal.tokens]

    def ended(self) -> list[tuple[int, Ended]]:
        """Every Ended so far, with its stream."""
        return [(stream, ended) for stream, step in self.emitted for ended in step.ended]

    def idle(self) -> list[tuple[int, Idle]]:
        """Every Idle so far, with its stream."""
        return [(stream, idle) for stream, step in self.emitted for idle in step.idle]


def ngram_info(max_model_len: int = 4096) -> ModelInfo:
    """What an n-gram drafter says of itself."""
    return ModelInfo("ngram", "", vocab_size=(1 << 32) - 1, max_model_len=max_model_len, engine="ngram")
