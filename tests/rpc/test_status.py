"""Errors as statuses, over a real server: what is raised in a servicer is what the client gets back."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from support.timing import PATIENCE

from draftwire import errors
from draftwire.rpc.client import connect
from draftwire.rpc.server import RpcServer
from draftwire.rpc.status import MAX_STATUS_TEXT_BYTES, error_of, errors_as_status, status_of
from draftwire.v1 import draft_service_pb2 as pb
from draftwire.v1 import draft_service_pb2_grpc

ERRORS = [
    errors.InvalidArgument("sampling.top_p", "must be above 0 and at most 1, got 0"),
    errors.NotFound("model 'x' is not served; known: y"),
    errors.ResourceExhausted("64 sessions wait already", retry_after=2.5),
    errors.Unavailable("the worker drains"),
    errors.DeadlineExceeded("no answer in time"),
    errors.Incompatible("protocol version 2, this end speaks 1"),
    errors.ProtocolViolation("window: must be at most 64 tokens, got 65"),
    errors.ModelError("no model at /tmp/x"),
    errors.EngineError("CUDA error"),
]


class Servicer(draft_service_pb2_grpc.DraftServiceServicer):
    """Both methods do what the test says; the stream first sends one message."""

    def __init__(self) -> None:
        self.act: Callable[[], Awaitable[None]]

    async def GetModel(self, request: Any, context: Any) -> Any:
        async with errors_as_status(context):
            await self.act()

    async def Speculate(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        async with errors_as_status(context):
            async for _ in request_iterator:
                yield pb.SpeculateResponse(draining=pb.Draining())
                await self.act()


@pytest.fixture
async def served() -> AsyncIterator[tuple[Servicer, draft_service_pb2_grpc.DraftServiceStub, grpc.aio.Channel]]:
    """A servicer, and a client of it over loopback."""
    servicer, server = Servicer(), RpcServer("127.0.0.1", 0)
    draft_service_pb2_grpc.add_DraftServiceServicer_to_server(servicer, server.server)
    port = await server.start(["draftwire.v1.DraftService"])
    async with connect(f"127.0.0.1:{port}") as channel:
        yield servicer, draft_service_pb2_grpc.DraftServiceStub(channel), channel
    await server.drain(0)


def raising(error: Exception) -> Callable[[], Awaitable[None]]:
    """An action that fails."""

    async def act() -> None:
        raise error

    return act


async def failed(stub: Any, method: str) -> grpc.aio.AioRpcError:
    """Call the method and return its failure."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        if method == "GetModel":
            await stub.GetModel(pb.DraftServiceGetModelRequest())
        else:
            async for _ in stub.Speculate(iter([pb.SpeculateRequest()])):
                pass
    return caught.value


