"""The stream to one draft worker: connect, introduce, write what the engine has to say, report what comes back.

Lives on the event loop. A broken stream is opened again with growing pauses; each connection is a new `DraftWorker`, so
nothing that belonged to the old one can be taken for the new one's.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import time
from collections.abc import Callable

import grpc

from draftwire.errors import DraftwireError, Incompatible, ProtocolViolation, ResourceExhausted, Unavailable
from draftwire.rpc.backlog import ENTRY_BYTES, MAX_ENTRIES, Backlog
from draftwire.rpc.client import connect
from draftwire.rpc.convert_draft import drafter_message_from_proto, verifier_message_to_protos
from draftwire.rpc.status import error_of
from draftwire.session import PROTOCOL_VERSION, DrafterStep, Draining, Hello, Load, VerifierOutbox, VerifierStep
from draftwire.v1 import draft_service_pb2 as pb
from draftwire.v1.draft_service_pb2_grpc import DraftServiceStub
from verify_service.draft_pool import DraftWorker
from verify_service.events import DraftDown, DraftSaid, DraftUp, Event

logger = logging.getLogger(__name__)

HELLO_SECONDS = 5.0
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
#: Pause after a refusal that time alone will not cure: another model or another protocol.
INCOMPATIBLE_PAUSE = 30.0
#: Most token ids in one message; far below the message limit.
MESSAGE_TOKENS = 65536

Call = grpc.aio.StreamStreamCall[pb.SpeculateRequest, pb.SpeculateResponse]

_ids = itertools.count(1)


class DraftClient:
    """Keeps one draft worker connected.

    Args:
        address: host:port.
        hello: introduces this verify worker; its model is the target.
        post: hands an event to the engine's thread; raises ResourceExhausted if its inbox is full.
        credentials: for TLS; None = plain.
    """

    def __init__(
        self,
        address: str,
        hello: Hello,
        post: Callable[[Event], None],
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self.address = address
        self._credentials = credentials
        self._hello = hello
        self._post = post
        self._outbox = VerifierOutbox()
        self._filled = asyncio.Event()
        self.worker_id: int | None = None
        self._said = ""  # of what went wrong since the worker was last connected

    def send(self, step: VerifierStep) -> None:
        """Queue what there is to say; merges with what still waits."""
        self._outbox.add(step)
        self._filled.set()

    async def run(self) -> None:
        """Connect and reconnect until cancelled."""
        pause = FIRST_PAUSE
        while True:
            began = time.monotonic()
            try:
                await self._converse()
            except Incompatible as error:
                logger.error("draft worker %s refused: %s", self.address, error)
                pause = INCOMPATIBLE_PAUSE
            except DraftwireError as error:
                # A worker that stays away is told of once, not at every try.
                level = logging.DEBUG if str(error) == self._said else logging.WARNING
                logger.log(level, "draft worker %s: %s", self.address, error)
                self._said = str(error)
                pause = FIRST_PAUSE if time.monotonic() - began > LONGEST_PAUSE else min(2 * pause, LONGEST_PAUSE)
            except Exception:  # a bug, perhaps woken by this peer; the other peers and the next connection go on
                logger.exception("draft worker %s: the stream failed unexpectedly", self.address)
                pause = LONGEST_PAUSE
            await asyncio.sleep(pause)

    async def _converse(self) -> None:
        """One stream from Hello to its end; always raises the reason of the end."""
        async with connect(self.address, self._credentials) as channel:
            call = DraftServiceStub(channel).Speculate()  # type: ignore[no-untyped-call]
            try:
                await self._send(call, self._hello)
                worker = await asyncio.wait_for(self._greeted(call), HELLO_SECONDS)
                await self._exchange(call, worker)
            except TimeoutError:
                raise Unavailable(f"no Hello within {HELLO_SECONDS:g} s") from None
            except grpc.aio.AioRpcError as error:
                raise error_of(error) from None
            finally:
                call.cancel()

    async def _greeted(self, call: Call) -> DraftWorker:
        """Read and check the worker's Hello."""
        hello, _ = await self._next(call)
        if not isinstance(hello, Hello):
            raise ProtocolViolation("the first message must be Hello")
        if hello.protocol_version != PROTOCOL_VERSION:
            raise Incompatible(f"protocol_version: must be {PROTOCOL_VERSION}, got {hello.protocol_version}")
        ours, theirs = self._hello.model.vocab_fingerprint, hello.model.vocab_fingerprint
        if theirs and ours != theirs:
            raise Incompatible(
                f"vocab_fingerprint: draft {hello.model.name!r} has {theirs[:12]}, target {self._hello.model.name!r} "
                f"has {ours[:12]}: they must share a vocabulary"
            )
        logger.info("draft worker %s is up: %s, %d sessions", self.address, hello.model.name, hello.max_sessions)
        return DraftWorker(
            id=next(_ids),
            address=self.address,
            model=hello.model.name,
            max_model_len=hello.model.max_model_len,
            max_sessions=hello.max_sessions,
            heard_at=time.monotonic(),
        )

    async def _exchange(self, call: Call, worker: DraftWorker) -> None:
        """Read and write until the stream ends."""
        self._outbox, self._filled = VerifierOutbox(), asyncio.Event()
        self._post(DraftUp(worker))
        self.worker_id, self._said = worker.id, ""
        tasks = [asyncio.create_task(self._read(call, worker)), asyncio.create_task(self._write(call))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:  # the reader first: it knows why the stream ended
                if task.done():
                    task.result()
        finally:
            self.worker_id = None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._post(DraftDown(worker.id))

    async def _read(self, call: Call, worker: DraftWorker) -> None:
        backlog = Backlog()
        while True:
            message, size = await self._next(call)
            if isinstance(message, Hello):
                raise ProtocolViolation("Hello may be sent only once")
            try:
                backlog.add(size)
                self._post(DraftSaid(worker.id, message, time.monotonic(), size, backlog))
            except ResourceExhausted as error:
                raise Unavailable(f"{error}: proposals cannot be taken fast enough") from None

    async def _next(self, call: Call) -> tuple[Hello | DrafterStep | Load | Draining, int]:
        """The worker's next message and what it costs in memory, bytes.

        An entry that is malformed ends its session, as the worker's own Ended would.
        """
        reply = await call.read()
        if reply is grpc.aio.EOF:
            # Reading tells only that the stream is over; its status tells why.
            raise Unavailable(f"the stream ended: {(await call.code()).name} {await call.details()}")
        if not isinstance(reply, pb.SpeculateResponse):  # gRPC reads None and goes on
            raise ProtocolViolation("a message cannot be parsed")
        step = reply.step
        entries = len(step.opened) + len(step.proposals) + len(step.idle) + len(step.ended)
        if entries > MAX_ENTRIES:
            raise ProtocolViolation(f"step: must hold at most {MAX_ENTRIES} entries, got {entries}")
        message, bad = drafter_message_from_proto(reply)
        if isinstance(message, DrafterStep) and bad:
            message = dataclasses.replace(message, ended=message.ended + bad)
        return message, reply.ByteSize() + ENTRY_BYTES * entries

    async def _write(self, call: Call) -> None:
        """The stream's only writer."""
        while True:
            await self._filled.wait()
            self._filled.clear()
            while step := self._outbox.take(MESSAGE_TOKENS):
                await self._send(call, step)

    async def _send(self, call: Call, message: Hello | VerifierStep) -> None:
        for proto in verifier_message_to_protos(message):
            try:
                await call.write(proto)
            except asyncio.InvalidStateError:
                raise Unavailable("the stream broke") from None
