"""The verify worker's engine loop: admit, schedule, run, verify, commit. One thread owns everything in it.

A step is: hand out slots; choose who takes part (scheduler); one ragged forward (engine); look once more at what has
arrived, so that a proposal for a bonus position can be tested in place of a free draw; verify (sampling); commit to the
drafts, then to the callers.
"""

import logging
import time
from collections import deque
from collections.abc import Callable

from draftwire.engine.base import Engine
from draftwire.sampling import SessionRows, Verdict, verify
from draftwire.types import Committed, Finished, FinishReason, ModelInfo, SpeculationStats, Started
from verify_service.drafts import Drafts
from verify_service.events import Cancel, DraftDown, DraftSaid, DraftUp, Event, Submit, Wake
from verify_service.generation import Generation
from verify_service.metrics import VerifyMetrics
from verify_service.output import Mailman
from verify_service.policy import Planner, StepClock
from verify_service.scheduler import Work, schedule, waited_in_vain

logger = logging.getLogger(__name__)

#: A step with more tokens than this prefills; it says nothing about the cost of verification.
DECODE_TOKENS = 128
#: A generation's plan is made when it gets a draft worker, and anew after so many of its steps.
REPLAN_STEPS = 8


class VerifyLoop:
    """`EngineLoop` of the verify worker.

    Args:
        instance_id: this process.
        poll: gives this loop what has arrived meanwhile, without waiting (EngineThread.drain_into).
        monotonic: seconds, as `step` is given them.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        drafts: Drafts,
        planner: Planner,
        clock: StepClock,
        mailman: Mailman,
        metrics: VerifyMetrics,
        instance_id: str,
        poll: Callable[["VerifyLoop"], object],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._drafts = drafts
        self._planner = planner
        self._clock = clock
        self._mailman = mailman
        self._metrics = metrics
        self._instance_id = instance_id
        self._poll = poll
        self._monotonic = monotonic
        self._waiting: deque[Generation] = deque()
        self._running: list[Generation] = []
        self._acceptance = 0.5  # of the whole worker: where a new generation starts

    def receive(self, event: Event) -> None:
        """Take one event."""
        match event:
            case Submit(generation):
                self._waiting.append(generation)
            case Cancel(generation):
                self._cancel(generation)
            case DraftSaid():
                event.backlog.remove(event.size)
                self._drafts.receive(event.worker_id, event.message, event.at)
            case DraftUp(worker):
                self._drafts.worker_up(worker)
            case DraftDown(worker_id):
                self._drafts.worker_down(worker_id, self._monotonic())
            case Wake():
                pass

    def step(self, now: float) -> float | None:
        """One step, if anybody is ready."""
        self._admit(now)
        able = [generation for generation in self._running if not generation.output.full]
        for generation in able:
            self._drafts.watch(generation, now)
            if self._drafts.supply(generation, now):
                self._replan(generation)
        work, wait = schedule(able, now, self._engine.max_batched_tokens)
        if work:
            self._note_fruitless_waits(work, now)
            self._run(work)
        self._drafts.flush()
        self._mailman.deliver()
        return wait

    def _admit(self, now: float) -> None:
        while self._waiting:
            generation = self._waiting[0]
            place = self._engine.acquire(generation.tokens)
            if place is None:
                break
            self._waiting.popleft()
            generation.slot, generation.cached = place
            generation.computed = generation.cached
            generation.ready_since = now
            self._running.append(generation)
            self._metrics.cached.inc(generation.cached)
            self._mailman.post(generation.output, Started(self._instance_id, generation.request.request_id))
        self._count()

    def _note_fruitless_waits(self, work: list[Work], now: float) -> None:
        for piece in work:
            if waited_in_vain(piece.generation, now):
                self._drafts.let_down(piece.generation)

    def _run(self, work: list[Work]) -> None:
        started = self._monotonic()
        logits = self._engine.forward([piece.chunk for piece in work])
        self._poll(self)
        rows = [(piece, _rows(piece)) for piece in work if piece.chunk.num_logits]
        verdicts = verify(logits, [row for _, row in rows]) if rows else []
        now = self._monotonic()
        for piece in work:
            piece.generation.computed = piece.chunk.start + len(piece.chunk.token_ids) - len(piece.proposals)
        total = SpeculationStats()
        for (piece, row), verdict in zip(rows, verdicts, strict=True):
            if not piece.generation.over:
                total.add(self._commit(piece, row, verdict, now))
        self._drafts.flush()
        self._mailman.deliver()
        self._metrics.count(total)
        self._account(work, now - started)

    def _commit(self, piece: Work, row: SessionRows, verdict: Verdict, now: float) -> SpeculationStats:
        """Make one session's verdict final; returns what speculation did for it in this step."""
        generation = piece.generation
        position = len(generation.tokens)
        token_ids, reason = generation.append(verdict.token_ids)
        # The last committed token has no keys yet; all before it were in the chunk.
        generation.computed = len(generation.tokens) - 1
        outcome = _outcome(piece, row, verdict, len(token_ids))
        generation.stats.add(outcome)
        self._learn(piece, outcome)
        event = Committed(position, token_ids, generation.stats.copy(), generation.cached)
        self._mailman.post(generation.output, event)
        if reason is not None:
            self._finish(generation, reason)
            return outcome
        if generation.link and generation.stats.steps % REPLAN_STEPS == 0:
            self._replan(generation)
        self._drafts.commit(generation, token_ids, now)  # with the new plan's credit
        generation.ready_since = now
        return outcome

    def _learn(self, piece: Work, outcome: SpeculationStats) -> None:
        """What the policy goes by."""
        if piece.link and outcome.tested_tokens:
            self._metrics.tested(piece.link.model, outcome.accepted_tokens, outcome.tested_tokens)
            acceptance = piece.generation.acceptance
            acceptance.saw(outcome.accepted_tokens, outcome.tested_tokens)
            self._acceptance += 0.02 * (acceptance.rate - self._acceptance)

    def _account(self, work: list[Work], seconds: float) -> None:
        tokens = sum(len(piece.chunk.token_ids) for piece in work)
        self._metrics.steps.inc()
        self._metrics.batch_tokens.observe(tokens)
        self._metrics.prefilled.inc(tokens - sum(1 + len(piece.proposals) for piece in work if piece.chunk.num_logits))
        if any(piece.chunk.num_logits for piece in work):
            self._metrics.verification_latency.observe(seconds)
        if tokens <= DECODE_TOKENS:
            self._clock.saw_verify(tokens, seconds)

    def _replan(self, generation: Generation) -> None:
        assert generation.link is not None
        worker = generation.link.worker
        generation.plan = self._planner.plan(
            generation.acceptance.rate,
            generation.request.num_speculative_tokens,
            max(1, len(self._running)),
            generation.stats.steps,
            worker,
        )
        self._metrics.show_plan(generation.plan, self._clock.times(worker))

    def _finish(self, generation: Generation, reason: FinishReason) -> None:
        self._mailman.post(generation.output, Finished(reason, generation.usage(), generation.stats.copy()))
        self._release(generation, reason.value)

    def _cancel(self, generation: Generation) -> None:
        if generation.over:
            return
        if generation in self._waiting:
            self._waiting.remove(generation)
            generation.over = True
            self._metrics.answers.labels("cancelled").inc()
            self._count()
        else:
            self._release(generation, "cancelled")

    def _release(self, generation: Generation, outcome: str) -> None:
        """The answer is over: its slot and its draft session go."""
        assert generation.slot is not None
        generation.over = True
        self._drafts.drop(generation)
        self._engine.release(generation.slot)
        self._running.remove(generation)
        self._metrics.answers.labels(outcome).inc()
        self._count()

    def _count(self) -> None:
        self._metrics.running.set(len(self._running))
        self._metrics.waiting.set(len(self._waiting))

    @property
    def model(self) -> ModelInfo:
        """The target."""
        return self._engine.info

    @property
    def acceptance(self) -> float:
        """What a new generation starts from; may be read on any thread."""
        return self._acceptance


