"""Service processes under one roof: start by exec, wait until they say that they are ready, stop in order.

A service prints one JSON line on stdout when it serves (`draftwire.service.announce`); everything else that it says
goes to its log on stderr. So readiness, and the ports that "0 = any free one" became, need no polling and no guessing.
Its stdin is a pipe of ours, upon whose end it drains (`draftwire.cli.tethered`): no service outlives a killed starter.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from draftwire.errors import Unavailable

#: Longest that a service may take to load its model and serve.
START_SECONDS = 600.0

#: How long a killed process may take to be gone. What it started itself may hold its stdout for longer.
KILL_SECONDS = 10.0

#: Lines of a failed service's log that its error quotes.
QUOTED_LINES = 5


@dataclass(slots=True)
class ServiceProcess:
    """One service as a child process.

    Attributes:
        name: for messages.
        module: what `python -m` runs.
        flags: its flags, without the leading dashes; None values are left out, True is a bare flag.
        log: file that its stderr goes to.
        environment: added to ours.
        port, metrics_port: known once it is ready.
    """

    name: str
    module: str
    flags: Mapping[str, object]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int = 0
    metrics_port: int = 0
    _process: asyncio.subprocess.Process | None = None

    @property
    def address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs."""
        return self._process.returncode if self._process else None

    async def start(self) -> None:
        """Start it and wait until it is ready. Raises Unavailable, with the end of its log, if it is not."""
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "draftwire.cli.tethered", self.module, *command_line(self.flags)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, **self.environment},
                start_new_session=True,  # Ctrl-C is for us; we stop our children in order
            )
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), START_SECONDS)
        except TimeoutError:
            await self.kill()
            raise Unavailable(f"{self.name} was not ready within {START_SECONDS:g} s; {self.last_words()}") from None
        if not line:
            await self._process.wait()
            raise Unavailable(f"{self.name} did not start (exit code {self.returncode}): {self.last_words()}")
        ready = json.loads(line)
        self.port, self.metrics_port = ready["port"], ready["metrics_port"]

    async def wait(self) -> int:
        """Wait until it ends; its exit code."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self, grace: float = 35.0) -> None:
        """SIGTERM, wait while it drains, SIGKILL if it takes longer than `grace` seconds."""
        if self._process is None or self.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), grace)
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        """SIGKILL, as a machine that goes down would; waits at most KILL_SECONDS."""
        self.signal(signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.wait(), KILL_SECONDS)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it was never started or is gone already."""
        if self._process is not None and self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def logged(self, text: str) -> str | None:
        """The first line of its log that holds `text`, from there on; None = not yet."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return next((text + line.partition(text)[2] for line in lines if text in line), None)

    def last_words(self) -> str:
        """The end of its log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return " | ".join(lines[-QUOTED_LINES:]) or "it logged nothing"


def command_line(flags: Mapping[str, object]) -> Sequence[str]:
    """{"max_num_seqs": 4, "batch_invariant": True, "drafts": ["a:1", "b:2"], "device": None}
    -> --max-num-seqs 4 --batch-invariant --drafts a:1,b:2
    """
    words: list[str] = []
    for name, value in flags.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif isinstance(value, list | tuple):
            words += [flag, ",".join(map(str, value))] if value else []
        elif value is not None and value is not False:
            words += [flag, str(value)]
    return words


def split_cores() -> tuple[list[int], list[int]]:
    """(verify's cores, draft's cores) of this machine: a quarter for the draft, at least one each where there are two.

    Two engines that compete for a core wait for each other at every barrier, so each gets its own.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) == 1:
        return cores, cores
    share = max(1, len(cores) // 4)
    return cores[:-share], cores[-share:]
