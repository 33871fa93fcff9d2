"""Runs golden scripts of the session protocol: commands, and beneath each the full trace that it gives.

A script is blocks parted by blank lines: comment lines (#), commands, "----", their traces. The commands:

    verifier opens 7 8 window=4      a new session on the stream, closing the old one if there is one
    verifier commits 9 10 window=4   tokens become final (none: only the window changes)
    verifier looks 3                 the guesses that it may test now, at most 3
    verifier gets path=0 at=2: 9 10  a forged proposal arrives
    drafter draws 9 10               guesses for the next positions
    verifier sends | drafter sends   the writer takes what waits, merged, as one message
    verifier receives | drafter receives    the oldest message on the wire arrives
    stream breaks                    all that waits or is on the wire is lost, and the draft worker's sessions with it
"""

import re
from collections import deque
from pathlib import Path

from draftwire.errors import ProtocolViolation
from draftwire.session import (
    Close,
    Commit,
    DrafterOutbox,
    DrafterSession,
    DrafterStep,
    Open,
    Opened,
    Proposal,
    VerifierOutbox,
    VerifierSession,
    VerifierStep,
)
from draftwire.types import MAX_PROPOSAL_TOKENS, DraftToken, SamplingParams, VerificationMode

VOCAB_SIZE = 100
MAX_WINDOW = 8


def run_script(path: Path) -> str:
    """The script's text with the traces that its commands give now."""
    interpreter = Interpreter()
    blocks = []
    for block in path.read_text().strip().split("\n\n"):
        head = block.split("\n----", 1)[0]
        commands = [line for line in head.splitlines() if not line.startswith("#")]
        trace = [line for command in commands for line in interpreter.run(command)]
        blocks.append("\n".join([head, "----", *trace]) if commands else head)
    return "\n\n".join(blocks) + "\n"


class Interpreter:
    """Two ends of one session and the wire between them."""

    def __init__(self) -> None:
        self.session_id = 0
        self.committed: tuple[int, ...] = ()
        self.verifier: VerifierSession | None = None
        self.drafter: DrafterSession | None = None
        self._connect()

    def run(self, command: str) -> list[str]:
        """Execute one line; returns its trace."""
        who, verb, rest = re.fullmatch(r"(\w+) (\w+) ?(.*)", command).groups()
        tokens = tuple(int(word) for word in rest.split(":")[-1].split() if word.isdigit())
        options = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", rest)}
        try:
            return [f"  {line}" for line in getattr(self, f"{who}_{verb}")(tokens, **options)]
        except ProtocolViolation as violation:
            return [f"  violation: {violation}"]

    def verifier_opens(self, tokens: tuple[int, ...], window: int) -> list[str]:
        closed = [f"closes session {self.session_id}"] if self.verifier else []
        if self.verifier:
            self.verifier_outbox.add(VerifierStep(closes=(Close(self.session_id),)))
        self.session_id += 1
        self.committed = tokens or self.committed
        self.verifier = VerifierSession(self.session_id, self.committed, VOCAB_SIZE, MAX_WINDOW)
        opening = self.verifier.open(SamplingParams(), VerificationMode.REJECTION, 0, 0, window)
        self.verifier_outbox.add(VerifierStep(opens=(opening,)))
        return [*closed, *self._verifier_state()]

    def verifier_commits(self, tokens: tuple[int, ...], window: int) -> list[str]:
        commit = self.verifier.commit(tokens, window)
        self.committed += tokens
        self.verifier_outbox.add(VerifierStep(commits=(commit,)))
        return self._verifier_state()

    def verifier_looks(self, tokens: tuple[int, ...]) -> list[str]:
        (limit,) = tokens
        return [f"may test [{_join(guess.token for guess in self.verifier.pending(limit))}]"]

    def verifier_gets(self, tokens: tuple[int, ...], path: int, at: int) -> list[str]:
        self.verifier.receive(Proposal(self.session_id, path, at, tuple(map(DraftToken, tokens))))
        return self._verifier_state()

    def drafter_draws(self, tokens: tuple[int, ...]) -> list[str]:
        proposal = self.drafter.draft(tuple(map(DraftToken, tokens)))
        self.drafter_outbox.add(DrafterStep(proposals=(proposal,)))
        return self._drafter_state()

    def verifier_sends(self, _: tuple[int, ...]) -> list[str]:
        step = self.verifier_outbox.take(4096)
        self.to_draft.append(step)
        return [f"-> {line}" for line in _describe(*step.closes, *step.opens, *step.commits)]

    def drafter_sends(self, _: tuple[int, ...]) -> list[str]:
        step = self.drafter_outbox.take(4096)
        self.to_verify.append(step)
        return [f"<- {line}" for line in _describe(*step.opened, *step.proposals)]

    def drafter_receives(self, _: tuple[int, ...]) -> list[str]:
        trace = []
        step = self.to_draft.popleft()
        for close in step.closes:
            self.drafter_outbox.forget(close.session_id)
            self.drafter = None
        for opening in step.opens:
            self.drafter = DrafterSession(opening)
            self.drafter_outbox.add(DrafterStep(opened=(Opened(opening.session_id),)))
        for commit in step.commits:
            former = len(self.drafter.tokens)
            trace.append(f"keeps {self.drafter.receive(commit)} of {former} cached positions")
        return trace + self._drafter_state()

    def verifier_receives(self, _: tuple[int, ...]) -> list[str]:
        for proposal in self.to_verify.popleft().proposals:
            if proposal.session_id == self.session_id:
                self.verifier.receive(proposal)
        return self._verifier_state()

    def stream_breaks(self, _: tuple[int, ...]) -> list[str]:
        self.verifier = self.drafter = None
        self._connect()
        return ["nothing waits, nothing is on the wire"]

    def _connect(self) -> None:
        self.verifier_outbox, self.drafter_outbox = VerifierOutbox(), DrafterOutbox()
        self.to_draft: deque[VerifierStep] = deque()
        self.to_verify: deque[DrafterStep] = deque()

    def _verifier_state(self) -> list[str]:
        end = self.verifier
        pending = _join(guess.token for guess in end.pending(MAX_PROPOSAL_TOKENS))
        paths = f"path {end.path}, floor {end.floor}"
        return [f"verifier: committed {end.committed}, {paths}, pending [{pending}], stale {end.stale}"]

    def _drafter_state(self) -> list[str]:
        end = self.drafter
        guesses = _join(end.tokens[end.committed :])
        return [f"drafter: committed {end.committed}, path {end.path}, guesses [{guesses}], room {end.room}"]


def _describe(*messages: Close | Open | Commit | Opened | Proposal) -> list[str]:
    lines = []
    for message in messages:
        match message:
            case Close():
                lines.append(f"close {message.session_id}")
            case Opened():
                lines.append(f"opened {message.session_id}")
            case Open():
                lines.append(f"open {message.session_id}: [{_join(message.token_ids)}], window {message.window}")
            case Commit():
                tokens = _join(message.token_ids)
                lines.append(f"commit {message.number} at {message.position}: [{tokens}], window {message.window}")
            case Proposal():
                tokens = _join(guess.token for guess in message.tokens)
                lines.append(f"proposal on path {message.path} at {message.position}: [{tokens}]")
    return lines


def _join(tokens) -> str:
    return " ".join(map(str, tokens))
