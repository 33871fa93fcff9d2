"""A draft worker that means harm: it says Hello as it should, and then whatever a test put into its mouth."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc

from draftwire.rpc.convert_draft import drafter_message_to_protos
from draftwire.rpc.server import RpcServer
from draftwire.session import PROTOCOL_VERSION, Hello
from draftwire.types import ModelInfo
from draftwire.v1 import draft_service_pb2 as pb

SERVICE = "draftwire.v1.DraftService"
MODEL = ModelInfo("hostile", "fake-512", vocab_size=512, max_model_len=4096, engine="fake")
HELLO = drafter_message_to_protos(Hello(PROTOCOL_VERSION, "hostile", MODEL, max_sessions=4))[0].SerializeToString()

#: A message; where it names session 0 it means the session that was just opened, and positions count from its end.
Message = pb.SpeculateResponse | bytes


@dataclass
class HostileDraft:
    """What it says, and what it has seen; used on one event loop.

    Attributes:
        greeting: its first message; None = it says nothing.
        script: what it says, once, to the session whose first token is `victim`; every other one gets silence.
        hang_up: whether it ends the stream after its script.
        attacked: the id of the session that got the script; None = it waits for it.
        closed: session ids that the verifier closed.
        ended: streams that are over.
    """

    greeting: bytes | None = HELLO
    script: Sequence[Message] = ()
    victim: int | None = None
    hang_up: bool = False
    attacked: int | None = None
    closed: set[int] = field(default_factory=set)
    ended: int = 0
    port: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def until(self, condition) -> None:
        """Wait until the condition holds."""
        async with self.changed:
            await self.changed.wait_for(condition)

    async def speculate(self, requests: AsyncIterator[pb.SpeculateRequest], context) -> AsyncIterator[bytes]:
        """One stream."""
        try:
            if self.greeting is not None:
                yield self.greeting
            async for request in requests:
                for opening in request.step.opens:
                    if self.attacked is not None or opening.token_ids[0] != self.victim:
                        continue
                    self.attacked = opening.session_id
                    await self._notify()
                    for message in self.script:
                        yield aimed(message, opening)
                    if self.hang_up:
                        return
                self.closed |= {close.session_id for close in request.step.closes}
                await self._notify()
        finally:
            self.ended += 1
            await asyncio.shield(self._notify())

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()


def aimed(message: Message, opening: pb.Open) -> bytes:
    """The message as bytes, pointed at this session."""
    if isinstance(message, bytes):
        return message
    shot = pb.SpeculateResponse()
    shot.CopyFrom(message)
    for entry in (*shot.step.opened, *shot.step.proposals, *shot.step.idle, *shot.step.ended):
        entry.session_id = entry.session_id or opening.session_id
    for proposal in shot.step.proposals:
        proposal.position = (proposal.position + len(opening.token_ids)) % 2**32
    return shot.SerializeToString()


@asynccontextmanager
async def hostile_draft() -> AsyncIterator[HostileDraft]:
    """The worker, serving on `port`."""
    hostile = HostileDraft()
    server = RpcServer("127.0.0.1", 0)
    speculate = grpc.stream_stream_rpc_method_handler(
        hostile.speculate, request_deserializer=pb.SpeculateRequest.FromString
    )
    handlers = grpc.method_handlers_generic_handler(SERVICE, {"Speculate": speculate})
    server.server.add_generic_rpc_handlers((handlers,))
    hostile.port = await server.start([SERVICE])
    try:
        yield hostile
    finally:
        await server.drain(0)
