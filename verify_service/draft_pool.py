"""The draft workers as the verifier knows them, and the choice among them. Pure: no socket, time is an argument."""

import random
from dataclasses import dataclass


@dataclass(slots=True)
class DraftWorker:
    """One connection to a draft worker; a reconnection is a new one.

    Attributes:
        id: unique in this process.
        address: host:port.
        model: the draft's name, for metrics.
        max_model_len: longest sequence that it drafts for.
        max_sessions: how many it holds, from all verify workers.
        reported: sessions that it last said to hold.
        own: sessions of ours on it.
        draining: it is about to stop.
        silent: it owes us proposals; not chosen until it speaks again.
        blocked_until: it said that it is full; not chosen before, seconds.
        heard_at: when it last said anything, seconds.
        fruitless_waits: how often in a row one of our sessions waited its tau and nothing came.
    """

    id: int
    address: str
    model: str
    max_model_len: int
    max_sessions: int
    reported: int = 0
    own: int = 0
    draining: bool = False
    silent: bool = False
    blocked_until: float = 0.0
    heard_at: float = 0.0
    fruitless_waits: int = 0

    @property
    def load(self) -> float:
        """Share of its sessions in use, by its own report or by our count where that is fresher."""
        return max(self.reported, self.own) / max(1, self.max_sessions)


class DraftPool:
    """Every connected draft worker.

    Args:
        rng: decides which two workers are compared.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.workers: dict[int, DraftWorker] = {}

    def choose(self, length: int, now: float) -> DraftWorker | None:
        """A worker for a session of `length` tokens: the less loaded of two drawn at random (power of two choices,
        Mitzenmacher 2001), which spreads load without herding on a stale report. None if none can take it.
        """
        fit = [
            worker
            for worker in self.workers.values()
            if not (worker.draining or worker.silent)
            and worker.load < 1
            and worker.blocked_until <= now
            and length < worker.max_model_len
        ]
        if not fit:
            return None
        return min(self._rng.sample(fit, min(2, len(fit))), key=lambda worker: worker.load)
