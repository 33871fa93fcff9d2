"""What the streams tell the engine's loop, and how much of it may wait."""

from dataclasses import dataclass

from draftwire.rpc.backlog import MAX_WAITING_MESSAGES, Backlog
from draftwire.session import Ended, VerifierStep


def inbox_capacity(max_streams: int) -> int:
    """Events that may wait at most: what each stream may have waiting, its end, and the beginning of the drain."""
    return max_streams * (MAX_WAITING_MESSAGES + 1) + 1


@dataclass(frozen=True, slots=True)
class StepArrived:
    """A verify worker's step.

    Attributes:
        stream: where it came from.
        step: its good entries.
        bad: its bad entries; those sessions are over.
        size: what it counts for in `backlog`, bytes.
        backlog: the stream's.
    """

    stream: int
    step: VerifierStep
    bad: tuple[Ended, ...]
    size: int
    backlog: Backlog


@dataclass(frozen=True, slots=True)
class StreamClosed:
    """A stream is gone, and its sessions with it."""

    stream: int
    backlog: Backlog


@dataclass(frozen=True, slots=True)
class DrainBegan:
    """From now on no session is admitted."""


#: What the loop receives.
Event = StepArrived | StreamClosed | DrainBegan
