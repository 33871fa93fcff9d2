"""A gateway from start to drain. Its health is SERVING while at least one verify worker can be used."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from draftwire.metrics import new_registry, start_metrics_server
from draftwire.rpc.server import RpcServer
from draftwire.service import announce
from draftwire.v1 import gateway_service_pb2 as pb
from draftwire.v1.gateway_service_pb2_grpc import add_GatewayServiceServicer_to_server
from gateway.answers import Answers
from gateway.config import GatewayConfig
from gateway.metrics import GatewayMetrics
from gateway.pool import Pool
from gateway.servicer import GatewayServicer
from gateway.tokenizer import Tokenizer, load_tokenizer

GATEWAY_SERVICE = pb.DESCRIPTOR.services_by_name["GatewayService"].full_name


async def serve(config: GatewayConfig, stop: asyncio.Event) -> None:
    """Run a gateway process until `stop`, then drain it. Raises DraftwireError if it cannot start."""
    registry = new_registry()
    metrics_port = start_metrics_server(config.host, config.metrics_port, registry)
    tokenizer = await asyncio.to_thread(load_tokenizer, config.model)
    async with gateway_server(config, tokenizer, GatewayMetrics(registry)) as port:
        announce("gateway", port, metrics_port)
        await stop.wait()


@asynccontextmanager
async def gateway_server(config: GatewayConfig, tokenizer: Tokenizer, metrics: GatewayMetrics) -> AsyncIterator[int]:
    """A gateway that serves on the port that is yielded; at the end it drains: NOT_SERVING, finish, stop."""
    pool = Pool(config.verify, tokenizer.fingerprint)
    server = RpcServer(config.host, config.port)
    servicer = GatewayServicer(Answers(config, tokenizer, pool, metrics), metrics)
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
