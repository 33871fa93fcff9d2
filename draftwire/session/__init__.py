"""The session protocol without IO: both ends as state machines, messages in, messages out (docs/protocol.md).

messages    what the ends say to each other
drafter     the draft worker's end of one session
verifier    the verify worker's end of one session
outbox      what waits to be written on a stream, merged per session
paths       the comparison both ends make
validity    what a guess must be before it may be tested
"""

from draftwire.session.drafter import DrafterSession
from draftwire.session.messages import (
    PROTOCOL_VERSION,
    Close,
    Commit,
    DrafterStep,
    Draining,
    Ended,
    Hello,
    Idle,
    Load,
    Open,
    Opened,
    Proposal,
    VerifierStep,
)
from draftwire.session.outbox import DrafterOutbox, VerifierOutbox
from draftwire.session.verifier import VerifierSession

__all__ = [
    "PROTOCOL_VERSION",
    "Close",
    "Commit",
    "DrafterOutbox",
    "DrafterSession",
    "DrafterStep",
    "Draining",
    "Ended",
    "Hello",
    "Idle",
    "Load",
    "Open",
    "Opened",
    "Proposal",
    "VerifierOutbox",
    "VerifierSession",
    "VerifierStep",
]
