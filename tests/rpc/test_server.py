"""A server over real sockets: port, health, reflection, drain, limits; and a channel that finds it again."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from support.timing import PATIENCE, in_some_try

from draftwire.errors import InvalidArgument, Unavailable
from draftwire.rpc import client as client_module
from draftwire.rpc import server as server_module
from draftwire.rpc.client import connect, wait_ready
from draftwire.rpc.limits import KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS, MAX_MESSAGE_BYTES
from draftwire.rpc.server import RpcServer
from draftwire.rpc.status import error_of
from draftwire.v1 import draft_service_pb2 as pb
from draftwire.v1 import draft_service_pb2_grpc, verify_service_pb2, verify_service_pb2_grpc

SERVICE = "draftwire.v1.DraftService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

#: Granted to a machine that is slow or pauses; where gRPC's own limit is in force it takes a minute. Seconds.
SLACK = 30.0


class SlowServicer(draft_service_pb2_grpc.DraftServiceServicer):
    """GetModel waits until it is released."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.release = asyncio.Event()

    async def GetModel(self, request: Any, context: Any) -> pb.DraftServiceGetModelResponse:
        self.entered.set()
        await self.release.wait()
        return pb.DraftServiceGetModelResponse()

    async def Speculate(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.SpeculateResponse]:
        async for _ in request_iterator:
            yield pb.SpeculateResponse(draining=pb.Draining())


