"""What reaches the engine's thread through its inbox."""

from dataclasses import dataclass

from draftwire.rpc.backlog import Backlog
from draftwire.session import DrafterStep, Draining, Load
from verify_service.draft_pool import DraftWorker
from verify_service.generation import Generation


@dataclass(frozen=True, slots=True)
class Submit:
    """A validated request wants an answer."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class Cancel:
    """The caller is gone, does not read, has everything, or its time is over."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class Wake:
    """Something outside changed (a caller caught up): look again."""


@dataclass(frozen=True, slots=True)
class DraftUp:
    """A draft worker is connected."""

    worker: DraftWorker


@dataclass(frozen=True, slots=True)
class DraftDown:
    """The stream to a draft worker broke."""

    worker_id: int


@dataclass(frozen=True, slots=True)
class DraftSaid:
    """A draft worker's message.

    Attributes:
        worker_id: whose.
        message: what it said.
        at: when it arrived, time.monotonic() seconds.
        size: what it counts for in `backlog`, bytes.
        backlog: the stream's.
    """

    worker_id: int
    message: DrafterStep | Load | Draining
    at: float
    size: int
    backlog: Backlog


#: Events that end or take back something: the engine's thread takes them even when its inbox is full.
ALWAYS_TAKEN = (Cancel, Wake, DraftDown)

Event = Submit | Cancel | Wake | DraftUp | DraftDown | DraftSaid