@pytest.mark.parametrize("method", ["GetModel", "Speculate"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_an_error_arrives_as_itself(served: Any, error: errors.DraftwireError, method: str) -> None:
    """Class, text, field and retry time survive, from unary and streaming methods, in the middle of a stream too."""
    servicer, stub, _ = served
    servicer.act = raising(error)
    got = error_of(await failed(stub, method))
    assert type(got) is type(error)
    assert str(got) == str(error)
    assert getattr(got, "field", None) == getattr(error, "field", None)
    assert getattr(got, "retry_after", None) == getattr(error, "retry_after", None)


async def test_details_are_what_other_languages_read(served: Any) -> None:
    """ErrorInfo names domain, reason and field; RetryInfo says when; both by Google's published types."""
    servicer, stub, _ = served
    servicer.act = raising(ERRORS[0])
    error = await failed(stub, "GetModel")
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    info = error_details_pb2.ErrorInfo()
    assert rpc_status.from_call(error).details[0].Unpack(info)
    assert (info.domain, info.reason) == ("draftwire", "INVALID_ARGUMENT")
    assert info.metadata["field"] == "sampling.top_p"
    servicer.act = raising(errors.ResourceExhausted("full", retry_after=0.25))
    retry = error_details_pb2.RetryInfo()
    assert rpc_status.from_call(await failed(stub, "GetModel")).details[1].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 250


@pytest.mark.parametrize("method", ["GetModel", "Speculate"])
async def test_an_unexpected_error_is_logged_and_kept(
    served: Any, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    """The caller learns INTERNAL and nothing of our insides; the log has the traceback."""
    servicer, stub, _ = served
    servicer.act = raising(KeyError("secret"))
    with caplog.at_level(logging.ERROR):
        error = await failed(stub, method)
    assert error.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in str(error)
    assert "secret" in caplog.text
    assert isinstance(error_of(error), errors.EngineError)


async def test_cancellation_passes_through(served: Any) -> None:
    """A cancelled call raises CancelledError inside the servicer, not an error of ours."""
    servicer, stub, _ = served
    entered, seen = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def act() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        except BaseException as error:
            seen.set_result(type(error))
            raise

    servicer.act = act
    call = stub.GetModel(pb.DraftServiceGetModelRequest())
    task = asyncio.ensure_future(call)
    await asyncio.wait_for(entered.wait(), PATIENCE)
    call.cancel()
    assert await asyncio.wait_for(seen, PATIENCE) is asyncio.CancelledError
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_deadline_is_DeadlineExceeded(served: Any) -> None:
    """gRPC's own status, without details, becomes our error."""
    servicer, stub, _ = served
    servicer.act = asyncio.Event().wait
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.GetModel(pb.DraftServiceGetModelRequest(), timeout=0.05)
    assert isinstance(error_of(caught.value), errors.DeadlineExceeded)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.Unavailable),
        (grpc.StatusCode.CANCELLED, errors.Unavailable),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.ResourceExhausted),
        (grpc.StatusCode.UNIMPLEMENTED, errors.Incompatible),
        (grpc.StatusCode.INVALID_ARGUMENT, errors.ProtocolViolation),
        (grpc.StatusCode.UNKNOWN, errors.EngineError),
        (grpc.StatusCode.INTERNAL, errors.EngineError),
    ],
)
@pytest.mark.parametrize("details", [(), (("grpc-status-details-bin", b"\xff\xff"),)])
def test_a_foreign_status_becomes_the_nearest_error(code: Any, kind: type, details: Any) -> None:
    """Statuses of gRPC, of proxies and of other implementations, with unreadable details too, never raise."""
    error = error_of(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*details), details="text"))
    assert type(error) is kind
    assert str(error) == "text"


async def test_a_forwarded_error_stays_what_it_was(served: Any) -> None:
    """A servicer whose own downstream call fails passes that error on: a gateway's caller sees the worker's."""
    servicer, stub, _ = served
    servicer.act = raising(ERRORS[0])
    downstream = await failed(stub, "GetModel")
    servicer.act = raising(downstream)
    assert error_of(await failed(stub, "GetModel")).field == "sampling.top_p"


@pytest.mark.parametrize("method", ["GetModel", "Speculate"])
async def test_bytes_that_do_not_parse_are_the_callers_fault(served: Any, method: str) -> None:
    """A request that is no protobuf gets INVALID_ARGUMENT, unary or in a stream."""
    servicer, _, channel = served
    servicer.act = raising(AssertionError("must not be reached"))
    name = f"/draftwire.v1.DraftService/{method}"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        if method == "GetModel":
            await channel.unary_unary(name)(b"\xff\xff")
        else:
            await channel.stream_stream(name)(iter([b"\xff\xff"])).read()
    assert error_of(caught.value).field == "message"


def test_a_long_text_is_clipped() -> None:
    """A status travels in headers of at most 8 KiB: a text that quotes a megabyte must not break the call."""
    status = status_of(errors.InvalidArgument("f" * 10**6, "é" * 10**6))
    assert len(status.message.encode()) <= MAX_STATUS_TEXT_BYTES
    assert status.ByteSize() < 4096
    assert status_of(errors.NotFound("\ud800")).message == "?"


def test_a_subclass_has_its_parents_status() -> None:
    """A service may refine an error without this table knowing."""

    class Stalled(errors.ResourceExhausted):
        pass

    assert status_of(Stalled("slow")).code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
