"""A gateway over real gRPC in front of scripted verify workers."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry
from support.fake_verify import FakeVerify, RunningVerify, serve_fake

from draftwire.rpc.client import connect
from draftwire.v1 import gateway_service_pb2 as pb
from draftwire.v1.gateway_service_pb2_grpc import GatewayServiceStub
from gateway.config import GatewayConfig
from gateway.metrics import GatewayMetrics
from gateway.server import GATEWAY_SERVICE, gateway_server
from gateway.tokenizer import Tokenizer, load_tokenizer

MODEL = "fake:vocab_size=512"


@dataclass
class RunningGateway:
    """A gateway and how to look at it."""

    stub: GatewayServiceStub
    channel: grpc.aio.Channel
    registry: CollectorRegistry
    workers: list[RunningVerify]

    async def until(self, status: int) -> None:
        """Wait until the gateway's health is `status`."""
        watch = health_pb2_grpc.HealthStub(self.channel).Watch(health_pb2.HealthCheckRequest(service=GATEWAY_SERVICE))
        async for update in watch:
            if update.status == status:
                watch.cancel()
                return

    async def until_serving(self) -> None:
        """Wait until at least one verify worker can be used."""
        await self.until(health_pb2.HealthCheckResponse.SERVING)

    async def until_workers(self, count: int) -> None:
        """Wait until `count` verify workers can be used."""
        await self.until_value("draftwire_gateway_verify_workers", count)

    async def until_value(self, name: str, value: float, **labels: str) -> None:
        """Wait until a metric has a value; each look is a call through the gateway, so its loop goes on meanwhile."""
        health = health_pb2_grpc.HealthStub(self.channel)
        while self.metric(name, **labels) != value:
            await health.Check(health_pb2.HealthCheckRequest(service=GATEWAY_SERVICE))

    def metric(self, name: str, **labels: str) -> float | None:
        """A metric's value."""
        return self.registry.get_sample_value(name, labels)


@asynccontextmanager
async def running_gateway(
    *fakes: FakeVerify, also: tuple[str, ...] = (), tokenizer: Tokenizer | None = None, **options
) -> AsyncIterator[RunningGateway]:
    """A gateway for these workers (and the addresses `also`), once all of the right ones are in use."""
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(serve_fake(fake)) for fake in fakes]
        addresses = (*(worker.address for worker in workers), *also)
        settings = {"model": MODEL, "verify": addresses, "port": 0, "metrics_port": 0, "shutdown_grace": 5.0} | options
        registry = CollectorRegistry()
        config = GatewayConfig(**settings)
        server = gateway_server(config, tokenizer or load_tokenizer(config.model), GatewayMetrics(registry))
        port = await stack.enter_async_context(server)
        channel = await stack.enter_async_context(connect(f"127.0.0.1:{port}"))
        running = RunningGateway(GatewayServiceStub(channel), channel, registry, workers)
        if fakes:
            await running.until_workers(sum(fake.model.vocab_fingerprint == "fake-512" for fake in fakes))
        yield running


def request(text: str | None = "hi", **fields) -> pb.GatewayServiceGenerateRequest:
    """A greedy request with a text prompt."""
    return pb.GatewayServiceGenerateRequest(text=text, **{"sampling": {"temperature": 0}, **fields})


async def read_all(call) -> tuple[str, list[int], pb.Done]:
    """(text, token ids, done) of a stream, checked for its shape: deltas, then Done, last and once."""
    text, token_ids, done = "", [], None
    async for event in call:
        assert done is None
        if event.WhichOneof("event") == "done":
            done = event.done
        else:
            assert event.delta.text or event.delta.token_ids
            text += event.delta.text
            token_ids += event.delta.token_ids
    assert done is not None
    return text, token_ids, done
