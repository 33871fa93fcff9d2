"""Keeps every generation supplied with a draft: opens, commits, watches and reassigns sessions on the draft workers.

Lives on the engine's thread. What there is to say is collected per worker and sent once a step. Nothing here can change
the output; losing a draft worker costs speed alone.
"""

import logging
import random
from collections import defaultdict
from collections.abc import Callable, Mapping

from draftwire.errors import ProtocolViolation
from draftwire.session import (
    Close,
    Commit,
    DrafterStep,
    Draining,
    Ended,
    Idle,
    Load,
    Open,
    Opened,
    Proposal,
    VerifierSession,
    VerifierStep,
)
from draftwire.types import EndReason, ModelInfo, VerificationMode
from verify_service.draft_pool import DraftPool, DraftWorker
from verify_service.generation import Answer, DraftLink
from verify_service.metrics import VerifyMetrics
from verify_service.policy import StepClock

logger = logging.getLogger(__name__)

#: A draft that owes proposals and sends nothing for this long, and this many steps, loses the session.
SILENCE_SECONDS, SILENCE_STEPS = 2.0, 10
#: The same while the worker itself still speaks (it may be prefilling a long prompt).
BUSY_SECONDS = 10.0
#: How long a full worker, or a generation without a draft, waits before the next try.
RETRY_SECONDS = 0.5
#: A generation whose sessions were ended this often by a fault decodes plainly from then on.
MAX_FAILURES = 3

Send = Callable[[Mapping[int, VerifierStep]], None]


