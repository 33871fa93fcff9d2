"""The draft worker's engine loop: every session of every stream, on the one thread that owns the engine.

Between engine steps it takes what the verify workers said (opens, commits, closes); a step then drafts one token, or
an n-gram's run of them, for every session with room, and what it drew leaves at once, whatever it is. Nothing here
waits for a verdict: a session drafts on until its window is full. One that breaks the protocol is ended, it alone.
"""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from draft_service.drafters.base import Drafted, Drafter, Key
from draft_service.inbox import DrainBegan, Event, StepArrived, StreamClosed
from draft_service.metrics import Metrics
from draft_service.session import Session
from draftwire.errors import EngineError, ProtocolViolation
from draftwire.session import Commit, DrafterStep, Ended, Idle, Load, Open, Opened, Proposal, VerifierStep
from draftwire.types import EndReason

#: Takes what one step has to say to each stream (by stream id), and the load after it; called on the engine's thread.
Emit = Callable[[Mapping[int, DrafterStep], Load], None]


@dataclass(slots=True)
class _Stream:
    """A stream's number of sessions, and what it is to be told next."""

    sessions: int = 0
    opened: list[Opened] = field(default_factory=list)
    proposals: list[Proposal] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    idle: list[Idle] = field(default_factory=list)

    @property
    def has_news(self) -> bool:
        return bool(self.opened or self.proposals or self.ended or self.idle)

    def take(self) -> DrafterStep:
        step = DrafterStep(tuple(self.opened), tuple(self.proposals), tuple(self.ended), tuple(self.idle))
        self.opened, self.proposals, self.ended, self.idle = [], [], [], []
        return step


