"""The messages of the session protocol as plain values (fields as in protos/draftwire/v1/draft_service.proto)."""

from dataclasses import dataclass

from draftwire.types import DraftToken, EndReason, ModelInfo, SamplingParams, VerificationMode

PROTOCOL_VERSION = 1


@dataclass(frozen=True, slots=True)
class Hello:
    """Introduces one end of a stream to the other."""

    protocol_version: int
    instance_id: str
    model: ModelInfo
    max_sessions: int


@dataclass(frozen=True, slots=True)
class Open:
    """Begins a session, and path 0 with it."""

    session_id: int
    token_ids: tuple[int, ...]
    sampling: SamplingParams
    mode: VerificationMode
    seed: int
    choice: int
    window: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Tokens that became final: number counts from 1, position is where token_ids[0] stands."""

    session_id: int
    number: int
    position: int
    token_ids: tuple[int, ...]
    window: int


@dataclass(frozen=True, slots=True)
class Close:
    """Ends a session from the verifier's side."""

    session_id: int


@dataclass(frozen=True, slots=True)
class VerifierStep:
    """All that one engine step of the verifier has to say; the receiver takes closes, opens, commits in this order."""

    opens: tuple[Open, ...] = ()
    commits: tuple[Commit, ...] = ()
    closes: tuple[Close, ...] = ()


@dataclass(frozen=True, slots=True)
class Opened:
    """The draft worker starts drafting."""

    session_id: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """Contiguous guesses on one path; tokens is never empty."""

    session_id: int
    path: int
    position: int
    tokens: tuple[DraftToken, ...]


@dataclass(frozen=True, slots=True)
class Idle:
    """The drafter has taken commit `number`, has credit, and has no further guess until the next commit."""

    session_id: int
    number: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The draft worker gave the session up."""

    session_id: int
    reason: EndReason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class DrafterStep:
    """All that one engine step of the drafter has to say.

    The receiver takes opened, proposals, idle, ended in this order.
    """

    opened: tuple[Opened, ...] = ()
    proposals: tuple[Proposal, ...] = ()
    ended: tuple[Ended, ...] = ()
    idle: tuple[Idle, ...] = ()


@dataclass(frozen=True, slots=True)
class Load:
    """How busy a draft worker is."""

    sessions: int
    max_sessions: int
    step_seconds: float


@dataclass(frozen=True, slots=True)
class Draining:
    """The draft worker is about to stop."""
