"""The seam between the loop and whatever guesses tokens.

A drafter holds what it needs of each session (a KV slot, an index) under the session's key and reads the session's
tokens and room; the loop alone changes a session. Which drafter proposes for a position, when and with which q may
depend on the tokens before that position and on independent randomness, never on a token drawn there or later: else
the target's output would be biased (docs/protocol.md, "Exactness").
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from draft_service.session import Session
from draftwire.types import DraftToken, ModelInfo

#: Names a session among all streams: (stream id, session id).
Key = tuple[int, int]

#: A session with its name.
Keyed = tuple[Key, Session]


@dataclass(frozen=True, slots=True)
class Drafted:
    """What one step did for a session that is ready: contiguous tokens from the end of the session's tokens on.

    `tokens` is empty where the session has just become ready (prefilled) and no token was drawn yet; `source` names the
    drafter for the metrics: "model", "ngram" or "replay".
    """

    key: Key
    tokens: list[DraftToken]
    source: str


class Drafter(Protocol):
    """What guesses; every method runs on the engine's thread."""

    @property
    def info(self) -> ModelInfo:
        """The model that it guesses with."""

    @property
    def max_sessions(self) -> int:
        """Sessions that it can hold at once."""

    def open(self, key: Key, session: Session) -> bool:
        """Take a session in; False if there is no place for it."""

    def truncate(self, key: Key, length: int) -> None:
        """A commit was received: of the tokens that the session had, only the first `length` still stand."""

    def close(self, key: Key) -> None:
        """Forget a session."""

    def step(self, sessions: Sequence[Keyed]) -> list[Drafted] | None:
        """Make at most one forward and draft at most `room` tokens for each session.

        The caller appends what it gets to the sessions before the next call. Returns None if there is nothing to do
        until a commit comes or a session is opened. Raises EngineError where the device failed.
        """
