"""One stream without gRPC: a fake peer that reads when it is told to."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from draft_harness import opening
from support.timing import PATIENCE

from draft_service.inbox import Event, StepArrived
from draft_service.stream import MAX_WAITING_ENTRIES, Stream, read_hello
from draftwire.errors import InvalidArgument, ResourceExhausted, Unavailable
from draftwire.rpc.backlog import MAX_WAITING_BYTES, MAX_WAITING_MESSAGES, Backlog
from draftwire.rpc.convert_draft import drafter_message_from_proto, verifier_message_to_protos
from draftwire.session import DrafterStep, Draining, Ended, Load, Proposal, VerifierStep
from draftwire.types import DraftToken, EndReason
from draftwire.v1 import draft_service_pb2 as pb


class Peer:
    """What is sent to it waits until `reading` is set; it says what is put into `requests`, then None ends it."""

    def __init__(self) -> None:
        self.reading = asyncio.Event()
        self.got: list[object] = []
        self.requests: asyncio.Queue[pb.SpeculateRequest | None] = asyncio.Queue()
        self.posted: list[Event] = []
        self.writing = asyncio.Event()

    async def write(self, proto: pb.SpeculateResponse) -> None:
        self.writing.set()
        await self.reading.wait()
        self.got.append(drafter_message_from_proto(proto)[0])

    async def messages(self) -> AsyncIterator[pb.SpeculateRequest]:
        while (proto := await self.requests.get()) is not None:
            yield proto

    def say(self, step: VerifierStep) -> None:
        for proto in verifier_message_to_protos(step):
            self.requests.put_nowait(proto)


def proposal(position: int) -> DrafterStep:
    """One token of session 1."""
    return DrafterStep(proposals=(Proposal(1, 0, position, (DraftToken(position),)),))


async def test_a_peer_that_does_not_read_is_cut_off() -> None:
    """A write that takes longer than the stall limit ends the stream as exhausted."""
    peer = Peer()
    stream = Stream(1, peer.posted.append, stall_seconds=0.05)
    stream.add(proposal(1))
    with pytest.raises(ResourceExhausted, match="not read"):
        await stream.serve(peer.messages(), peer.write)


async def test_reading_and_merging_go_on_while_a_write_waits() -> None:
    """While the first token is being written, a message of the peer is posted and three more tokens merge into one."""
    peer = Peer()
    stream = Stream(1, peer.posted.append)
    serving = asyncio.create_task(stream.serve(peer.messages(), peer.write))
    stream.add(proposal(1))
    await peer.writing.wait()
    peer.say(VerifierStep(opens=(opening([7], 1),)))
    for position in (2, 3, 4):
        stream.add(proposal(position))
    async with asyncio.timeout(PATIENCE):
        while not peer.posted:
            await asyncio.sleep(0)
    assert isinstance(peer.posted[0], StepArrived)
    assert (stream.backlog.messages, peer.got) == (1, [])
    peer.reading.set()
    stream.stop()
    with pytest.raises(Unavailable):
        await serving
    assert [[token.token for token in step.proposals[0].tokens] for step in peer.got] == [[1], [2, 3, 4]]


async def test_stop_writes_what_is_queued() -> None:
    """Draining, the load and the last words arrive before the stream ends."""
    peer = Peer()
    peer.reading.set()
    stream = Stream(1, peer.posted.append)
    ended = Ended(1, EndReason.INTERNAL, "the device is gone")
    stream.drain()
    stream.report(Load(1, 2, 0.5))
    stream.report(Load(0, 2, 0.5))
    stream.add(DrafterStep(ended=(ended,)))
    stream.stop()
    with pytest.raises(Unavailable):
        await stream.serve(peer.messages(), peer.write)
    assert peer.got == [Draining(), Load(0, 2, 0.5), DrafterStep(ended=(ended,))]


async def test_a_peer_that_ends_its_half_is_done() -> None:
    """The stream then ends without an error."""
    peer = Peer()
    peer.requests.put_nowait(None)
    await Stream(1, peer.posted.append).serve(peer.messages(), peer.write)


async def test_a_peer_may_not_run_ahead_of_the_engine() -> None:
    """With an engine that takes nothing, the message beyond the limit ends the stream; what waits stays bounded."""
    peer = Peer()
    for _ in range(MAX_WAITING_MESSAGES + 1):
        peer.say(VerifierStep())
    stream = Stream(1, peer.posted.append)
    with pytest.raises(ResourceExhausted, match=str(MAX_WAITING_MESSAGES)):
        await stream.serve(peer.messages(), peer.write)
    assert len(peer.posted) == MAX_WAITING_MESSAGES


async def test_what_waits_to_be_read_is_bounded() -> None:
    """A peer that provokes endings without reading them is cut off at its next message."""
    peer = Peer()
    stream = Stream(1, peer.posted.append)
    stream.add(DrafterStep(ended=tuple(Ended(i, EndReason.INVALID) for i in range(2 * MAX_WAITING_ENTRIES))))
    serving = asyncio.create_task(stream.serve(peer.messages(), peer.write))
    await peer.writing.wait()
    stream.add(DrafterStep(ended=tuple(Ended(i, EndReason.INVALID) for i in range(MAX_WAITING_ENTRIES + 1))))
    peer.say(VerifierStep())
    with pytest.raises(ResourceExhausted, match=str(MAX_WAITING_ENTRIES)):
        await serving


async def test_hello_must_come_in_time() -> None:
    """Silence and an early end are both a missing Hello."""
    peer = Peer()
    with pytest.raises(InvalidArgument, match="hello"):
        await read_hello(peer.messages(), within=0.02)
    peer.requests.put_nowait(None)
    with pytest.raises(InvalidArgument, match="hello"):
        await read_hello(peer.messages())


def test_backlog_counts_bytes_and_leaves_room_for_the_end() -> None:
    """Bytes are bounded like messages, what was taken no longer counts, and the end of a stream always fits."""
    backlog = Backlog()
    backlog.add(MAX_WAITING_BYTES)
    with pytest.raises(ResourceExhausted):
        backlog.add(1)
    backlog.add_end()
    backlog.remove(MAX_WAITING_BYTES)
    assert (backlog.messages, backlog.bytes) == (1, 0)
    backlog.add(1)
