"""The follower processes of a tensor-parallel engine, as rank 0 sees them: started by exec, watched, ended.

A follower reads its standard input, a pipe of ours, to the end and then exits. So followers end with rank 0 however
that one ends, and to stop them is to close the pipes.
"""

import contextlib
import dataclasses
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

from draftwire.engine.parallel_group import Job
from draftwire.errors import Unavailable

logger = logging.getLogger(__name__)

#: How long a follower may take to exit before it is killed. Seconds.
EXIT_SECONDS = 5.0


class Followers:
    """Ranks 1 to size - 1.

    Args:
        job: rank 0's.
        on_loss: called once, on any thread, when a follower ends though nobody asked it to, or by `lose`.
    """

    def __init__(self, job: Job, on_loss: Callable[[Unavailable], None]) -> None:
        self._on_loss = on_loss
        self._lock = threading.Lock()
        self._closing = False
        self._loss: Unavailable | None = None
        self._lost = threading.Event()
        self._processes = [_start(dataclasses.replace(job, rank=rank)) for rank in range(1, job.size)]
        for rank, process in enumerate(self._processes, start=1):
            name = f"rank {rank} of {job.size} (process {process.pid})"
            threading.Thread(target=self._watch, args=(name, process), name=f"watch-{rank}", daemon=True).start()

    @property
    def pids(self) -> list[int]:
        """Their process ids, rank 1 first."""
        return [process.pid for process in self._processes]

    def check(self) -> None:
        """Raise Unavailable if one was lost; the text names its rank if that is known."""
        if self._loss:
            raise self._loss

    def loss(self, wait: float) -> Unavailable | None:
        """The error of the first that was lost, `wait` seconds granted for the news to come."""
        self._lost.wait(wait)
        return self._loss

    def lose(self, error: Unavailable) -> None:
        """The ranks fell apart: log it and tell `on_loss`, unless that has happened or we are closing."""
        with self._lock:
            if self._closing or self._loss:
                return
            self._loss = error
        logger.error("%s", error)
        self._lost.set()
        self._on_loss(error)

    def close(self) -> None:
        """End them all and wait until they are gone."""
        with self._lock:
            self._closing = True
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(EXIT_SECONDS)
            process.kill()  # does nothing to one that has ended
            process.wait()

    def _watch(self, name: str, process: "subprocess.Popen[bytes]") -> None:
        code = process.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self.lose(Unavailable(f"tensor parallelism: {name} {how}"))


def _start(job: Job) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "draftwire.engine.follower", json.dumps(dataclasses.asdict(job))],
        stdin=subprocess.PIPE,
        stdout=2,  # our stdout carries the ready line and nothing else
        env={**os.environ, "LOCAL_RANK": str(job.rank)},  # transformers puts the rank on the GPU of this number
        start_new_session=True,  # Ctrl-C is for rank 0
    )
