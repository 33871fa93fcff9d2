"""How much of one stream may wait for the engine's thread; both ends of a Speculate stream count with it."""

from draftwire.errors import ResourceExhausted

#: Most messages of one stream that may wait for the engine's thread.
MAX_WAITING_MESSAGES = 4096

#: Most bytes of one stream that may wait for the engine's thread.
MAX_WAITING_BYTES = 32 << 20

#: Most entries (opens, commits, proposals, ...) in one message.
MAX_ENTRIES = 4096

#: What an entry costs in memory beyond its bytes on the wire, roughly.
ENTRY_BYTES = 128


class Backlog:
    """Counts what a stream has posted and the engine's thread has not taken yet.

    `add` is called on the event loop's thread and `remove` on the engine's; each writes counters of its own, so that
    neither needs a lock.
    """

    def __init__(self) -> None:
        self._messages_in = self._messages_out = 0
        self._bytes_in = self._bytes_out = 0

    @property
    def messages(self) -> int:
        """Messages that wait."""
        return self._messages_in - self._messages_out

    @property
    def bytes(self) -> int:
        """Bytes that wait."""
        return self._bytes_in - self._bytes_out

    def add(self, size: int) -> None:
        """Count a message of `size` bytes; raises ResourceExhausted where that is too much."""
        if self.messages >= MAX_WAITING_MESSAGES or self.bytes + size > MAX_WAITING_BYTES:
            raise ResourceExhausted(
                f"the stream has {self.messages} messages of {self.bytes} bytes waiting; "
                f"limits: {MAX_WAITING_MESSAGES} messages, {MAX_WAITING_BYTES} bytes"
            )
        self._messages_in += 1
        self._bytes_in += size

    def add_end(self) -> None:
        """Count the news that the stream is gone, which always finds room."""
        self._messages_in += 1

    def remove(self, size: int) -> None:
        """The engine's thread has taken a message of `size` bytes."""
        self._messages_out += 1
        self._bytes_out += size
