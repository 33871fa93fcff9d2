"""DraftService on grpc.aio: it admits streams, and passes what is said between them and the engine's thread."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace

import grpc

from draft_service.inbox import DrainBegan, Event, StreamClosed
from draft_service.metrics import Metrics
from draft_service.stream import HELLO_SECONDS, STALL_SECONDS, Stream, Write, read_hello
from draftwire.errors import Incompatible, ResourceExhausted, Unavailable
from draftwire.rpc.backlog import Backlog
from draftwire.rpc.convert import model_info_to_proto
from draftwire.rpc.convert_draft import drafter_message_to_protos
from draftwire.rpc.status import errors_as_status
from draftwire.session import PROTOCOL_VERSION, DrafterStep, Hello, Load
from draftwire.types import ModelInfo
from draftwire.v1 import draft_service_pb2 as pb
from draftwire.v1.draft_service_pb2_grpc import DraftServiceServicer

GetModelContext = grpc.aio.ServicerContext[pb.DraftServiceGetModelRequest, pb.DraftServiceGetModelResponse]
SpeculateContext = grpc.aio.ServicerContext[pb.SpeculateRequest, pb.SpeculateResponse]

logger = logging.getLogger(__name__)

#: Least time between two Load messages on a stream.
LOAD_SECONDS = 0.1

#: The `ModelInfo.engine` of a drafter that repeats any vocabulary's ids.
ANY_VOCABULARY = "ngram"


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """What verify workers may do.

    Attributes:
        max_streams: streams at once.
        hello_seconds: how long a stream may take to say Hello.
        stall_seconds: how long it may refuse to read.
    """

    max_streams: int = 64
    hello_seconds: float = HELLO_SECONDS
    stall_seconds: float = STALL_SECONDS


class DraftServicer(DraftServiceServicer):
    """Lives on the event loop; `deliver` brings it what the engine's thread says.

    Args:
        info: the draft model.
        instance_id: names the process.
        max_sessions: what the drafter can hold.
        post: hands an event to the engine's thread.
        metrics: counted into.
    """

    def __init__(
        self,
        *,
        info: ModelInfo,
        instance_id: str,
        max_sessions: int,
        post: Callable[[Event], None],
        metrics: Metrics,
        limits: StreamLimits | None = None,
    ) -> None:
        self._info = info
        self._instance_id = instance_id
        self._post = post
        self._metrics = metrics
        self._limits = limits or StreamLimits()
        self._streams: dict[int, Stream] = {}
        self._leaving: list[Backlog] = []  # of closed streams that the engine's thread has not let go yet
        self._stream_ids = itertools.count(1)
        self._load = Load(0, max_sessions, 0.0)
        self._load_timer: asyncio.TimerHandle | None = None
        self._draining = False
        self._idle = asyncio.Event()
        metrics.watch_inbox(lambda: sum(stream.backlog.messages for stream in list(self._streams.values())))

    async def GetModel(
        self, request: pb.DraftServiceGetModelRequest, context: GetModelContext
    ) -> pb.DraftServiceGetModelResponse:
        """The draft model."""
        return pb.DraftServiceGetModelResponse(model=model_info_to_proto(self._info))

    async def Speculate(self, request_iterator: AsyncIterator[pb.SpeculateRequest], context: SpeculateContext) -> None:
        """A stream, from Hello to the end of both halves."""
        async with errors_as_status(context):
            stream = self._admit()
            try:
                await self._serve(stream, request_iterator, context.write)
            finally:
                self._release(stream)

    async def _serve(self, stream: Stream, requests: AsyncIterator[pb.SpeculateRequest], write: Write) -> None:
        peer = await read_hello(requests, self._limits.hello_seconds)
        for proto in drafter_message_to_protos(self._answer(peer)):
            await write(proto)
        logger.info("stream %d: opened by verify worker %s", stream.stream_id, peer.instance_id)
        stream.report(self._load)
        try:
            await stream.serve(requests, write)
        finally:
            logger.info("stream %d: closed", stream.stream_id)

    def deliver(self, steps: Mapping[int, DrafterStep], load: Load) -> None:
        """Take what one engine step said; on the event loop's thread."""
        for stream_id, step in steps.items():
            if stream := self._streams.get(stream_id):
                stream.add(step)
        if load != self._load:
            self._load = load
            self._metrics.sessions.set(load.sessions)
            if self._load_timer is None:
                self._load_timer = asyncio.get_running_loop().call_later(LOAD_SECONDS, self._report_load)
        if not load.sessions:
            self._idle.set()

    async def drain(self, grace: float) -> None:
        """Ask the verify workers to move their sessions, wait for it at most `grace` seconds, end the streams."""
        self._draining = True
        self._idle.clear()
        for stream in self._streams.values():
            stream.drain()
        self._post(DrainBegan())
        try:
            async with asyncio.timeout(grace):
                await self._idle.wait()
        except TimeoutError:
            logger.warning("%d sessions were still open after %g s", self._load.sessions, grace)
        for stream in self._streams.values():
            stream.stop()

    def _admit(self) -> Stream:
        if self._draining:
            raise Unavailable("the draft worker drains")
        self._leaving = [backlog for backlog in self._leaving if backlog.messages]
        if len(self._streams) + len(self._leaving) >= self._limits.max_streams:
            raise ResourceExhausted(f"{self._limits.max_streams} streams are open already")
        stream = Stream(next(self._stream_ids), self._post, stall_seconds=self._limits.stall_seconds)
        self._streams[stream.stream_id] = stream
        self._metrics.streams.inc()
        return stream

    def _release(self, stream: Stream) -> None:
        """Tell the engine's thread that a stream is gone; only then is its place free, which bounds the inbox."""
        del self._streams[stream.stream_id]
        self._metrics.streams.dec()
        stream.backlog.add_end()
        self._leaving.append(stream.backlog)
        self._post(StreamClosed(stream.stream_id, stream.backlog))

    def _answer(self, peer: Hello) -> Hello:
        """Our Hello to a verify worker; raises Incompatible if the two cannot work together."""
        if peer.protocol_version != PROTOCOL_VERSION:
            raise Incompatible(
                f"hello.protocol_version: this draft worker speaks {PROTOCOL_VERSION}, not {peer.protocol_version}"
            )
        info = self._info
        if info.engine == ANY_VOCABULARY:
            info = replace(info, vocab_fingerprint=peer.model.vocab_fingerprint, vocab_size=peer.model.vocab_size)
        if info.vocab_fingerprint != peer.model.vocab_fingerprint:
            raise Incompatible(
                f"hello.model.vocab_fingerprint: the draft {info.name} has {info.vocab_fingerprint}, "
                f"the target {peer.model.name} has {peer.model.vocab_fingerprint}"
            )
        return Hello(PROTOCOL_VERSION, self._instance_id, info, self._load.max_sessions)

    def _report_load(self) -> None:
        self._load_timer = None
        for stream in self._streams.values():
            stream.report(self._load)
