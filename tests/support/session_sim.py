"""Two ends of one session, a network that may delay, merge and lose, and an eye that knows the truth.

`SessionSim` offers every action that the world can take (`actions`), takes one (`apply`) and then checks what must hold
in any state (`check`). The driver chooses the order: all orders, random ones, or Hypothesis. The target is greedy and
its next token depends on the whole prefix; each guess is tagged with the prefix that it was drawn after, so that a
guess offered after another prefix is caught without luck.
"""

from __future__ import annotations

import io
import pickle
from collections import deque
from collections.abc import Sized
from dataclasses import dataclass, field

from draftwire.session import (
    Close,
    Commit,
    DrafterOutbox,
    DrafterSession,
    DrafterStep,
    Ended,
    Opened,
    VerifierOutbox,
    VerifierSession,
    VerifierStep,
)
from draftwire.types import MAX_PROPOSAL_TOKENS, DraftToken, EndReason, SamplingParams, VerificationMode

Tokens = tuple[int, ...]
Action = tuple[str, int]


@dataclass(frozen=True, slots=True)
class TaggedToken(DraftToken):
    """A guess that remembers the prefix it was drawn after."""

    prefix: Tokens = ()


@dataclass(frozen=True)
class World:
    """What a simulation is made of; the four classes are replaced by mutants in the tests of the tests.

    Attributes:
        prompt: tokens before the first output.
        vocab_size: V.
        windows: credits that the verifier may give; the first is the one it opens with.
        k: most guesses in one step.
        length: no step begins once so many tokens are committed.
        message_tokens: sizes to which the outboxes may cut a message; none = everything is sent at once, never merged.
        losses: how often a session may be lost (by stream, restart, reassignment or the draft worker giving up).
    """

    prompt: Tokens = (0, 1)
    vocab_size: int = 2
    windows: Tokens = (2,)
    k: int = 2
    length: int = 6
    message_tokens: Tokens = (MAX_PROPOSAL_TOKENS,)
    losses: int = 0
    verifier: type[VerifierSession] = VerifierSession
    drafter: type[DrafterSession] = DrafterSession
    verifier_outbox: type[VerifierOutbox] = VerifierOutbox
    drafter_outbox: type[DrafterOutbox] = DrafterOutbox

    def target(self, prefix: Tokens) -> int:
        """The greedy target: the token that follows `prefix`."""
        return (sum(token * (index + 1) for index, token in enumerate(prefix)) + len(prefix) // 2) % self.vocab_size

    def accepts(self, prefix: Tokens, token: int) -> bool:
        """Whether the target accepts the guess `token` after `prefix`."""
        return token == self.target(prefix)

    def free_draw(self, prefix: Tokens) -> int:
        """The target's token after `prefix` where there is no guess to test."""
        return self.target(prefix)

    def reference(self, length: int) -> Tokens:
        """What the target gives alone, up to `length` tokens."""
        tokens = self.prompt
        while len(tokens) < length:
            tokens += (self.target(tokens),)
        return tokens


@dataclass
class SessionSim:
    """The state of the world; plain data, so that it can be copied and compared."""

    world: World
    truth: Tokens = ()
    losses: int = 0
    session_id: int = 0
    drafter: DrafterSession | None = None
    forward: tuple[int, tuple[DraftToken, ...]] | None = None  # the session and guesses that went into it
    to_draft: deque[VerifierStep] = field(default_factory=deque)
    to_verify: deque[DrafterStep] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.truth = self.world.prompt
        self._new_stream()
        self._open()

    # What the world may do next.

    def actions(self) -> list[Action]:
        """Every action that is possible now."""
        world, possible = self.world, []
        if self.drafter is not None and self.drafter.room:
            possible += [("draw", token) for token in range(world.vocab_size)]
        if len(self.drafter_outbox):
            possible += [("send_drafts", size) for size in world.message_tokens]
        if len(self.verifier_outbox):
            possible += [("send_commits", size) for size in world.message_tokens]
        if self.to_verify:
            possible.append(("deliver_drafts", 0))
        if self.to_draft:
            possible.append(("deliver_commits", 0))
        if self.forward is not None:
            possible += [("finish", window) for window in world.windows]
        elif len(self.truth) < world.length:
            possible.append(("begin", 0))
            possible += [("grant", window) for window in world.windows if window != self.verifier.window]
        if self.losses < world.losses:
            possible += [("lose_stream", 0), ("reassign", 0)]
            if self.drafter is not None:
                possible.append(("give_up", 0))
        return possible

    def apply(self, action: Action) -> None:
        """Take one action and check the world."""
        name, argument = action
        getattr(self, name)(argument)
        if not self.world.message_tokens:
            self._send_all()
        self.check()

    # The draft worker.

    def draw(self, token: int) -> None:
        """The draft guesses `token` for its next position."""
        drafter = self.drafter
        assert drafter is not None
        proposal = drafter.draft([TaggedToken(token, prefix=tuple(drafter.tokens))])
        self.drafter_outbox.add(DrafterStep(proposals=(proposal,)))

    def give_up(self, _: int = 0) -> None:
        """The draft worker ends the session, for example for want of room."""
        assert self.drafter is not None
        self.losses += 1
        self.drafter_outbox.forget(self.drafter.session_id)
        self.drafter_outbox.add(DrafterStep(ended=(Ended(self.drafter.session_id, EndReason.OVERLOADED),)))
        self.drafter = None

    def deliver_commits(self, _: int = 0) -> None:
        """The draft worker takes a message: closes, opens, commits."""
        step = self.to_draft.popleft()
        for close in step.closes:
            self.drafter_outbox.forget(close.session_id)
            if self.drafter is not None and self.drafter.session_id == close.session_id:
                self.drafter = None
        for opening in step.opens:
            self.drafter = self.world.drafter(opening)
            self.drafter_outbox.add(DrafterStep(opened=(Opened(opening.session_id),)))
        for commit in step.commits:
            if self.drafter is not None and self.drafter.session_id == commit.session_id:
                self._take_commit(self.drafter, commit)

    def _take_commit(self, drafter: DrafterSession, commit: Commit) -> None:
        former, path = tuple(drafter.tokens), drafter.path
        valid = drafter.receive(commit)
        now = tuple(drafter.tokens)
        assert valid == len(former) or drafter.path > path, "a position will be drawn again on the same path"
        assert former[:valid] == now[:valid], "the cache keeps tokens that are not on the path"
        kept_all = valid == len(former)
        assert kept_all or former[valid : valid + 1] != now[valid : valid + 1], "the cache is cut more than the path"

    # The verify worker.

    def begin(self, _: int = 0) -> None:
        """A forward starts with the guesses that are here."""
        self.forward = (self.session_id, self.verifier.pending(self.world.k))

    def finish(self, window: int) -> None:
        """The forward ends: late binding, acceptance, commit."""
        assert self.forward is not None
        session_id, taken = self.forward
        rows = len(taken) + 1
        if session_id == self.session_id:
            now = self.verifier.pending(rows)
            assert now[: len(taken)] == taken, "a guess was replaced while it was in the forward"
            taken = now
        self.forward = None
        self._commit(self._verify(taken, rows), window)

    def _verify(self, guesses: tuple[DraftToken, ...], rows: int) -> Tokens:
        """Accepted guesses up to the first wrong one, then the target's own token if a row of the forward is left."""
        tokens: Tokens = ()
        for guess in guesses:
            if not self.world.accepts(self.truth + tokens, guess.token):
                return (*tokens, self.world.target(self.truth + tokens))
            tokens += (guess.token,)
        return (*tokens, self.world.free_draw(self.truth + tokens))[:rows]

    def grant(self, window: int) -> None:
        """The verifier changes the window without committing."""
        self._commit((), window)

    def _commit(self, tokens: Tokens, window: int) -> None:
        commit = self.verifier.commit(tokens, window)
        assert commit.position == len(self.truth), "a token would be lost or repeated"
        self.truth += tokens
        self.verifier_outbox.add(VerifierStep(commits=(commit,)))

    def deliver_drafts(self, _: int = 0) -> None:
        """The verify worker takes a message; other sessions' entries are dropped."""
        step = self.to_verify.popleft()
        for proposal in step.proposals:
            if proposal.session_id == self.session_id:
                self.verifier.receive(proposal)
        for ended in step.ended:
            if ended.session_id == self.session_id:
                self._open()

    # The network.

    def send_drafts(self, max_tokens: int) -> None:
        """The draft worker's writer takes what waits, merged."""
        step = self.drafter_outbox.take(max_tokens)
        assert step is not None
        self.to_verify.append(step)

    def send_commits(self, max_tokens: int) -> None:
        """The verify worker's writer takes what waits, merged."""
        step = self.verifier_outbox.take(max_tokens)
        assert step is not None
        self.to_draft.append(step)

    def _send_all(self) -> None:
        if len(self.drafter_outbox):
            self.send_drafts(MAX_PROPOSAL_TOKENS)
        if len(self.verifier_outbox):
            self.send_commits(MAX_PROPOSAL_TOKENS)

    def lose_stream(self, _: int = 0) -> None:
        """The stream breaks or the draft worker restarts: all that was queued or on the wire is gone."""
        self.losses += 1
        self.drafter = None
        self._new_stream()
        self._open()

    def reassign(self, _: int = 0) -> None:
        """The verifier closes the session and opens it anew on the same stream; old messages are still on the wire."""
        self.losses += 1
        self.verifier_outbox.add(VerifierStep(closes=(Close(self.session_id),)))
        self._open()

    def _new_stream(self) -> None:
        self.verifier_outbox = self.world.verifier_outbox()
        self.drafter_outbox = self.world.drafter_outbox()
        self.to_draft.clear()
        self.to_verify.clear()

    def _open(self) -> None:
        self.session_id += 1
        windows = self.world.windows
        self.verifier = self.world.verifier(self.session_id, self.truth, self.world.vocab_size, max(windows))
        opening = self.verifier.open(SamplingParams(), VerificationMode.REJECTION, 0, 0, windows[0])
        self.verifier_outbox.add(VerifierStep(opens=(opening,)))

    # What must hold.

    def check(self) -> None:
        """Hold the state against the truth."""
        assert self.truth == self.world.reference(len(self.truth)), "the output is not the target's"
        assert self.verifier.committed == len(self.truth)
        pending = self.verifier.pending(MAX_PROPOSAL_TOKENS)
        assert len(pending) == self.verifier.pending_count <= max(self.world.windows)
        prefix = self.truth
        for guess in pending:
            assert isinstance(guess, TaggedToken)
            assert guess.prefix == prefix, f"offered after {prefix}, drawn after {guess.prefix}"
            prefix += (guess.token,)
        if self.drafter is not None:
            known = self.drafter.committed
            assert tuple(self.drafter.tokens[:known]) == self.truth[:known], "the ends disagree on what is final"
            assert len(self.drafter.tokens) - known <= max(self.world.windows)

    def settle(self) -> None:
        """Deliver everything, then check that the ends agree and that a new guess would arrive."""
        self.drain()
        drafter = self.drafter
        assert drafter is not None, "no session after everything was delivered"
        assert drafter.committed == len(self.truth)
        assert drafter.window == self.verifier.window
        assert self._pending_tokens() == drafter.tokens[drafter.committed :], "live guesses were lost"
        if drafter.room:
            self.draw(self.world.target(tuple(drafter.tokens)))
            self.drain()
            assert self._pending_tokens() == drafter.tokens[drafter.committed :], "a new guess did not arrive"

    def _pending_tokens(self) -> list[int]:
        return [guess.token for guess in self.verifier.pending(MAX_PROPOSAL_TOKENS)]

    def drain(self) -> None:
        """Deliver everything."""
        queues: dict[str, Sized] = {
            "send_commits": self.verifier_outbox,
            "deliver_commits": self.to_draft,
            "send_drafts": self.drafter_outbox,
            "deliver_drafts": self.to_verify,
        }
        while any(len(queue) for queue in queues.values()):
            for name, queue in queues.items():
                if len(queue):
                    self.apply((name, MAX_PROPOSAL_TOKENS))

    # Copies, and the walk over every order of events.

    def freeze(self) -> bytes:
        """The state as bytes: equal states have equal bytes (nothing in it is shared or cyclic)."""
        buffer = io.BytesIO()
        pickler = pickle.Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL)
        pickler.fast = True
        pickler.dump(self)
        return buffer.getvalue()

    @staticmethod
    def thaw(state: bytes) -> SessionSim:
        """The state again."""
        sim = pickle.loads(state)
        assert isinstance(sim, SessionSim)
        return sim


def explore(world: World, depth: int) -> int:
    """Take every action in every order, up to `depth` after the open; returns how many different states were checked.

    Every state is checked by `check`, and a copy of it by `settle`.
    """
    start = SessionSim(world)
    start.drain()
    frontier = [start.freeze()]
    seen = set(frontier)
    for _ in range(depth):
        reached: list[bytes] = []
        for state in frontier:
            for action in SessionSim.thaw(state).actions():
                sim = SessionSim.thaw(state)
                sim.apply(action)
                after = sim.freeze()
                if after not in seen:
                    seen.add(after)
                    reached.append(after)
                    sim.settle()
        frontier = reached
    return len(seen)