class Drafts:
    """The draft side of every generation.

    Args:
        model: the target; drafts share its vocabulary.
        window: largest credit, tokens past the last commit.
        send: takes what there is to say to each worker, by worker id; must not block.
        clock: learns how fast each worker is.
        rng: chooses workers and keys the drafts' randomness.
    """

    def __init__(
        self, *, model: ModelInfo, window: int, send: Send, clock: StepClock, metrics: VerifyMetrics, rng: random.Random
    ) -> None:
        self._model = model
        self._window = window
        self._send = send
        self._clock = clock
        self._metrics = metrics
        self._rng = rng
        self._pool = DraftPool(rng)
        self._by_session: dict[int, Answer] = {}
        self._next_session = 1
        self._opens: defaultdict[int, list[Open]] = defaultdict(list)
        self._commits: defaultdict[int, list[Commit]] = defaultdict(list)
        self._closes: defaultdict[int, list[Close]] = defaultdict(list)

    # What generations need.

    def supply(self, generation: Answer, now: float) -> bool:
        """Open a session for a generation that has none, if a worker can take it; whether it did."""
        if generation.link or not generation.speculates or now < generation.draft_retry_at:
            return False
        if generation.draft_failures >= MAX_FAILURES:
            return False
        worker = self._pool.choose(len(generation.tokens) + 1, now)
        if worker is None:
            generation.draft_retry_at = now + RETRY_SECONDS
            return False
        session_id, self._next_session = self._next_session, self._next_session + 1
        session = VerifierSession(session_id, generation.tokens, self._model.vocab_size, self._window)
        # The draft's own randomness must be independent of the verifier's; only coupled noise is shared.
        seed = generation.seed if generation.mode is VerificationMode.COUPLED else self._rng.getrandbits(64)
        self._opens[worker.id].append(
            session.open(generation.request.sampling, generation.mode, seed, generation.request.choice, self._window)
        )
        generation.link = DraftLink(
            worker.id, worker.model, session, heard_at=now, fruitless_waits=worker.fruitless_waits
        )
        self._by_session[session_id] = generation
        worker.own += 1
        return True

    def commit(self, generation: Answer, token_ids: tuple[int, ...], now: float) -> None:
        """Tell the draft what became final."""
        link = generation.link
        if link is None:
            return
        window = self._window if generation.plan.num_speculative_tokens else 0
        if window and not link.session.window:
            link.heard_at, link.steps_unheard = now, 0
        commit = link.session.commit(token_ids, window)
        self._commits[link.worker].append(commit)
        link.commits.append((commit.number, link.session.committed, now))
        link.steps_unheard += 1

    def let_down(self, generation: Answer) -> None:
        """It waited its tau and nothing came. So will the worker's next sessions, unless it proposes meanwhile."""
        link = generation.link
        if link is not None:
            link.fruitless_waits += 1
            self._pool.workers[link.worker].fruitless_waits += 1

    def drop(self, generation: Answer) -> None:
        """Close the generation's session, if it has one."""
        link = generation.link
        if link is not None:
            self._closes[link.worker].append(Close(link.session.session_id))
            self._forget(generation)

    def watch(self, generation: Answer, now: float) -> None:
        """Take the session away from a draft that owes proposals and stays silent.

        Never while a guess is there: dropping it untested because of what came after it would bias the output.
        """
        link = generation.link
        if link is None or link.session.pending_count or not link.session.window:
            return
        worker = self._pool.workers[link.worker]
        dead = now - worker.heard_at > SILENCE_SECONDS
        if now - link.heard_at > (SILENCE_SECONDS if dead else BUSY_SECONDS) and link.steps_unheard >= SILENCE_STEPS:
            logger.warning("draft worker %s is silent; session %d leaves it", worker.address, link.session.session_id)
            worker.silent = dead
            if not dead:
                generation.draft_failures += 1  # or it would come back to the same worker, and be silent there again
            self._lose(generation, now, "silent")

    def flush(self) -> None:
        """Send what the step has to say."""
        workers = self._opens.keys() | self._commits.keys() | self._closes.keys()
        if workers:
            self._send(
                {
                    worker: VerifierStep(
                        tuple(self._opens[worker]), tuple(self._commits[worker]), tuple(self._closes[worker])
                    )
                    for worker in workers
                }
            )
            for queue in (self._opens, self._commits, self._closes):
                queue.clear()

    # What draft workers say.

    def worker_up(self, worker: DraftWorker) -> None:
        """A draft worker is connected."""
        self._pool.workers[worker.id] = worker
        self._metrics.draft_workers.set(len(self._pool.workers))

    def worker_down(self, worker_id: int, now: float) -> None:
        """A stream broke: its sessions move."""
        self._move_sessions(worker_id, now, "disconnected")
        self._pool.workers.pop(worker_id, None)
        self._clock.worker_gone(worker_id)
        for queue in (self._opens, self._commits, self._closes):
            queue.pop(worker_id, None)
        self._metrics.draft_workers.set(len(self._pool.workers))

    def receive(self, worker_id: int, message: DrafterStep | Load | Draining, at: float) -> None:
        """Take a message that arrived at time `at`."""
        worker = self._pool.workers.get(worker_id)
        if worker is None:
            return
        worker.silent, worker.heard_at = False, at
        match message:
            case DrafterStep():
                for opened in message.opened:
                    self._heard(worker_id, opened, at)
                for proposal in message.proposals:
                    self._propose(worker_id, proposal, at)
                for idle in message.idle:
                    self._heard(worker_id, idle, at)
                for ended in message.ended:
                    self._ended(worker, ended, at)
            case Load():
                worker.reported, worker.max_sessions = message.sessions, message.max_sessions
                if message.step_seconds > 0:
                    self._clock.saw_draft_step(worker_id, message.step_seconds)
            case Draining():
                logger.info("draft worker %s drains", worker.address)
                worker.draining = True
                self._move_sessions(worker_id, at, "draining")

    def _heard(self, worker_id: int, message: Opened | Proposal | Idle, at: float) -> DraftLink | None:
        generation = self._by_session.get(message.session_id)
        link = generation.link if generation else None
        if link is None or link.worker != worker_id:
            return None
        link.heard_at, link.steps_unheard = at, 0
        if isinstance(message, Idle):
            link.idle = message.number  # a wait before it was fruitless all the same
        else:
            link.fruitless_waits = 0
        return link

    def _propose(self, worker_id: int, proposal: Proposal, at: float) -> None:
        link = self._heard(worker_id, proposal, at)
        if link is None:
            self._metrics.stale.inc(len(proposal.tokens))
            return
        self._pool.workers[worker_id].fruitless_waits = 0
        generation = self._by_session[proposal.session_id]
        stale_before, path_before = link.session.stale, link.session.path
        try:
            link.session.receive(proposal)
        except ProtocolViolation as error:
            logger.warning(
                "draft worker %d broke the protocol in session %d: %s", worker_id, proposal.session_id, error
            )
            generation.draft_failures += 1
            self._lose(generation, at, "violation")
            return
        stale = link.session.stale - stale_before
        generation.stats.stale_tokens += stale
        self._metrics.stale.inc(stale)
        if proposal.path > path_before:
            self._time_restart(link, proposal, at)

    def _time_restart(self, link: DraftLink, proposal: Proposal, at: float) -> None:
        """Learn how long a new path takes to show: from the commit that it is named by, right behind which it begins.

        A path that was refuted again meanwhile counts too. Else a round trip longer than a step would never be seen,
        and every wait would be too short.
        """
        for number, end, committed_at in link.commits:
            if (number, end) == (proposal.path, proposal.position):
                self._clock.saw_restart(link.worker, max(0.0, at - committed_at))

    def _ended(self, worker: DraftWorker, ended: Ended, at: float) -> None:
        generation = self._by_session.get(ended.session_id)
        if generation is None or generation.link is None or generation.link.worker != worker.id:
            return
        logger.info("draft worker %s ended a session: %s %s", worker.address, ended.reason.value, ended.detail)
        if ended.reason is EndReason.OVERLOADED:
            worker.blocked_until = at + RETRY_SECONDS
        elif ended.reason is not EndReason.MAX_MODEL_LEN:
            generation.draft_failures += 1
        self._lose(generation, at, ended.reason.value)

    # Sessions that lose their worker.

    def _move_sessions(self, worker_id: int, now: float, why: str) -> None:
        for generation in [g for g in self._by_session.values() if g.link and g.link.worker == worker_id]:
            self._lose(generation, now, why)

    def _lose(self, generation: Answer, now: float, why: str) -> None:
        self._metrics.reassignments.labels(why).inc()
        generation.stats.reassignments += 1
        self.drop(generation)
        generation.draft_retry_at = now

    def _forget(self, generation: Answer) -> None:
        link = generation.link
        assert link is not None
        del self._by_session[link.session.session_id]
        if worker := self._pool.workers.get(link.worker):
            worker.own -= 1
        generation.link = None
