"""The way of one answer's events from the engine's thread to the caller's stream.

The engine's thread never waits for a caller: it hands all events of a step to the event loop in one call, and pauses a
session whose caller is too far behind. Tokens that a caller has not taken yet merge into one event, and callers are
woken a few at a time, so that many of them never keep the loop from reading the drafts' proposals.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from draftwire.types import Committed, Finished, Started

Event = Started | Committed | Finished | Exception

#: Callers woken in one turn of the event loop.
WAKE_AT_ONCE = 8


class Output:
    """Events of one answer; made on the event loop.

    Args:
        limit: most tokens that may wait for the caller before the session pauses.
        resume: called on the event loop when the caller of a paused session has made room.
    """

    def __init__(self, limit: int, resume: Callable[[], None]) -> None:
        self._limit = limit
        self._resume = resume
        self._waiting: deque[Event] = deque()  # bounded by `full`: a session that is full commits nothing
        self._filled = asyncio.Event()
        self._produced = 0  # written by the engine's thread alone
        self._consumed = 0  # written by the event loop alone

    @property
    def full(self) -> bool:
        """Whether the session must pause; read on the engine's thread."""
        return self._produced - self._consumed >= self._limit

    def produced(self, event: Event) -> None:
        """An event is on its way; on the engine's thread."""
        if isinstance(event, Committed):
            self._produced += len(event.token_ids)

    def put(self, event: Event) -> None:
        """Take an event, without waking the caller; on the event loop. An exception ends the stream with that error."""
        last = self._waiting[-1] if self._waiting else None
        if isinstance(event, Committed) and isinstance(last, Committed):
            merged = Committed(last.position, last.token_ids + event.token_ids, event.speculation, event.cached_tokens)
            self._waiting[-1] = merged
        else:
            self._waiting.append(event)

    def wake(self) -> None:
        """Let the caller take what waits, unless it has already."""
        if self._waiting:
            self._filled.set()

    async def get(self) -> Started | Committed | Finished:
        """The next event; raises the error that ended the answer, if one did."""
        await self._filled.wait()
        event = self._waiting.popleft()
        if not self._waiting:
            self._filled.clear()
        if isinstance(event, Exception):
            raise event
        if isinstance(event, Committed):
            self._consumed += len(event.token_ids)
            waiting = self._produced - self._consumed  # read after our own counter, so that no pause is overlooked
            if waiting < self._limit <= waiting + len(event.token_ids):
                self._resume()
        return event


class Mailman:
    """Collects a step's events on the engine's thread and delivers them in one hop to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._letters: list[tuple[Output, Event]] = []
        self._to_wake: dict[Output, None] = {}  # in the order in which they began to wait

    def post(self, output: Output, event: Event) -> None:
        """Queue an event for the next `deliver`; on the engine's thread."""
        output.produced(event)
        self._letters.append((output, event))

    def deliver(self) -> None:
        """Send everything queued so far; on the engine's thread."""
        if self._letters:
            letters, self._letters = self._letters, []
            self._loop.call_soon_threadsafe(self._hand_out, letters)

    def _hand_out(self, letters: Sequence[tuple[Output, Event]]) -> None:
        was_idle = not self._to_wake
        for output, event in letters:
            output.put(event)
            self._to_wake[output] = None
        if was_idle:
            self._wake_some()

    def _wake_some(self) -> None:
        for output in list(self._to_wake)[:WAKE_AT_ONCE]:
            del self._to_wake[output]
            output.wake()
        if self._to_wake:
            self._loop.call_soon(self._wake_some)
