"""The one thread that owns an engine, and the bounded inbox through which everybody else talks to it.

A service's loop is an `EngineLoop`: it receives events (never on another thread) and makes steps. `EngineThread` runs
it: take what has arrived, step, repeat; sleep only when the loop says that there is nothing to do.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from draftwire.errors import InvalidArgument, ModelError, ResourceExhausted

logger = logging.getLogger(__name__)

Event = TypeVar("Event")
Event_contra = TypeVar("Event_contra", contravariant=True)


class EngineLoop(Protocol[Event_contra]):
    """What a service does on the engine's thread."""

    def receive(self, event: Event_contra) -> None:
        """Take one event; quick, no forward here."""

    def step(self, now: float) -> float | None:
        """Make at most one engine step.

        Args:
            now: time.monotonic(), seconds.

        Returns when to be called again even if no event arrives: 0 = at once, t > 0 = in t seconds, None = never.
        """


class EngineThread(Generic[Event]):
    """Runs an EngineLoop on a thread of its own.

    Args:
        make_loop: called first on the new thread, so that the engine's device context belongs to it.
        on_failure: called on the engine's thread if the loop raises; the thread then ends. The service should stop:
            its orchestrator starts a new one.
        capacity: most events that may wait in the inbox.
    """

    def __init__(
        self,
        make_loop: Callable[[], EngineLoop[Event]],
        on_failure: Callable[[Exception], None],
        *,
        name: str = "engine",
        capacity: int = 65536,
    ) -> None:
        self._make_loop = make_loop
        self._on_failure = on_failure
        self._capacity = capacity
        self._inbox: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def post(self, event: Event, *, always: bool = False) -> None:
        """Hand an event to the loop; from any thread, never blocks.

        Args:
            always: take it however much waits. For an event that ends what an earlier one began: the engine must learn
                of it, and there are no more of them than there were beginnings.

        Raises ResourceExhausted if `capacity` events wait already.
        """
        if not always and self._inbox.qsize() >= self._capacity:
            raise ResourceExhausted(f"the engine's inbox holds {self._capacity} events already")
        self._inbox.put(event)

    def stop(self, timeout: float = 10.0) -> bool:
        """Ask the thread to end after its current step and wait; False if it did not within `timeout` seconds."""
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def drain_into(self, loop: EngineLoop[Event]) -> bool:
        """Give the loop what has arrived by now, without waiting; on the engine's thread only. False once told to stop.

        What arrives meanwhile is left for the next time, so that a flood of events cannot keep the loop from its steps.
        """
        for _ in range(self._inbox.qsize()):
            event = self._inbox.get_nowait()
            if event is None:
                self._inbox.put(None)  # leave the request for the outer loop to see
                return False
            loop.receive(event)
        return True

    def _run(self) -> None:
        try:
            loop = self._make_loop()
            wait: float | None = None
            while True:
                event = self._next(wait)
                if event is not _NOTHING:
                    if event is None:
                        return
                    loop.receive(event)  # type: ignore[arg-type]
                    if not self.drain_into(loop):
                        return
                wait = loop.step(time.monotonic())
        except (InvalidArgument, ModelError) as error:
            self._on_failure(error)  # could not start, and its text says why
        except Exception as error:
            logger.exception("the engine's loop failed")
            self._on_failure(error)

    def _next(self, wait: float | None) -> object:
        try:
            if wait == 0:
                return self._inbox.get_nowait()
            return self._inbox.get(timeout=wait)
        except queue.Empty:
            return _NOTHING


_NOTHING = object()
