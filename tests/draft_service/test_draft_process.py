"""`python -m draft_service` as a real process on the fake engine."""

import asyncio
import os
import re
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil
import pytest
from draft_client import Client
from draft_harness import ngram_info, opening
from support.timing import PATIENCE

from draft_service.__main__ import serve
from draft_service.config import DraftConfig
from draft_service.drafters.base import Drafter
from draft_service.drafters.ngram import NgramDrafter
from draftwire.errors import EngineError, InvalidArgument
from draftwire.rpc.client import connect
from draftwire.service import pin
from draftwire.session import Close
from draftwire.v1.draft_service_pb2_grpc import DraftServiceStub


@asynccontextmanager
async def process(*flags: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The worker, killed at the end if it still runs."""
    command = [sys.executable, "-m", "draft_service", "--port", "0", "--metrics-port", "0", *flags]
    child = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def logged(child: asyncio.subprocess.Process, pattern: str) -> re.Match[str]:
    """Read the log until a line matches."""
    assert child.stderr
    async with asyncio.timeout(PATIENCE):
        while line := await child.stderr.readline():
            if found := re.search(pattern, line.decode()):
                return found
    raise AssertionError(f"the process ended without saying {pattern!r}")


@pytest.mark.e2e
async def test_serves_then_drains_on_sigterm() -> None:
    """It drafts; upon SIGTERM it says Draining, waits for the session to be closed, and exits with 0."""
    core = str(min(os.sched_getaffinity(0)))
    async with process("--draft", "fake:", "--served-model-name", "mine", "--cpu-affinity", core) as child:
        port = (await logged(child, r"serving mine .*:(\d+)$"))[1]
        async with connect(f"127.0.0.1:{port}") as channel:
            client = await Client(DraftServiceStub(channel)).greet()
            await client.say(opening([7], 2))
            assert await client.tokens(1, path=0, position=1, count=2) == [8, 9]
            child.send_signal(signal.SIGTERM)
            await client.until(lambda: client.drained)
            assert child.returncode is None
            await client.say(Close(1))
            assert await asyncio.wait_for(child.wait(), PATIENCE) == 0


@pytest.mark.parametrize("failure", [None, EngineError("the device is gone")])
async def test_what_ends_it_before_it_serves(failure: EngineError | None) -> None:
    """Told to stop while it loads it returns 0 without waiting for the load; a load that fails raises its error."""
    loading, loaded, stop = asyncio.Event(), threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow_or_broken(config: DraftConfig) -> Drafter:
        if failure:
            raise failure
        loop.call_soon_threadsafe(loading.set)
        loaded.wait(PATIENCE)
        return NgramDrafter(ngram_info(), max_sessions=1)

    serving = asyncio.create_task(serve(DraftConfig(port=0, metrics_port=0), stop, slow_or_broken))
    if failure:
        with pytest.raises(EngineError):
            await serving
        return
    await loading.wait()
    stop.set()
    assert await asyncio.wait_for(serving, PATIENCE) == 0
    loaded.set()
    for thread in threading.enumerate():
        if thread.name == "draft-engine":
            await asyncio.to_thread(thread.join, PATIENCE)
            assert not thread.is_alive()


@pytest.mark.e2e
async def test_a_missing_model_is_said_in_a_line() -> None:
    """Exit code 1, the model's name, no traceback."""
    async with process("--draft", "/nowhere") as child:
        assert child.stderr
        log = (await asyncio.wait_for(child.stderr.read(), PATIENCE)).decode()
        assert "draft: error: /nowhere" in log
        assert "Traceback" not in log
        assert await child.wait() == 1


def test_an_impossible_core_is_refused() -> None:
    """The flag is named; no core given changes nothing."""
    before = psutil.Process().cpu_affinity()
    with pytest.raises(InvalidArgument, match="--cpu-affinity"):
        pin([4095])
    pin([])
    assert psutil.Process().cpu_affinity() == before