def _outcome(piece: Work, row: SessionRows, verdict: Verdict, committed: int) -> SpeculationStats:
    """What speculation did in one step of one session; proposals behind the end of the answer were never tested."""
    accepted, tested = min(verdict.accepted, committed), min(verdict.tested, committed)
    late = len(row.proposals) - len(piece.proposals)
    late_tested = int(late > 0 and tested == len(row.proposals))
    return SpeculationStats(
        steps=1,
        committed_tokens=committed,
        tested_tokens=tested,
        accepted_tokens=accepted,
        late_bound_tokens=late_tested,
        untested_tokens=len(row.proposals) - tested - (late - late_tested),
    )


def _rows(piece: Work) -> SessionRows:
    """What verification needs of a session, with a proposal for the bonus position that is there now (late binding)."""
    generation, proposals = piece.generation, piece.proposals
    link = generation.link
    if link and not generation.over and generation.plan.num_speculative_tokens:
        now_pending = link.session.pending(len(proposals) + 1)
        if now_pending[: len(proposals)] == proposals:
            proposals = now_pending
    return SessionRows(
        num_rows=len(piece.proposals) + 1,
        proposals=proposals,
        sampling=generation.request.sampling,
        mode=generation.mode,
        seed=generation.seed,
        choice=generation.request.choice,
        position=len(generation.tokens),
    )
