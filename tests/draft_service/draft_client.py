"""A draft worker in the test's own process over real gRPC, and a verify worker's end of its stream by hand."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
from prometheus_client import CollectorRegistry
from support.timing import PATIENCE

from draft_service.config import DraftConfig
from draft_service.drafters.base import Drafter
from draft_service.drafters.model import ModelDrafter
from draft_service.worker import DraftWorker
from draftwire.engine.fake import FakeEngine
from draftwire.fake_model import FakeModel
from draftwire.metrics import new_registry
from draftwire.rpc.client import connect
from draftwire.rpc.convert_draft import drafter_message_from_proto, verifier_message_to_protos
from draftwire.session import (
    PROTOCOL_VERSION,
    Close,
    Commit,
    DrafterStep,
    Draining,
    Ended,
    Hello,
    Load,
    Open,
    VerifierStep,
)
from draftwire.types import ModelInfo
from draftwire.v1 import draft_service_pb2 as pb
from draftwire.v1.draft_service_pb2_grpc import DraftServiceStub

TARGET = ModelInfo(name="target", vocab_fingerprint="fake-512", vocab_size=512, max_model_len=4096, engine="fake")
HELLO = Hello(PROTOCOL_VERSION, "verify-test", TARGET, max_sessions=8)


class Client:
    """One stream: say messages, await what must come back."""

    def __init__(self, stub: DraftServiceStub) -> None:
        self.call = stub.Speculate()
        self.hello: Hello | None = None
        self.opened: set[int] = set()
        self.ended: dict[int, Ended] = {}
        self.loads: list[Load] = []
        self.drained = False
        self._tokens: dict[tuple[int, int], dict[int, int]] = {}

    async def greet(self, hello: Hello = HELLO) -> "Client":
        """Exchange Hello."""
        await self.send(hello)
        await self.until(lambda: self.hello)
        return self

    async def send(self, message: Hello | VerifierStep) -> None:
        """Write one message."""
        for proto in verifier_message_to_protos(message):
            await self.call.write(proto)

    async def say(self, *entries: Open | Commit | Close) -> None:
        """Write one step."""
        await self.send(
            VerifierStep(
                opens=tuple(entry for entry in entries if isinstance(entry, Open)),
                commits=tuple(entry for entry in entries if isinstance(entry, Commit)),
                closes=tuple(entry for entry in entries if isinstance(entry, Close)),
            )
        )

    async def until(self, condition: Callable[[], Any]) -> None:
        """Read until the condition holds."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                proto = await self.call.read()
                assert isinstance(proto, pb.SpeculateResponse), f"the stream ended: {await self.call.code()}"
                self._take(proto)

    async def tokens(self, session_id: int, path: int, position: int, count: int) -> list[int]:
        """The `count` tokens proposed on a path from `position` on; reads until they are there."""
        wanted = range(position, position + count)
        held = self._tokens.setdefault((session_id, path), {})
        await self.until(lambda: all(i in held for i in wanted))
        return [held[i] for i in wanted]

    def proposed(self, session_id: int) -> int:
        """Tokens of a session that have come so far, on all its paths."""
        return sum(len(held) for (owner, _), held in self._tokens.items() if owner == session_id)

    async def status(self) -> grpc.StatusCode:
        """How the stream ended; reads what is left of it."""
        async with asyncio.timeout(PATIENCE):
            with suppress(grpc.aio.AioRpcError):  # the same status again
                while isinstance(proto := await self.call.read(), pb.SpeculateResponse):
                    self._take(proto)
            return await self.call.code()

    def _take(self, proto: pb.SpeculateResponse) -> None:
        message, bad = drafter_message_from_proto(proto)
        assert not bad
        match message:
            case Hello():
                self.hello = message
            case Load():
                self.loads.append(message)
            case Draining():
                self.drained = True
            case DrafterStep():
                self._take_step(message)

    def _take_step(self, step: DrafterStep) -> None:
        self.opened |= {opened.session_id for opened in step.opened}
        for proposal in step.proposals:
            assert proposal.session_id in self.opened
            held = self._tokens.setdefault((proposal.session_id, proposal.path), {})
            for i, token in enumerate(proposal.tokens):
                assert held.setdefault(proposal.position + i, token.token) == token.token, "drawn anew"
        self.ended |= {ended.session_id: ended for ended in step.ended}


class RunningWorker:
    """What a test holds: the worker, a channel to it, its metrics."""

    def __init__(self, worker: DraftWorker, channel: grpc.aio.Channel, registry: CollectorRegistry) -> None:
        self.worker = worker
        self.channel = channel
        self.stub = DraftServiceStub(channel)
        self.registry = registry
        self._draining: asyncio.Task[None] | None = None

    async def stream(self, hello: Hello = HELLO) -> Client:
        """A stream after both Hellos."""
        return await Client(self.stub).greet(hello)

    def drain(self) -> "asyncio.Task[None]":
        """The worker's drain, begun once."""
        self._draining = self._draining or asyncio.create_task(self.worker.drain())
        return self._draining

    def metric(self, name: str, **labels: str) -> float:
        """A sample's value."""
        return self.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def draft_worker(
    model: FakeModel | None = None, *, make_drafter: Callable[[], Drafter] | None = None, **flags: Any
) -> AsyncIterator[RunningWorker]:
    """A worker that serves the fake `model` with the model drafter; flags as in DraftConfig."""
    registry = new_registry()
    config = DraftConfig(**{"port": 0, "metrics_port": 0, "max_num_seqs": 8, "shutdown_grace": 0.5} | flags)

    def model_drafter() -> Drafter:
        return ModelDrafter(FakeEngine(model or FakeModel(), num_slots=config.max_num_seqs))

    worker = DraftWorker(config, make_drafter or model_drafter, registry, asyncio.Event())
    await worker.start()
    async with connect(f"127.0.0.1:{worker.port}") as channel:
        running = RunningWorker(worker, channel, registry)
        try:
            yield running
        finally:
            await running.drain()
