"""A verify worker on a fake target inside the test's own process, over real gRPC."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry
from support.timing import PATIENCE

from draftwire.engine.fake import FakeEngine, FakeModel
from draftwire.rpc.client import connect
from draftwire.rpc.convert_verify import event_from_proto, generate_request_to_proto
from draftwire.types import Committed, Finished, GenerateRequest, Started
from draftwire.v1.verify_service_pb2_grpc import VerifyServiceStub
from verify_service.config import VerifyConfig
from verify_service.worker import VerifyWorker

Answer = list[Started | Committed | Finished]


class RunningWorker:
    """What a test holds: the worker, a stub, its metrics."""

    def __init__(self, worker: VerifyWorker, stub: VerifyServiceStub, registry: CollectorRegistry) -> None:
        self.worker = worker
        self.stub = stub
        self.registry = registry

    async def events(
        self, request: GenerateRequest, timeout: float = PATIENCE
    ) -> AsyncIterator[Started | Committed | Finished]:
        """The stream of one answer; closing it cancels the call."""
        call = self.stub.Generate(generate_request_to_proto(request), timeout=timeout)
        try:
            async for proto in call:
                yield event_from_proto(proto)
        finally:
            call.cancel()

    async def generate(self, prompt: Sequence[int], *, timeout: float = PATIENCE, **fields: Any) -> Answer:
        """Every event of one answer."""
        request = GenerateRequest("test", tuple(prompt), **fields)
        return [event async for event in self.events(request, timeout)]

    def metric(self, name: str, **labels: str) -> float:
        """A sample's value; 0 if it has none yet."""
        return self.registry.get_sample_value(name, labels) or 0.0

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until it holds. What a step counts may show in the metrics only after its tokens have arrived."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.005)


def output(answer: Answer) -> list[int]:
    """The output tokens; checks that every position comes exactly once, in order."""
    tokens: list[int] = []
    first = None
    for event in answer:
        if isinstance(event, Committed):
            first = event.position if first is None else first
            assert event.position == first + len(tokens), "a position was lost or repeated"
            tokens += event.token_ids
    return tokens


def finished(answer: Answer) -> Finished:
    """The last event."""
    last = answer[-1]
    assert isinstance(last, Finished)
    return last


@asynccontextmanager
async def verify_worker(
    model: FakeModel, *, num_slots: int = 8, max_batched_tokens: int = 512, **flags: Any
) -> AsyncIterator[RunningWorker]:
    """A worker that serves the fake `model`; flags as in VerifyConfig."""
    registry = CollectorRegistry()
    flags = {"port": 0, "metrics_port": 0, "max_num_seqs": num_slots, "shutdown_grace": 0.5} | flags
    worker = VerifyWorker(
        VerifyConfig(**flags),
        lambda: FakeEngine(model, num_slots=num_slots, max_batched_tokens=max_batched_tokens),
        registry,
        asyncio.Event(),
    )
    await worker.start()
    try:
        async with connect(f"127.0.0.1:{worker.port}") as channel:
            yield RunningWorker(worker, VerifyServiceStub(channel), registry)
    finally:
        await worker.drain()
