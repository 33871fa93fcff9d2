"""Every error that draftwire raises on purpose.

    DraftwireError
    ├── InvalidArgument     the caller's fault: names the field and the limit
    ├── NotFound            the caller asked for a model that is not served
    ├── ResourceExhausted   full now; says when to try again
    ├── Unavailable         cannot serve: draining, or nothing behind it can be reached
    ├── DeadlineExceeded    the caller's time is over
    ├── Incompatible        the two ends cannot work together: protocol version or vocabulary differ
    ├── ProtocolViolation   the other end of a session broke the session protocol
    ├── ModelError          a model cannot be loaded or is not supported
    └── EngineError         a forward pass failed

Only `draftwire.rpc.status` knows which gRPC status each of them is.
"""


class DraftwireError(Exception):
    """The root; its text is meant for the person who reads the log or the caller who gets the status."""


class InvalidArgument(DraftwireError):
    """A field has a bad value. `field` is its name as the caller knows it, the text says the limit."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class NotFound(DraftwireError):
    """The thing asked for does not exist here."""


class ResourceExhausted(DraftwireError):
    """A bounded queue or pool is full; try again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(DraftwireError):
    """The service drains, or nothing behind it can be reached; another instance may serve the call."""


class DeadlineExceeded(DraftwireError):
    """The caller's time is over."""


class Incompatible(DraftwireError):
    """The two ends of a stream cannot work together: their protocol versions or vocabularies differ."""


class ProtocolViolation(DraftwireError):
    """The peer sent something that the session protocol forbids; its session ends, nobody else's."""


class ModelError(DraftwireError):
    """A model cannot be found, read, or run by this engine; the text says what to do."""


class EngineError(DraftwireError):
    """A forward pass failed; the sessions in it are lost."""
