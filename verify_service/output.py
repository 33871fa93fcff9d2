"""The way of one answer's events from the engine's thread to the caller's stream.

The engine's thread never waits for a caller: it hands all events of a step to the event loop in one call, and pauses a
session whose caller is too far behind. The two counters have one writer each, so no lock is needed.
"""

import asyncio
from collections.abc import Sequence

from draftwire.types import Committed, Finished, Started

Event = Started | Committed | Finished | Exception


class Output:
    """Events of one answer; made on the event loop.

    Args:
        limit: most events that may wait for the caller before the session pauses.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queue: asyncio.Queue[Event] = asyncio.Queue()  # bounded by `full`: the engine adds nothing to a full one
        self._produced = 0
        self._consumed = 0

    @property
    def full(self) -> bool:
        """Whether the session must pause; read on the engine's thread."""
        return self._produced - self._consumed >= self._limit

    def produced(self) -> None:
        """An event is on its way; on the engine's thread."""
        self._produced += 1

    def put(self, event: Event) -> None:
        """Deliver an event; on the event loop. An exception ends the stream with that error."""
        self._queue.put_nowait(event)

    async def get(self) -> Started | Committed | Finished:
        """The next event; raises the error that ended the answer, if one did."""
        event = await self._queue.get()
        self._consumed += 1
        if isinstance(event, Exception):
            raise event
        return event


class Mailman:
    """Collects a step's events on the engine's thread and delivers them in one hop to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._letters: list[tuple[Output, Event]] = []

    def post(self, output: Output, event: Event) -> None:
        """Queue an event for the next `deliver`."""
        output.produced()
        self._letters.append((output, event))

    def deliver(self) -> None:
        """Send everything queued so far."""
        if self._letters:
            letters, self._letters = self._letters, []
            self._loop.call_soon_threadsafe(_deliver, letters)


def _deliver(letters: Sequence[tuple[Output, Event]]) -> None:
    for output, event in letters:
        output.put(event)
