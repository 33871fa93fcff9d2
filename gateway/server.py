"""A gateway from start to drain. Its health is SERVING while at least one verify worker can be used."""

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager

from draftwire import service
from draftwire.metrics import new_registry, start_metrics_server
from draftwire.rpc.server import RpcServer
from draftwire.v1 import gateway_service_pb2 as pb
from draftwire.v1.gateway_service_pb2_grpc import add_GatewayServiceServicer_to_server
from gateway.answers import Answers
from gateway.config import GatewayConfig
from gateway.metrics import GatewayMetrics
from gateway.pool import Pool
from gateway.servicer import GatewayServicer
from gateway.tokenizer import Tokenizer, load_tokenizer

GATEWAY_SERVICE = pb.DESCRIPTOR.services_by_name["GatewayService"].full_name


async def serve(config: GatewayConfig, stop: asyncio.Event) -> int:
    """Run a gateway process until `stop`, then drain it; 0. Raises DraftwireError if it cannot start."""
    registry = new_registry()
    metrics_port = start_metrics_server(config.host, config.metrics_port, registry)
    return await service.serve("gateway", Gateway(config, GatewayMetrics(registry)), stop, metrics_port)


class Gateway:
    """A gateway as `service.serve` runs it: told to stop while it starts, it waits neither for tokenizer nor workers.

    Attributes:
        port: its gRPC port, once it is started.
        failed: never set.
    """

    def __init__(self, config: GatewayConfig, metrics: GatewayMetrics) -> None:
        self.port = 0
        self.failed = asyncio.Event()
        self._config = config
        self._metrics = metrics
        self._running = AsyncExitStack()

    async def start(self) -> None:
        """Load the tokenizer, serve, look once at every verify worker."""
        tokenizer = await _load_tokenizer(self._config.model)
        self.port = await self._running.enter_async_context(gateway_server(self._config, tokenizer, self._metrics))

    async def drain(self) -> None:
        """NOT_SERVING, finish, stop."""
        await self._running.aclose()


async def _load_tokenizer(model: str) -> Tokenizer:
    """On a thread that the process's end does not wait for: a hub that does not answer is asked again for minutes."""
    loaded: Future[Tokenizer] = Future()
    loaded.set_running_or_notify_cancel()

    def load() -> None:
        try:
            loaded.set_result(load_tokenizer(model))
        except BaseException as error:
            loaded.set_exception(error)

    threading.Thread(target=load, name="load-tokenizer", daemon=True).start()
    return await asyncio.wrap_future(loaded)


@asynccontextmanager
async def gateway_server(config: GatewayConfig, tokenizer: Tokenizer, metrics: GatewayMetrics) -> AsyncIterator[int]:
    """A gateway that serves on the port that is yielded; at the end it drains: NOT_SERVING, finish, stop."""
    pool = Pool(config.verify, tokenizer.fingerprint)
    server = RpcServer(config.host, config.port)
    servicer = GatewayServicer(Answers(config, tokenizer, pool, metrics), metrics, config.stall_seconds)
    add_GatewayServiceServicer_to_server(servicer, server.server)  # type: ignore[no-untyped-call]
    async with pool.running():
        port = await server.start([GATEWAY_SERVICE])
        await server.set_serving(False)
        reporter = asyncio.create_task(_report_health(pool, server, metrics))
        try:
            await pool.settled()  # whoever started us may call as soon as we say that we are ready
            yield port
        finally:
            reporter.cancel()
            await asyncio.wait([reporter])
            await server.drain(config.shutdown_grace)


async def _report_health(pool: Pool, server: RpcServer, metrics: GatewayMetrics) -> None:
    while True:
        await pool.changed.wait()
        pool.changed.clear()
        metrics.workers.set(pool.usable)
        await server.set_serving(pool.usable > 0)