class DraftLoop:
    """`EngineLoop` that drafts.

    Args:
        drafter: guesses; owned by the calling thread.
        emit: gets what each step has to say.
        metrics: counted into.
        max_sessions_per_stream: most sessions that one verify worker may have open.
        clock: seconds, for the length of a step.
    """

    def __init__(
        self,
        drafter: Drafter,
        emit: Emit,
        *,
        metrics: Metrics,
        max_sessions_per_stream: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._drafter = drafter
        self._emit = emit
        self._metrics = metrics
        self._max_sessions_per_stream = max_sessions_per_stream
        self._clock = clock
        self._length_limit = f"the draft's max_model_len is {drafter.info.max_model_len}"
        self._sessions: dict[Key, Session] = {}
        self._streams: defaultdict[int, _Stream] = defaultdict(_Stream)
        self._draining = False
        self._load_changed = False
        self._idle_since: float | None = None
        self._step_seconds: deque[float] = deque(maxlen=32)

    def receive(self, event: Event) -> None:
        """Take a verify worker's step, the end of its stream, or the beginning of the drain."""
        match event:
            case StepArrived():
                event.backlog.remove(event.size)
                self._take(event.stream, event.step, event.bad)
            case StreamClosed():
                event.backlog.remove(0)
                for key in [key for key in self._sessions if key[0] == event.stream]:
                    self._forget(key)
                self._streams.pop(event.stream, None)
            case DrainBegan():
                self._draining = self._load_changed = True

    def _take(self, stream: int, step: VerifierStep, bad: Iterable[Ended]) -> None:
        for close in step.closes:
            self._forget((stream, close.session_id))
        for opening in step.opens:
            self._open(stream, opening)
        for commit in step.commits:
            self._commit((stream, commit.session_id), commit)
        for ended in bad:
            self._end((stream, ended.session_id), ended.reason, ended.detail)

    def step(self, now: float) -> float | None:
        """One engine step over all sessions; None once every window is full or there is nothing to guess."""
        self._flush()  # what `receive` had to say does not wait for a forward
        if self._idle_since is not None:
            self._metrics.starved_seconds.inc(now - self._idle_since)
            self._idle_since = None
        started = self._clock()
        try:
            drafts = self._drafter.step(list(self._sessions.items()))
        except EngineError as error:
            self._fail(error)
            raise
        if drafts is None:
            self._say_idle()
            self._idle_since = now if self._sessions else None
            return None
        self._measure(drafts, self._clock() - started)
        for drafted in drafts:
            self._propose(drafted)
        self._flush()
        return 0.0

    def _measure(self, drafts: Sequence[Drafted], seconds: float) -> None:
        tokens: Counter[str] = Counter()
        for drafted in drafts:
            tokens[drafted.source] += len(drafted.tokens)
        for source, count in tokens.items():
            self._metrics.proposed_tokens.labels(source).inc(count)
        if tokens.keys() == {"ngram"}:
            return  # a lookup, not an engine step
        self._step_seconds.append(seconds)
        self._metrics.step_seconds.observe(seconds)
        self._metrics.batch_size.observe(len(drafts))

    def _open(self, stream: int, opening: Open) -> None:
        key = (stream, opening.session_id)
        if key in self._sessions:
            self._end(key, EndReason.INVALID, "session_id: is open already")
        elif self._draining:
            self._end(key, EndReason.OVERLOADED, "the worker drains")
        elif self._streams[stream].sessions >= self._max_sessions_per_stream:
            self._end(key, EndReason.OVERLOADED, f"the stream has {self._max_sessions_per_stream} sessions already")
        else:
            self._admit(key, opening)

    def _admit(self, key: Key, opening: Open) -> None:
        try:
            session = Session(opening, self._drafter.info)
        except ProtocolViolation as error:
            self._end(key, EndReason.INVALID, str(error))
            return
        if session.is_at_limit:
            self._end(key, EndReason.MAX_MODEL_LEN, self._length_limit)
        elif not self._drafter.open(key, session):
            self._end(key, EndReason.OVERLOADED, f"all {self._drafter.max_sessions} places are taken")
        else:
            self._sessions[key] = session
            self._streams[key[0]].sessions += 1
            self._load_changed = True

    def _commit(self, key: Key, commit: Commit) -> None:
        session = self._sessions.get(key)
        if session is None:
            return  # ended or closed here while the commit was on its way
        try:
            kept = session.receive(commit)
        except ProtocolViolation as error:
            self._end(key, EndReason.INVALID, str(error))
            return
        self._drafter.truncate(key, kept)
        if session.is_at_limit:
            self._end(key, EndReason.MAX_MODEL_LEN, self._length_limit)

    def _propose(self, drafted: Drafted) -> None:
        session, outgoing = self._sessions[drafted.key], self._streams[drafted.key[0]]
        if not session.opened:
            session.opened = True
            outgoing.opened.append(Opened(drafted.key[1]))
        if drafted.tokens:
            outgoing.proposals.append(session.draft(drafted.tokens))

    def _say_idle(self) -> None:
        """Tell of each session with room that it waits for a commit; without this it would look dead."""
        for (stream, session_id), session in self._sessions.items():
            if session.told_idle < session.number and session.room:
                session.told_idle = session.number
                self._streams[stream].idle.append(Idle(session_id, session.number))
        self._flush()

    def _end(self, key: Key, reason: EndReason, detail: str) -> None:
        """Give a session up and say so."""
        self._forget(key)
        self._streams[key[0]].ended.append(Ended(key[1], reason, detail))
        self._metrics.ended_sessions.labels(reason.value).inc()

    def _forget(self, key: Key) -> None:
        if self._sessions.pop(key, None) is not None:
            self._drafter.close(key)
            self._streams[key[0]].sessions -= 1
            self._load_changed = True

    def _fail(self, error: EngineError) -> None:
        """Tell every session that the engine failed."""
        for key in list(self._sessions):
            self._end(key, EndReason.INTERNAL, str(error))
        self._flush()

    def _flush(self) -> None:
        """Emit what there is to say, one message a stream."""
        steps = {stream: state.take() for stream, state in self._streams.items() if state.has_news}
        if steps or self._load_changed:
            self._load_changed = False
            self._emit(steps, self._load())

    def _load(self) -> Load:
        seconds = median(self._step_seconds) if self._step_seconds else 0.0
        return Load(len(self._sessions), self._drafter.max_sessions, seconds)
