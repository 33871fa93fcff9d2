"""A verify worker that says what it is told: scripted tokens over real gRPC, failures and pauses where asked."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from draftwire.errors import DraftwireError, Unavailable
from draftwire.rpc.convert import model_info_to_proto
from draftwire.rpc.convert_verify import event_to_proto, generate_request_from_proto
from draftwire.rpc.server import RpcServer
from draftwire.rpc.status import errors_as_status
from draftwire.types import (
    Committed,
    Finished,
    FinishReason,
    GenerateRequest,
    ModelInfo,
    SpeculationStats,
    Started,
    Usage,
)
from draftwire.v1 import verify_service_pb2 as pb
from draftwire.v1.verify_service_pb2_grpc import VerifyServiceServicer, add_VerifyServiceServicer_to_server

MODEL = ModelInfo("fake", "fake-512", vocab_size=512, max_model_len=4096, eos_token_ids=(300,), engine="fake")
SERVICE = "draftwire.v1.VerifyService"


@dataclass
class FakeVerify(VerifyServiceServicer):
    """Every answer is `script`, in blocks; output position i is script[i], so a failover goes on where it should.

    Each block counts as one step that tested block - 1 proposals and accepted them all.

    Attributes:
        block: tokens in one event.
        fail_at: once so many output tokens are out, the next call fails with `error`, and only that one.
        hold_at: once so many output tokens are out, a call waits for `gate`.
        hold_only: only the call with this request id does.
        refuse: error that every call gets at once.
        skip: after the first block, tokens that are left out (or, below zero, said again).
        unfinished: end the stream where Finished should come, once.
    """

    script: Sequence[int] = ()
    block: int = 3
    model: ModelInfo = MODEL
    max_sessions: int = 4
    fail_at: int | None = None
    error: DraftwireError = field(default_factory=lambda: Unavailable("scripted failure"))
    hold_at: int | None = None
    hold_only: str | None = None
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    holding: asyncio.Event = field(default_factory=asyncio.Event)
    refuse: DraftwireError | None = None
    skip: int = 0
    unfinished: bool = False
    calls: list[GenerateRequest] = field(default_factory=list)
    deadlines: list[float | None] = field(default_factory=list)
    produced: int = 0
    running: int = 0
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def GetModel(self, request, context):
        """What `model` says."""
        return pb.VerifyServiceGetModelResponse(
            model=model_info_to_proto(self.model), instance_id="fake", max_sessions=self.max_sessions
        )

    async def Generate(self, request, context) -> AsyncIterator[pb.VerifyServiceGenerateResponse]:
        """The script from where the committed tokens end."""
        async with errors_as_status(context):
            wanted = generate_request_from_proto(request)
            self.calls.append(wanted)
            self.deadlines.append(context.time_remaining())
            if self.refuse:
                raise self.refuse
            self.running += 1
            try:
                async for event in self._events(wanted):
                    yield event_to_proto(event)
            except (asyncio.CancelledError, GeneratorExit):  # the latter where a write was under way
                self.cancelled.set()
                raise
            finally:
                self.running -= 1

    async def _events(self, wanted: GenerateRequest) -> AsyncIterator[Started | Committed | Finished]:
        yield Started("fake", wanted.request_id)
        prompt, done = len(wanted.prompt_token_ids), len(wanted.committed_token_ids)
        limit = min(len(self.script), wanted.max_tokens or self.model.max_model_len)
        ends = {*wanted.stop_token_ids, *(() if wanted.ignore_eos else self.model.eos_token_ids)}
        stats = SpeculationStats()
        reason = FinishReason.LENGTH
        while done < limit and reason is FinishReason.LENGTH:
            block = list(self.script[done : min(limit, done + self.block)])
            end = next((i for i, token in enumerate(block) if token in ends), None)
            if end is not None:
                block, reason = block[: end + 1], FinishReason.STOP
            await self._maybe_stop(wanted, done)
            stats = SpeculationStats(
                stats.steps + 1,
                stats.committed_tokens + len(block),
                stats.tested_tokens + len(block) - 1,
                stats.accepted_tokens + len(block) - 1,
            )
            yield Committed(prompt + done, tuple(block), stats, cached_tokens=1)
            done += len(block) + (self.skip if stats.steps == 1 else 0)
            self.produced += len(block)
        await self._maybe_stop(wanted, done)
        if self.unfinished:
            self.unfinished = False
            return
        yield Finished(reason, Usage(prompt, done, 1), stats)

    async def _maybe_stop(self, wanted: GenerateRequest, done: int) -> None:
        holds = self.hold_only in (None, wanted.request_id)
        if holds and self.hold_at is not None and done >= self.hold_at:
            self.holding.set()
            await self.gate.wait()
        if self.fail_at is not None and done >= self.fail_at:
            self.fail_at = None
            raise self.error


@dataclass
class RunningVerify:
    """A FakeVerify that serves."""

    fake: FakeVerify
    address: str
    server: RpcServer

    async def stop(self) -> None:
        """Stop as a killed process does: running calls break."""
        await self.server.server.stop(None)


@asynccontextmanager
async def serve_fake(fake: FakeVerify, port: int = 0) -> AsyncIterator[RunningVerify]:
    """Serve it on loopback."""
    server = RpcServer("127.0.0.1", port)
    add_VerifyServiceServicer_to_server(fake, server.server)
    bound = await server.start([SERVICE])
    try:
        yield RunningVerify(fake, f"127.0.0.1:{bound}", server)
    finally:
        await server.server.stop(None)
