"""A verify worker's loop driven by hand, without thread or socket: the test is draft worker, callers and clock."""

import random
from collections.abc import Callable, Mapping
from typing import Any

from draftwire.engine.fake import FakeEngine
from draftwire.fake_model import FakeModel
from draftwire.metrics import new_registry
from draftwire.rpc.backlog import Backlog
from draftwire.session import Commit, DrafterStep, Ended, Idle, Open, Opened, Proposal, VerifierStep
from draftwire.types import Committed, DraftToken, Finished, GenerateRequest, SamplingParams
from verify_service.draft_pool import DraftWorker
from verify_service.drafts import Drafts
from verify_service.events import Cancel, DraftSaid, DraftUp, Event, Submit
from verify_service.generation import Generation
from verify_service.loop import VerifyLoop
from verify_service.metrics import VerifyMetrics
from verify_service.output import Output
from verify_service.policy import Plan, StepClock

GREEDY = SamplingParams(temperature=0.0)


class FixedPlan:
    """A planner whose plan the test sets."""

    def __init__(self, plan: Plan) -> None:
        self.next = plan

    def plan(self, *basis: Any) -> Plan:
        self.basis = basis
        return self.next


class Letters:
    """A mailman whose letters stay in the test's hands."""

    def __init__(self) -> None:
        self.events: dict[Output, list[Any]] = {}

    def post(self, output: Output, event: Any) -> None:
        output.produced(event)
        self.events.setdefault(output, []).append(event)

    def deliver(self) -> None:
        """They have arrived already."""


class HandLoop:
    """A VerifyLoop over a fake target that counts up; `now` is the time of the next step."""

    def __init__(
        self,
        *,
        slots: int = 4,
        budget: int = 64,
        window: int = 9,
        plan: Plan = Plan(4, 0, 0.0),
        model: FakeModel = FakeModel(),
    ) -> None:
        self.engine = FakeEngine(model, num_slots=slots, max_batched_tokens=budget)
        self.registry = new_registry()
        self.clock = StepClock()
        self.planner = FixedPlan(plan)
        self.letters = Letters()
        self.sent: list[tuple[int, VerifierStep]] = []
        self.during_forward: list[Event] = []
        self.now = 0.0
        metrics = VerifyMetrics(self.registry)
        self.drafts = Drafts(
            model=self.engine.info,
            window=window,
            send=self._send,
            clock=self.clock,
            metrics=metrics,
            rng=random.Random(1),
        )
        self.loop = VerifyLoop(
            engine=self.engine,
            drafts=self.drafts,
            planner=self.planner,  # type: ignore[arg-type]
            clock=self.clock,
            mailman=self.letters,  # type: ignore[arg-type]
            metrics=metrics,
            instance_id="by-hand",
            poll=self._poll,
            monotonic=lambda: self.now,
        )

    def _send(self, steps: Mapping[int, VerifierStep]) -> None:
        self.sent += steps.items()

    def _poll(self, loop: VerifyLoop) -> None:
        events, self.during_forward = self.during_forward, []
        for event in events:
            loop.receive(event)

    def submit(self, prompt: list[int], max_tokens: int, resume: Callable[[], None] = lambda: None) -> Generation:
        """A caller asks."""
        request = GenerateRequest("r", tuple(prompt), max_tokens=max_tokens, sampling=GREEDY)
        generation = Generation.of(request, self.engine.info, Output(256, resume), 1, 0.5)
        self.loop.receive(Submit(generation))
        return generation

    def cancel(self, generation: Generation) -> None:
        """A caller goes."""
        self.loop.receive(Cancel(generation))

    def connect(self, worker: int = 1) -> None:
        """A draft worker connects."""
        info = self.engine.info
        self.loop.receive(DraftUp(DraftWorker(worker, f"w{worker}", "draft", info.max_model_len, 8, heard_at=self.now)))

    def said(self, entry: Opened | Proposal | Idle | Ended, worker: int = 1) -> DraftSaid:
        """The event that a draft worker's message is."""
        step = DrafterStep(
            opened=(entry,) if isinstance(entry, Opened) else (),
            proposals=(entry,) if isinstance(entry, Proposal) else (),
            ended=(entry,) if isinstance(entry, Ended) else (),
            idle=(entry,) if isinstance(entry, Idle) else (),
        )
        return DraftSaid(worker, step, self.now, 0, Backlog())

    def say(self, entry: Opened | Proposal | Idle | Ended, worker: int = 1) -> None:
        """A draft worker's message arrives now."""
        self.loop.receive(self.said(entry, worker))

    def step(self, seconds: float = 0.0) -> float | None:
        """Let time pass, then step."""
        self.now += seconds
        return self.loop.step(self.now)

    def tokens(self, generation: Generation) -> list[int]:
        """What its caller got."""
        events = self.letters.events.get(generation.output, [])
        return [token for event in events if isinstance(event, Committed) for token in event.token_ids]

    def finished(self, generation: Generation) -> bool:
        """Whether its caller got everything."""
        return isinstance(self.letters.events.get(generation.output, [None])[-1], Finished)

    def opens(self, worker: int = 1) -> list[Open]:
        """What was opened on a worker."""
        return [opening for to, step in self.sent if to == worker for opening in step.opens]

    def commits(self, worker: int = 1) -> list[Commit]:
        """What was committed to a worker."""
        return [commit for to, step in self.sent if to == worker for commit in step.commits]

    def metric(self, name: str, **labels: str) -> float:
        """A sample's value."""
        return self.registry.get_sample_value(name, labels) or 0.0


def guesses(session: int, path: int, position: int, *tokens: int) -> Proposal:
    """A proposal of point masses."""
    return Proposal(session, path, position, tuple(DraftToken(token) for token in tokens))
