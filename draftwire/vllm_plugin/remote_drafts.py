"""The draft side of vLLM's scheduler: sessions, plans and waiting, from the verify worker's own parts.

Two threads meet here. The draft clients' thread brings what draft workers say as soon as it arrives, also while vLLM
computes or idles; the engine's thread asks for proposals before a step and reports what the step committed. A condition
guards what they share, and the engine waits on it, never longer than its plan says, when every answer is better off
with proposals that are on their way. Nothing here can change the output, and nothing here imports vLLM.
"""

import logging
import random
import secrets
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry, Counter

from draftwire.service import instance_id
from draftwire.session import PROTOCOL_VERSION, Hello
from draftwire.types import ModelInfo, SpeculationStats
from draftwire.vllm_plugin.config import PluginConfig
from draftwire.vllm_plugin.draft_thread import DraftThread
from draftwire.vllm_plugin.speculation import Speculation
from verify_service.drafts import Drafts
from verify_service.events import DraftDown, DraftSaid, DraftUp, Event
from verify_service.loop import DECODE_TOKENS, REPLAN_STEPS
from verify_service.metrics import VerifyMetrics
from verify_service.policy import Acceptance, Planner, StepClock
from verify_service.scheduler import patience, testable, waited_in_vain

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step did for one answer.

    Attributes:
        speculation: the answer.
        token_ids: what became final; may be empty.
        offered: proposals in the step.
        accepted: how many of them vLLM accepted.
        over: the answer has ended.
    """

    speculation: Speculation
    token_ids: tuple[int, ...]
    offered: int
    accepted: int
    over: bool

    def stats(self) -> SpeculationStats:
        """In the words of docs/protocol.md: proposals behind the end of the answer or a rejection were not tested."""
        committed = len(self.token_ids)
        tested = min(self.accepted + 1, self.offered, committed)
        return SpeculationStats(
            steps=1,
            committed_tokens=committed,
            tested_tokens=tested,
            accepted_tokens=min(self.accepted, committed),
            untested_tokens=self.offered - tested,
        )


class RemoteDrafts:
    """Every method but those that say otherwise is called on the engine's thread.

    Args:
        model: the target.
        num_speculative_tokens: K, vLLM's.
        max_sessions: answers that vLLM runs at once, told to the draft workers.
        registry: where the plug-in's own metrics go.
    """

    def __init__(
        self,
        config: PluginConfig,
        model: ModelInfo,
        *,
        num_speculative_tokens: int,
        max_sessions: int,
        registry: CollectorRegistry,
    ) -> None:
        self._max_wait = config.max_wait
        self._changed = threading.Condition()
        self._clock = StepClock()
        self._planner = Planner(config.schedule, num_speculative_tokens, self._clock)
        self._metrics = VerifyMetrics(registry)
        self._held = Counter("draftwire_vllm_held_steps_total", "Steps put off for proposals.", registry=registry)
        self._held_seconds = Counter(
            "draftwire_vllm_held_seconds_total", "How long steps were put off for proposals.", registry=registry
        )
        hello = Hello(PROTOCOL_VERSION, instance_id("vllm"), model, max_sessions)
        self._thread = DraftThread(config.drafts, hello, self._take, config.credentials())
        self._drafts = Drafts(
            model=model,
            window=config.window(num_speculative_tokens),
            send=self._thread.send,
            clock=self._clock,
            metrics=self._metrics,
            rng=random.Random(secrets.randbits(64)),
        )
        self._acceptance = 0.5  # of all answers: where a new one starts
        self._batch = 1  # answers that share the next step

    def start(self) -> None:
        """Begin to connect to the draft workers."""
        self._thread.start()

    def stop(self) -> None:
        """End the streams."""
        self._thread.stop()

    def admit(self, speculation: Speculation) -> None:
        """A new answer begins to run."""
        with self._changed:
            speculation.acceptance = Acceptance(self._acceptance)
            speculation.ready_since = time.monotonic()

    def supply(self, running: Sequence[Speculation]) -> None:
        """See to it that each answer that runs has a draft, if there is one to be had that speaks."""
        now = time.monotonic()
        self._batch = max(1, len(running))
        with self._changed:
            for speculation in running:
                self._drafts.watch(speculation, now)
                if self._drafts.supply(speculation, now):
                    self._replan(speculation)
            self._drafts.flush()

    def wait(self, running: Sequence[Speculation]) -> None:
        """Return when the first of them has the proposals that it waits for, or has waited long enough."""
        with self._changed:
            began = now = time.monotonic()
            while True:
                left = min((patience(speculation, now) for speculation in running), default=0.0)
                if left <= 0:
                    break
                self._changed.wait(left)
                now = time.monotonic()
            if now > began:
                self._held.inc()
                self._held_seconds.inc(now - began)
            for speculation in running:
                if waited_in_vain(speculation, now):
                    self._drafts.let_down(speculation)

    def proposals(self, speculation: Speculation) -> list[int]:
        """What may be tested in the answer's next step, as far as it has arrived."""
        with self._changed:
            link = speculation.link
            if link is None:
                return []
            speculation.draft_model = link.model
            return [guess.token for guess in link.session.pending(testable(speculation))]

    def commit(self, outcomes: Iterable[Outcome]) -> None:
        """Tell the drafts what a step made final, and learn from it."""
        now = time.monotonic()
        total = SpeculationStats()
        with self._changed:
            for outcome in outcomes:
                if outcome.token_ids:
                    total.add(self._learn(outcome))
                if outcome.over:
                    self._drafts.drop(outcome.speculation)
                elif outcome.token_ids:
                    self._go_on(outcome, now)
            self._drafts.flush()
        self._metrics.count(total)

    def drop(self, speculations: Iterable[Speculation]) -> None:
        """These answers are over."""
        with self._changed:
            for speculation in speculations:
                self._drafts.drop(speculation)
            self._drafts.flush()

    def measured(self, tokens: int, seconds: float) -> None:
        """A step over `tokens` tokens took so long."""
        self._metrics.steps.inc()
        self._metrics.batch_tokens.observe(tokens)
        self._metrics.verification_latency.observe(seconds)
        if tokens <= DECODE_TOKENS:
            with self._changed:
                self._clock.saw_verify(tokens, seconds)

    def counted(self, running: int, waiting: int) -> None:
        """So many answers run and wait."""
        self._metrics.running.set(running)
        self._metrics.waiting.set(waiting)

    def _learn(self, outcome: Outcome) -> SpeculationStats:
        speculation, stats = outcome.speculation, outcome.stats()
        speculation.stats.add(stats)
        if stats.tested_tokens:
            self._metrics.tested(speculation.draft_model, stats.accepted_tokens, stats.tested_tokens)
            speculation.acceptance.saw(stats.accepted_tokens, stats.tested_tokens)
            self._acceptance += 0.02 * (speculation.acceptance.rate - self._acceptance)
        return stats

    def _go_on(self, outcome: Outcome, now: float) -> None:
        speculation = outcome.speculation
        if speculation.link and speculation.stats.steps % REPLAN_STEPS == 0:
            self._replan(speculation)
        self._drafts.commit(speculation, outcome.token_ids, now)  # with the new plan's credit
        speculation.ready_since = now

    def _replan(self, speculation: Speculation) -> None:
        assert speculation.link is not None
        worker = speculation.link.worker
        plan = self._planner.plan(
            speculation.acceptance.rate,
            speculation.request.num_speculative_tokens,
            self._batch,
            speculation.stats.steps,
            worker,
        )
        speculation.plan = replace(plan, max_wait=min(plan.max_wait, self._max_wait))
        self._metrics.show_plan(plan, self._clock.times(worker))

    def _take(self, event: Event) -> None:
        """What a draft worker says; on the draft clients' thread."""
        with self._changed:
            match event:
                case DraftSaid():
                    event.backlog.remove(event.size)
                    self._drafts.receive(event.worker_id, event.message, event.at)
                case DraftUp(worker):
                    self._drafts.worker_up(worker)
                case DraftDown(worker_id):
                    self._drafts.worker_down(worker_id, time.monotonic())
            self._drafts.flush()
            self._changed.notify_all()