class EndlessServicer(verify_service_pb2_grpc.VerifyServiceServicer):
    """Generate says that it started, then nothing until somebody ends it; `ended` is set once its cleanup ran."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def Generate(
        self, request: Any, context: Any
    ) -> AsyncIterator[verify_service_pb2.VerifyServiceGenerateResponse]:
        try:
            yield verify_service_pb2.VerifyServiceGenerateResponse(started=verify_service_pb2.Started())
            await asyncio.Event().wait()
        finally:
            self.ended.set()


async def start(port: int = 0) -> tuple[RpcServer, SlowServicer, int]:
    """A running server."""
    server, servicer = RpcServer("127.0.0.1", port), SlowServicer()
    draft_service_pb2_grpc.add_DraftServiceServicer_to_server(servicer, server.server)
    return server, servicer, await server.start([SERVICE])


async def health_of(channel: grpc.aio.Channel, service: str) -> int:
    """What the standard health service says."""
    stub = health_pb2_grpc.HealthStub(channel)
    return (await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE)).status


async def test_health_and_reflection() -> None:
    """Health knows the service and the whole server; reflection lists what can be called."""
    server, _, port = await start()
    async with connect(f"127.0.0.1:{port}") as channel:
        assert await health_of(channel, SERVICE) == SERVING
        assert await health_of(channel, "") == SERVING
        await server.set_serving(False)
        assert await health_of(channel, SERVICE) == NOT_SERVING
        assert await health_of(channel, "") == NOT_SERVING
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        answer = await stub.ServerReflectionInfo(iter([request])).read()
        assert {service.name for service in answer.list_services_response.service} == {
            SERVICE,
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
        }
    await server.drain(0)


@pytest.mark.parametrize("taken_by", ["another server", "a plain socket"])
async def test_a_taken_port_is_named(taken_by: str) -> None:
    """Neither a second server (which SO_REUSEPORT would let in) nor a foreign socket goes unnoticed."""
    if taken_by == "another server":
        first, _, port = await start()
    else:
        holder = socket.create_server(("127.0.0.1", 0))
        port = holder.getsockname()[1]
    with pytest.raises(InvalidArgument, match=f"--port: cannot listen on 127.0.0.1:{port}: Address already in use"):
        await start(port)
    if taken_by == "another server":
        await first.drain(0)
    else:
        holder.close()


async def test_an_address_that_is_not_ours_is_named() -> None:
    """A host of another network (TEST-NET-1) fails with the reason."""
    with pytest.raises(InvalidArgument, match="--port: cannot listen on 192.0.2.1:0: Cannot assign"):
        await RpcServer("192.0.2.1", 0).start([SERVICE])


async def test_drain_finishes_running_calls_and_refuses_new_ones() -> None:
    """NOT_SERVING at once, the running call ends well, a new one gets Unavailable, and the port is free afterwards."""
    server, servicer, port = await start()
    async with connect(f"127.0.0.1:{port}") as channel, connect(f"127.0.0.1:{port}") as late:
        stub = draft_service_pb2_grpc.DraftServiceStub(channel)
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await watch.read()).status == SERVING
        call = asyncio.ensure_future(stub.GetModel(pb.DraftServiceGetModelRequest()))
        await asyncio.wait_for(servicer.entered.wait(), PATIENCE)
        drain = asyncio.create_task(server.drain(PATIENCE))
        assert (await asyncio.wait_for(watch.read(), PATIENCE)).status == NOT_SERVING
        watch.cancel()
        with pytest.raises(Unavailable):
            await wait_ready(late, "late", 0.2)
        assert not drain.done()
        servicer.release.set()
        assert await asyncio.wait_for(call, PATIENCE) == pb.DraftServiceGetModelResponse()
        await asyncio.wait_for(drain, PATIENCE)
    again, _, same = await start(port)
    assert same == port
    await again.drain(0)


async def test_drain_cancels_what_outlasts_its_grace() -> None:
    """A call that never ends delays the stop by the grace and no more, and fails."""
    server, servicer, port = await start()
    async with connect(f"127.0.0.1:{port}") as channel:
        call = draft_service_pb2_grpc.DraftServiceStub(channel).GetModel(pb.DraftServiceGetModelRequest())
        task = asyncio.ensure_future(call)
        await asyncio.wait_for(servicer.entered.wait(), PATIENCE)
        await asyncio.wait_for(server.drain(0.1), PATIENCE)
        with pytest.raises(grpc.aio.AioRpcError):
            await asyncio.wait_for(task, PATIENCE)


async def test_the_message_limit_is_four_mebibytes() -> None:
    """A message just below the limit passes, one above fails its call with RESOURCE_EXHAUSTED."""
    server, _, port = await start()
    async with connect(f"127.0.0.1:{port}") as channel:
        stub = draft_service_pb2_grpc.DraftServiceStub(channel)

        def message(size: int) -> pb.SpeculateRequest:
            return pb.SpeculateRequest(hello=pb.Hello(instance_id="x" * size))

        assert (await stub.Speculate(iter([message(MAX_MESSAGE_BYTES - 64)])).read()).HasField("draining")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Speculate(iter([message(MAX_MESSAGE_BYTES)])).read()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await server.drain(0)


async def test_a_restarted_server_is_found_again_within_two_seconds() -> None:
    """The channel reconnects by itself, with a backoff made for failover and not for the internet."""

    async def seconds_to_be_found() -> float:
        server, _, port = await start()
        async with connect(f"127.0.0.1:{port}") as channel:
            await wait_ready(channel, "server", PATIENCE)
            await server.drain(0)
            with pytest.raises(grpc.aio.AioRpcError):
                await health_of(channel, "")
            again, _, _ = await start(port)
            began = time.monotonic()
            await wait_ready(channel, "server", PATIENCE)
            seconds = time.monotonic() - began
            assert await health_of(channel, "") == SERVING
            await again.drain(0)
        return seconds

    await in_some_try(seconds_to_be_found, lambda seconds: seconds < 2)


async def test_nobody_there_is_a_clear_error() -> None:
    """wait_ready is bounded and names the address."""
    holder = socket.create_server(("127.0.0.1", 0))
    port = holder.getsockname()[1]
    holder.close()
    async with connect(f"127.0.0.1:{port}") as channel:
        with pytest.raises(Unavailable, match=f"127.0.0.1:{port} cannot be reached within 0.1 s"):
            await wait_ready(channel, f"127.0.0.1:{port}", 0.1)


@pytest.mark.parametrize("address", ["", "host", ":1", "host:", "host:x", "host:0", "host:65536", "host:²"])
async def test_a_bad_address_is_named(address: str) -> None:
    """What is not host:port fails before any connection is tried."""
    with pytest.raises(InvalidArgument, match="must be host:port"):
        connect(address)


@pytest.mark.parametrize("how", ["cancelled", "past its deadline"])
async def test_the_cleanup_of_an_ended_call_runs_at_once(how: str) -> None:
    """What a streaming method holds is freed when its caller goes, not when garbage is collected."""
    server, servicer = RpcServer("127.0.0.1", 0), EndlessServicer()
    verify_service_pb2_grpc.add_VerifyServiceServicer_to_server(servicer, server.server)
    port = await server.start(["draftwire.v1.VerifyService"])
    async with connect(f"127.0.0.1:{port}") as channel:
        await wait_ready(channel, "server", PATIENCE)
        call = verify_service_pb2_grpc.VerifyServiceStub(channel).Generate(
            verify_service_pb2.VerifyServiceGenerateRequest(), timeout=2.0 if how == "past its deadline" else None
        )
        assert (await call.read()).HasField("started")
        if how == "cancelled":
            call.cancel()
        await asyncio.wait_for(servicer.ended.wait(), PATIENCE)
    await server.drain(0)


@pytest.fixture
def keepalive_five_times_faster(monkeypatch: pytest.MonkeyPatch) -> float:
    """Both ends ping after 1 s; returns the factor. (gRPC pings once a second at most.)

    They wait for an answer as long as ever: this machine may be slow.
    """
    names = ("keepalive_time_ms", "min_ping_interval_without_data_ms")
    for module in (server_module, client_module):
        options = [(name, value // 5 if name.endswith(names) else value) for name, value in module._OPTIONS]
        monkeypatch.setattr(module, "_OPTIONS", options)
    return 0.2


async def test_a_silent_connection_is_given_up(keepalive_five_times_faster: float) -> None:
    """A peer whose machine vanished answers no ping: the call fails after keepalive time + timeout, not after hours."""
    server, servicer, port = await start()
    vanished = asyncio.Event()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if not vanished.is_set():
                writer.write(data)
        if not vanished.is_set():
            writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_server = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(forward(reader, to_server[1]), forward(to_server[0], writer))

    network = await asyncio.start_server(connected, "127.0.0.1", 0)
    limit = (keepalive_five_times_faster * KEEPALIVE_MS + KEEPALIVE_TIMEOUT_MS) / 1000
    async with connect(f"127.0.0.1:{network.sockets[0].getsockname()[1]}") as channel:
        stub = draft_service_pb2_grpc.DraftServiceStub(channel)
        call = asyncio.ensure_future(stub.GetModel(pb.DraftServiceGetModelRequest()))
        await asyncio.wait_for(servicer.entered.wait(), PATIENCE)
        vanished.set()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(call, limit + SLACK)
        assert isinstance(error_of(caught.value), Unavailable)
    network.close()
    await server.drain(0)


@pytest.mark.usefixtures("keepalive_five_times_faster")
async def test_pings_on_an_idle_stream_are_no_abuse() -> None:
    """A stream with nothing to say outlives six keepalive pings; a server that minds them ends it at the fourth."""
    server, _, port = await start()
    async with connect(f"127.0.0.1:{port}") as channel:
        call = draft_service_pb2_grpc.DraftServiceStub(channel).Speculate()
        await call.write(pb.SpeculateRequest())
        await call.read()
        ended = asyncio.ensure_future(call.read())
        done, _ = await asyncio.wait({ended}, timeout=6.5)
        assert not done
        call.cancel()
        await asyncio.wait({ended})
    await server.drain(0)


async def test_drain_does_not_wait_for_health_watchers() -> None:
    """A load balancer that watches the health, and one that is gone already, learn of the drain and do not hold it."""
    server = RpcServer("127.0.0.1", 0)
    port = await server.start([])
    request = health_pb2.HealthCheckRequest()
    async with connect(f"127.0.0.1:{port}") as channel, connect(f"127.0.0.1:{port}") as gone:
        watch = health_pb2_grpc.HealthStub(channel).Watch(request)
        assert (await watch.read()).status == SERVING
        await health_pb2_grpc.HealthStub(gone).Watch(request).read()
        await gone.close()
        await asyncio.wait_for(server.drain(2 * PATIENCE), PATIENCE)
        assert (await watch.read()).status == NOT_SERVING
        assert await watch.read() is grpc.aio.EOF
