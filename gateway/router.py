"""Which verify worker answers a request. Pure: no socket, no clock (`now` is seconds on any steady clock).

A worker is down until a probe says `up`, and again after `down`; then it is due for a probe when its backoff is over. A
request goes to the worker that is up and least loaded: our own running calls, relative to what it says it can run.
"""

import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

#: Wait after the first failure, and the most; it doubles in between. Answers may wait for a worker that restarts, so it
#: is found within about a second (so is its connection, draftwire.rpc.client). Unit: seconds.
FIRST_BACKOFF = 0.25
MAX_BACKOFF = 1.0


@dataclass(slots=True)
class _Worker:
    up: bool = False
    capacity: int = 1
    running: int = 0
    failures: int = 0
    due: float = field(default=float("-inf"))

    @property
    def load(self) -> float:
        return self.running / self.capacity


class Router:
    """The workers by address.

    Args:
        addresses: at least one.
        rng: breaks ties, so that several gateways do not all choose the same worker.
    """

    def __init__(self, addresses: Iterable[str], rng: random.Random) -> None:
        self._workers = {address: _Worker() for address in addresses}
        self._rng = rng

    def choose(self, exclude: Collection[str] = ()) -> str | None:
        """Take one call on the least loaded worker that is up; None if there is none. Pair with `release`."""
        able = {a: w for a, w in self._workers.items() if w.up and a not in exclude}
        if not able:
            return None
        least = min(worker.load for worker in able.values())
        address = self._rng.choice([a for a, worker in able.items() if worker.load == least])
        self._workers[address].running += 1
        return address

    def release(self, address: str) -> None:
        """A call that `choose` counted is over."""
        self._workers[address].running -= 1

    def up(self, address: str, capacity: int) -> None:
        """The worker answered a probe; it can run `capacity` calls at once (at least 1 is taken)."""
        worker = self._workers[address]
        worker.up, worker.capacity, worker.failures = True, max(1, capacity), 0

    def down(self, address: str, now: float) -> None:
        """The worker failed a call or a probe. Calls that fail together count as one failure."""
        worker = self._workers[address]
        if worker.up or worker.due <= now:
            worker.due = now + min(MAX_BACKOFF, FIRST_BACKOFF * 2.0**worker.failures)
            worker.failures = min(worker.failures + 1, 32)
        worker.up = False

    def due(self, address: str) -> float:
        """When a worker that is down should be probed."""
        return self._workers[address].due

    def usable(self) -> list[str]:
        """Workers that are up."""
        return [address for address, worker in self._workers.items() if worker.up]
