"""A perfect drafter behind a wire with delay: how many tokens a step does the protocol let through?

Time is counted in ticks. A step of the target takes `step_ticks` and the next begins at once; a message takes `delay`
ticks each way; the draft is quick: it uses all its room within a tick. `SessionSim` is the world, driven by a clock.
"""

from collections import deque
from fractions import Fraction

from support.session_sim import SessionSim

from draftwire.types import MAX_PROPOSAL_TOKENS


class Pipeline:
    """A SessionSim whose messages arrive when their time has come."""

    def __init__(self, sim: SessionSim, *, delay: int, step_ticks: int) -> None:
        self.sim = sim
        self.delay = delay
        self.step_ticks = step_ticks
        self.now = 0
        self._draft_arrivals: deque[int] = deque()
        self._verify_arrivals: deque[int] = deque()

    def wait_for_guesses(self) -> None:
        """Let time pass until the first guess is there, as a scheduler does for a new session."""
        self._exchange()
        while not self.sim.verifier.pending_count:
            self.now += 1
            self._exchange()

    def run(self, steps: int) -> None:
        """Let the target make this many steps."""
        sim = self.sim
        for _ in range(steps):
            self._exchange()
            sim.begin()
            for _ in range(self.step_ticks):
                self.now += 1
                self._exchange()
            sim.finish(sim.world.windows[0])

    def tokens_per_step(self, steps: int, warm_up: int) -> Fraction:
        """Committed tokens per step, exactly, over `steps` steps after `warm_up` steps."""
        self.run(warm_up)
        before = len(self.sim.truth)
        self.run(steps)
        return Fraction(len(self.sim.truth) - before, steps)

    def _exchange(self) -> None:
        """Deliver what is due, let the draft use its room, send what that gave, until nothing more happens now."""
        sim, moved = self.sim, True
        while moved:
            moved = self._send()
            while self._draft_arrivals and self._draft_arrivals[0] <= self.now:
                self._draft_arrivals.popleft()
                sim.deliver_commits()
                moved = True
            while sim.drafter is not None and sim.drafter.room:
                sim.draw(sim.world.target(tuple(sim.drafter.tokens)))
                moved = True
            while self._verify_arrivals and self._verify_arrivals[0] <= self.now:
                self._verify_arrivals.popleft()
                sim.deliver_drafts()
                moved = True

    def _send(self) -> bool:
        sim, sent = self.sim, False
        while len(sim.verifier_outbox):
            sim.send_commits(MAX_PROPOSAL_TOKENS)
            self._draft_arrivals.append(self.now + self.delay)
            sent = True
        while len(sim.drafter_outbox):
            sim.send_drafts(MAX_PROPOSAL_TOKENS)
            self._verify_arrivals.append(self.now + self.delay)
            sent = True
        return sent
