"""How a process with an engine starts, ends and fails, on a worker that does what the test says."""

import asyncio
import json

import pytest
from support.timing import PATIENCE

from draftwire.errors import InvalidArgument
from draftwire.service import serve


class Worker:
    """Starts when `ready` is set, or raises `error`."""

    def __init__(self, error=None):
        self.port = 7
        self.failed = asyncio.Event()
        self.ready = asyncio.Event()
        self.error = error
        self.past = []

    async def start(self):
        await self.ready.wait()
        if self.error:
            raise self.error
        self.past.append("started")

    async def drain(self):
        self.past.append("drained")


@pytest.mark.parametrize("failure", [False, True])
async def test_serves_until_told_or_failed(capsys, failure):
    """It announces its ports on stdout once it serves; the exit code is 0 if it was told to stop, 1 if it failed."""
    worker, stop = Worker(), asyncio.Event()
    worker.ready.set()
    serving = asyncio.create_task(serve("draft", worker, stop, 9))
    while not (said := capsys.readouterr().out):
        await asyncio.sleep(0)
    assert json.loads(said) == {"service": "draft", "port": 7, "metrics_port": 9}
    (worker.failed if failure else stop).set()
    assert await asyncio.wait_for(serving, PATIENCE) == int(failure)
    assert worker.past == ["started", "drained"]


async def test_told_to_stop_while_it_loads(capsys):
    """It does not wait for the model, and never says that it serves."""
    worker, stop = Worker(), asyncio.Event()
    serving = asyncio.create_task(serve("draft", worker, stop, 9))
    await asyncio.sleep(0)
    stop.set()
    assert await asyncio.wait_for(serving, PATIENCE) == 0
    assert worker.past == ["drained"]
    assert not capsys.readouterr().out


async def test_cannot_start():
    """The error comes out, after the worker has cleaned up."""
    worker = Worker(InvalidArgument("--port", "is taken"))
    worker.ready.set()
    with pytest.raises(InvalidArgument, match="--port"):
        await serve("draft", worker, asyncio.Event(), 9)
    assert worker.past == ["drained"]
