"""An answer that lost its verify worker, and there is no other: how long it waits for one, and what it then says."""

import asyncio

import grpc
import pytest
from support.fake_verify import FakeVerify, serve_fake
from support.gateway import read_all, request, running_gateway

from draftwire.errors import ResourceExhausted, Unavailable
from draftwire.rpc.status import error_of

SCRIPT = list(b"the only worker restarts")
TEXT = bytes(SCRIPT).decode()

#: A wait that no test sees the end of. Seconds.
LONG = 3600.0


async def test_the_only_worker_restarts():
    """It dies in mid stream and comes back on its port: the answer goes on after the last token that was committed."""
    first, again = FakeVerify(SCRIPT, hold_at=6), FakeVerify(SCRIPT)
    async with running_gateway(first, failover_wait=LONG) as gateway:
        call = gateway.stub.GenerateStream(request(seed=7))
        await first.holding.wait()
        await gateway.workers[0].stop()
        await gateway.until_workers(0)
        async with serve_fake(again, int(gateway.workers[0].address.rpartition(":")[2])):
            text, token_ids, done = await read_all(call)
        assert gateway.metric("draftwire_gateway_worker_failures_total") == 1
    assert (text, token_ids) == (TEXT, SCRIPT)
    assert done.usage.completion_tokens == done.speculation.committed_tokens == len(SCRIPT)
    (resumed,) = again.calls
    assert list(resumed.committed_token_ids) == SCRIPT[:6]
    assert resumed.seed == 7


async def test_the_wait_is_bounded():
    """Nobody comes back: UNAVAILABLE after the limit, which the text names, and not before."""
    fake = FakeVerify(SCRIPT, hold_at=6)
    async with running_gateway(fake, failover_wait=0.5) as gateway:
        call = gateway.stub.GenerateStream(request())
        await fake.holding.wait()
        stopped = asyncio.get_running_loop().time()
        await gateway.workers[0].stop()
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await read_all(call)
        assert asyncio.get_running_loop().time() - stopped >= 0.5
    error = error_of(failure.value)
    assert isinstance(error, Unavailable)
    assert "0.5 s (--failover-wait)" in str(error)


async def test_a_call_that_finds_nobody_does_not_wait():
    """It has lost nothing: UNAVAILABLE at once, so that its caller may try another gateway."""
    fake = FakeVerify(SCRIPT)
    async with running_gateway(fake, failover_wait=LONG) as gateway:
        assert (await gateway.stub.Generate(request())).text == TEXT
        await gateway.workers[0].stop()
        await gateway.until_workers(0)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await gateway.stub.Generate(request())
    assert isinstance(error_of(failure.value), Unavailable)


async def test_the_deadline_ends_the_wait():
    """A caller whose time is over while its answer waits gets DEADLINE_EXCEEDED, and its place is free."""
    fake = FakeVerify(SCRIPT, hold_at=6)
    async with running_gateway(fake, failover_wait=LONG) as gateway:
        call = gateway.stub.GenerateStream(request(), timeout=3.0)
        await fake.holding.wait()
        await gateway.workers[0].stop()
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await read_all(call)
        await gateway.until_value("draftwire_gateway_requests_in_flight", 0)
    assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_full_workers_are_asked_again():
    """The other worker is full when the first dies: the answer goes on there once there is room."""
    dying, full = FakeVerify(SCRIPT, hold_at=6), FakeVerify(SCRIPT, refuse=ResourceExhausted("full", 0.0))
    async with running_gateway(dying, full, failover_wait=LONG) as gateway:
        call = gateway.stub.GenerateStream(request())
        await dying.holding.wait()
        asked = len(full.calls)
        await gateway.workers[0].stop()
        while len(full.calls) < asked + 2:
            await asyncio.sleep(0.01)
        full.refuse = None
        text, token_ids, _ = await read_all(call)
    assert (text, token_ids) == (TEXT, SCRIPT)


async def test_full_workers_are_not_asked_for_ever():
    """There never is room: RESOURCE_EXHAUSTED, with a hint, after the limit."""
    dying, full = FakeVerify(SCRIPT, hold_at=6), FakeVerify(SCRIPT, refuse=ResourceExhausted("full", 0.2))
    async with running_gateway(dying, full, failover_wait=0.5) as gateway:
        call = gateway.stub.GenerateStream(request())
        await dying.holding.wait()
        await gateway.workers[0].stop()
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await read_all(call)
    error = error_of(failure.value)
    assert isinstance(error, ResourceExhausted)
    assert error.retry_after == 0.2
