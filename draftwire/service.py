"""How a service process runs: logging, signals, the event loop, and one clear line if it cannot start."""

import asyncio
import json
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import psutil

from draftwire.errors import DraftwireError, InvalidArgument

logger = logging.getLogger(__name__)

#: The engine's thread and the event loop share the interpreter; Python's default lets one keep the other waiting 5 ms.
SWITCH_INTERVAL = 0.0005


def run(service: str, main: Callable[[asyncio.Event], Awaitable[int | None]], *, log_level: str = "info") -> int:
    """Run `main(stop)` to its end and return the process's exit code: what main returned, None = 0.

    SIGTERM and SIGINT set `stop`, upon which main drains and returns; a second one exits at once. A DraftwireError out
    of main, a taken port for example, is printed as one line and gives 1.
    """
    set_up_logging(service, log_level)
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        return asyncio.run(_with_signals(main)) or 0
    except DraftwireError as error:
        print(f"{service}: error: {error}", file=sys.stderr)
        return 1


async def _with_signals(main: Callable[[asyncio.Event], Awaitable[int | None]]) -> int | None:
    stop = asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            os._exit(128 + number)  # the drain may be what hangs
        logger.info("%s: draining; once more exits at once", number.name)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    return await main(stop)


def set_up_logging(service: str, level: str) -> None:
    """One line per event on stderr: time in UTC, level, service, module, message."""
    handler = logging.StreamHandler()
    handler.setFormatter(_LineFormatter(f"%(asctime)s.%(msecs)03dZ %(levelname)s {service} %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class _LineFormatter(logging.Formatter):
    """Escapes line breaks in messages, which may quote what a caller sent; only a traceback has lines of its own."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = ""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = record.message.replace("\r", "\\r").replace("\n", "\\n")
        return super().formatMessage(record)


class Worker(Protocol):
    """What `serve` runs: a server around an engine.

    Attributes:
        port: its gRPC port, once it is started.
        failed: set when its engine fails.
    """

    port: int
    failed: asyncio.Event

    async def start(self) -> None:
        """Load the model and serve; raises the error that kept it from starting."""

    async def drain(self) -> None:
        """Finish what runs and end, also where `start` was given up."""


async def serve(service: str, worker: Worker, stop: asyncio.Event, metrics_port: int) -> int:
    """Start a worker, announce it, and drain it once `stop` is set or its engine failed; the exit code.

    Told to stop while the worker starts, it does not wait for the model.
    """
    starting = asyncio.create_task(worker.start())
    stopping, failing = asyncio.create_task(stop.wait()), asyncio.create_task(worker.failed.wait())
    try:
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            announce(service, worker.port, metrics_port)
            await asyncio.wait([stopping, failing], return_when=asyncio.FIRST_COMPLETED)
    finally:
        tasks = (starting, stopping, failing)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await worker.drain()
    return int(worker.failed.is_set())


def instance_id(prefix: str) -> str:
    """A name that no other process has, and no later one on the same machine: prefix-host-pid-random."""
    return f"{prefix}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def announce(service: str, port: int, metrics_port: int) -> None:
    """Tell whoever started the process, as one JSON line on stdout, that it serves and where. Logs go to stderr."""
    logger.info("ready: gRPC on port %d, metrics on port %d", port, metrics_port)
    print(json.dumps({"service": service, "port": port, "metrics_port": metrics_port}), flush=True)


def pin(cores: Sequence[int]) -> None:
    """Keep the process on these CPU cores (--cpu-affinity); none = leave it free. Before torch starts its threads.

    Raises InvalidArgument("--cpu-affinity") for a core that it may not use.
    """
    if not cores:
        return
    allowed = set(psutil.Process().cpu_affinity())
    if unknown := set(cores) - allowed:
        raise InvalidArgument("--cpu-affinity", f"no core {sorted(unknown)}; there are {sorted(allowed)}")
    psutil.Process().cpu_affinity(list(cores))
