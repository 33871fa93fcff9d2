"""One verify worker's stream: a reader that never awaits a write, and the one writer.

What the engine says is merged in an outbox until the writer gets to it, so a slow peer costs its sessions' freshness
and never this worker's memory; a peer that does not read for `STALL_SECONDS` loses the stream.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from draft_service.inbox import Event, StepArrived
from draftwire.errors import InvalidArgument, ResourceExhausted, Unavailable
from draftwire.rpc.backlog import ENTRY_BYTES, MAX_ENTRIES, Backlog
from draftwire.rpc.convert_draft import drafter_message_to_protos, verifier_message_from_proto
from draftwire.rpc.stall import written
from draftwire.session import DrafterOutbox, DrafterStep, Draining, Hello, Load, VerifierStep
from draftwire.v1 import draft_service_pb2 as pb

#: How long a verify worker may take to say Hello.
HELLO_SECONDS = 5.0

#: How long one write may take.
STALL_SECONDS = 10.0

#: Most entries that may wait to be written; honest sessions are bounded by their credit long before.
MAX_WAITING_ENTRIES = 4 * MAX_ENTRIES

#: Most guesses in one message, about 350 bytes each.
MAX_MESSAGE_TOKENS = 4096

Write = Callable[[pb.SpeculateResponse], Awaitable[None]]


class Stream:
    """A stream after its admission.

    Args:
        stream_id: its name in events; unique in the process.
        post: hands an event to the engine's thread.
        stall_seconds: how long one write may take.
    """

    def __init__(self, stream_id: int, post: Callable[[Event], None], *, stall_seconds: float = STALL_SECONDS) -> None:
        self.stream_id = stream_id
        self.backlog = Backlog()
        self._post = post
        self._stall_seconds = stall_seconds
        self._outbox = DrafterOutbox()
        self._load: Load | None = None
        self._draining = False
        self._stopping = False
        self._wake = asyncio.Event()

    def add(self, step: DrafterStep) -> None:
        """Queue what the engine said to this stream."""
        self._outbox.add(step)
        self._wake.set()

    def report(self, load: Load) -> None:
        """Queue a load; only the latest is sent."""
        self._load = load
        self._wake.set()

    def drain(self) -> None:
        """Queue Draining."""
        self._draining = True
        self._wake.set()

    def stop(self) -> None:
        """End the stream once what is queued is written."""
        self._stopping = True
        self._wake.set()

    async def serve(self, requests: AsyncIterator[pb.SpeculateRequest], write: Write) -> None:
        """Read and write until the peer is done.

        Raises InvalidArgument or ProtocolViolation (a bad message), ResourceExhausted (the peer does not read, or says
        more than the engine can take), Unavailable (after `stop`).
        """
        tasks = [asyncio.create_task(self._read(requests)), asyncio.create_task(self._write(write))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, requests: AsyncIterator[pb.SpeculateRequest]) -> None:
        async for proto in requests:
            entries = len(proto.step.opens) + len(proto.step.commits) + len(proto.step.closes)
            if entries > MAX_ENTRIES:
                raise InvalidArgument("step", f"must hold at most {MAX_ENTRIES} entries, got {entries}")
            message, bad = verifier_message_from_proto(proto)
            if not isinstance(message, VerifierStep):
                raise InvalidArgument("hello", "must be sent once")
            if len(self._outbox) > MAX_WAITING_ENTRIES:
                raise ResourceExhausted(f"more than {MAX_WAITING_ENTRIES} entries wait to be read")
            for close in message.closes:
                self._outbox.forget(close.session_id)
            size = proto.ByteSize() + ENTRY_BYTES * entries
            self.backlog.add(size)
            self._post(StepArrived(self.stream_id, message, bad, size, self.backlog))

    async def _write(self, write: Write) -> None:
        while self._wake.is_set() or not self._stopping:
            await self._wake.wait()
            self._wake.clear()
            for message in self._messages():
                for proto in drafter_message_to_protos(message):
                    await written(write(proto), self._stall_seconds, "stream")
        raise Unavailable("the draft worker stops")

    def _messages(self) -> Iterator[DrafterStep | Load | Draining]:
        """What is queued: at most one message of each kind."""
        if self._draining:
            self._draining = False
            yield Draining()
        if self._load is not None:
            load, self._load = self._load, None
            yield load
        if step := self._outbox.take(MAX_MESSAGE_TOKENS):
            yield step
        if len(self._outbox):
            self._wake.set()


async def read_hello(requests: AsyncIterator[pb.SpeculateRequest], within: float = HELLO_SECONDS) -> Hello:
    """The stream's first message; raises InvalidArgument if it is no Hello or none comes within `within` seconds."""
    try:
        async with asyncio.timeout(within):
            proto = await anext(requests)
    except (TimeoutError, StopAsyncIteration):
        raise InvalidArgument("hello", f"must be sent within {within:g} s") from None
    message, _ = verifier_message_from_proto(proto)
    if not isinstance(message, Hello):
        raise InvalidArgument("hello", "must be the first message")
    return message
