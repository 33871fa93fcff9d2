"""A gRPC server as every service runs it: health, reflection, keepalive, message limits, a drain before it stops."""

import asyncio
import inspect
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from draftwire.errors import InvalidArgument
from draftwire.rpc.limits import KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS, MAX_MESSAGE_BYTES, MIN_PING_INTERVAL_MS
from draftwire.rpc.status import errors_as_status

_OPTIONS = (
    # Off: with it a second process would share the port, and get half of the calls, instead of failing.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A client that vanished without a word must not keep its sessions.
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # gRPC core never acts on the line above (grpc/grpc pull request 39239): what ends the connection is this one.
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
)


class RpcServer:
    """Add servicers to `server`, then `start`, and `drain` at the end.

    Args:
        port: 0 = any free one.
        max_concurrent_streams: most calls at a time on one connection; a client queues what is beyond.
    """

    def __init__(self, host: str, port: int, *, max_concurrent_streams: int = 1024) -> None:
        self._host = host
        self._port = port
        self._names: tuple[str, ...] = ()
        self._health = _Health()
        self.server = grpc.aio.server(
            interceptors=[_ParseErrors()],
            options=[*_OPTIONS, ("grpc.max_concurrent_streams", max_concurrent_streams)],
        )

    async def start(self, service_names: Sequence[str]) -> int:
        """Bind and serve; health says SERVING for each name and for "". Returns the port.

        Raises InvalidArgument("--port") where the address cannot be bound.
        """
        self._names = ("", *service_names)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        reflection.enable_server_reflection([*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME], self.server)
        address = f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"
        try:
            # gRPC does not say why an address cannot be bound, a socket does.
            with socket.socket(socket.AF_INET6 if ":" in self._host else socket.AF_INET) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((self._host, self._port))
            port = self.server.add_insecure_port(address)
        except (OSError, RuntimeError) as error:
            problem = getattr(error, "strerror", None) or str(error)
            raise InvalidArgument("--port", f"cannot listen on {address}: {problem}") from None
        await self.server.start()
        await self.set_serving(True)
        return port

    async def set_serving(self, serving: bool) -> None:
        """What health says from now on, for every service name and for ""."""
        response = health_pb2.HealthCheckResponse
        status = response.SERVING if serving else response.NOT_SERVING
        await asyncio.gather(*(self._health.set(name, status) for name in self._names))

    async def drain(self, grace: float) -> None:
        """Say NOT_SERVING, refuse new calls, let running ones finish for `grace` seconds, then stop.

        After that time what still runs is cancelled. To be called exactly once, also where grace is 0.
        """
        await self.set_serving(False)
        self._health.close()
        await self.server.stop(grace)


class _Health(health.aio.HealthServicer):  # type: ignore[misc]
    """The standard health service with a Watch of our own.

    The library's forgets every other watcher of a service when one leaves, and a drain would wait for its streams.
    """

    def __init__(self) -> None:
        super().__init__()
        self._status: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._closing = False

    async def set(self, service: str, status: int) -> None:
        """Set a service's status and tell its watchers."""
        await super().set(service, status)
        self._status[service] = status
        self._wake()

    def close(self) -> None:
        """End every Watch, after its last status."""
        self._closing = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """The status now and whenever it changes, until the server drains."""
        said = None
        while True:
            changed = self._changed
            status = self._status.get(request.service, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
            if status != said:
                yield health_pb2.HealthCheckResponse(status=status)
                said = status
            elif self._closing:
                return
            else:
                await changed.wait()


class _ParseErrors(grpc.aio.ServerInterceptor):
    """A single request that cannot be parsed is the caller's fault; grpc.aio itself would answer UNKNOWN.

    (A stream of requests is parsed while its method reads, and `errors_as_status` is around that.)
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming:
            return handler
        method, parse = handler.unary_stream or handler.unary_unary, handler.request_deserializer

        async def call(data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            async with errors_as_status(context):
                request = parse(data)
            return await method(request, context)

        async def stream(data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            async with errors_as_status(context):
                request = parse(data)
            async with aclosing(method(request, context)) as responses:
                async for response in responses:
                    yield response

        wrapped = stream if inspect.isasyncgenfunction(method) else call
        name = "unary_stream" if handler.response_streaming else "unary_unary"
        return handler._replace(request_deserializer=None, **{name: wrapped})
