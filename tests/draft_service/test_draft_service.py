"""The draft worker over real gRPC, on the fake engine: after t comes t + 1."""

import asyncio
from dataclasses import replace

import grpc
import pytest
from draft_client import HELLO, TARGET, Client, draft_worker
from draft_harness import ngram_info, opening
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.timing import PATIENCE
from torch import Tensor

from draft_service.config import DraftConfig
from draft_service.drafters.model import ModelDrafter
from draft_service.drafters.ngram import NgramDrafter
from draft_service.worker import SERVICE_NAME, DraftWorker
from draftwire.engine.fake import FakeEngine
from draftwire.errors import EngineError, InvalidArgument
from draftwire.fake_model import FakeModel
from draftwire.metrics import new_registry
from draftwire.session import Close, Commit
from draftwire.types import EndReason
from draftwire.v1 import draft_service_pb2 as pb


async def test_golden_dialogue() -> None:
    """Open [7]: 8 9 10. Commit 8 9: 11 12 follow on path 0. Commit 10 40: path 2 drafts 41 42 43."""
    async with draft_worker() as running:
        client = await running.stream()
        await client.say(opening([7], 3))
        assert await client.tokens(1, path=0, position=1, count=3) == [8, 9, 10]
        await client.say(Commit(1, 1, position=1, token_ids=(8, 9), window=3))
        assert await client.tokens(1, path=0, position=4, count=2) == [11, 12]
        await client.say(Commit(1, 2, position=3, token_ids=(10, 40), window=3))
        assert await client.tokens(1, path=2, position=5, count=3) == [41, 42, 43]
        assert running.metric("draftwire_draft_proposed_tokens_total", source="model") == 8


async def test_hello_introduces_the_worker() -> None:
    """The worker says its version, instance, model and capacity, and its load right after."""
    async with draft_worker(max_num_seqs=5) as running:
        client = await running.stream()
        assert client.hello is not None
        assert client.hello.instance_id == running.worker.instance_id
        assert (client.hello.model.vocab_size, client.hello.max_sessions) == (512, 5)
        await client.until(lambda: client.loads)
        assert (client.loads[0].sessions, client.loads[0].max_sessions) == (0, 5)


async def test_window_zero_pauses() -> None:
    """A session with window 0 is opened and silent until a commit gives it credit."""
    async with draft_worker() as running:
        client = await running.stream()
        await client.say(opening([7], 0))
        await client.until(lambda: 1 in client.opened)
        await client.say(opening([17], 1, session_id=2))
        await client.tokens(2, path=0, position=1, count=1)
        assert client.proposed(1) == 0
        await client.say(Commit(1, 1, position=1, token_ids=(), window=1))
        assert await client.tokens(1, path=0, position=1, count=1) == [8]


async def test_sessions_of_several_streams_are_kept_apart() -> None:
    """The same session id on two streams names two sessions; both draft, and each hears only of its own."""
    async with draft_worker() as running:
        first, second = await running.stream(), await running.stream()
        await first.say(*(opening([10 * i], 4, session_id=i) for i in range(1, 5)))
        await second.say(opening([100], 4))
        for i in range(1, 5):
            assert await first.tokens(i, path=0, position=1, count=4) == [10 * i + n for n in range(1, 5)]
        assert await second.tokens(1, path=0, position=1, count=4) == [101, 102, 103, 104]
        assert second.opened == {1}
        assert running.metric("draftwire_draft_streams") == 2


async def test_a_lost_stream_frees_its_slots() -> None:
    """With both slots held by a stream that breaks, another stream soon gets them."""
    async with draft_worker(max_num_seqs=2) as running:
        first, second = await running.stream(), await running.stream()
        await first.say(opening([7], 1, session_id=1), opening([7], 1, session_id=2))
        await second.until(lambda: second.loads and second.loads[-1].sessions == 2)
        first.call.cancel()
        await second.until(lambda: second.loads[-1].sessions == 0)
        await second.say(opening([7], 1, session_id=1), opening([7], 1, session_id=2))
        await second.until(lambda: second.opened == {1, 2})
        assert second.ended == {}
        assert running.metric("draftwire_draft_streams") == 1


async def test_overload_and_length_are_said() -> None:
    """Beyond the slots a session is refused, at the draft's length one is ended, and both say so."""
    async with draft_worker(FakeModel(max_model_len=4), max_num_seqs=1) as running:
        client = await running.stream()
        await client.say(opening([7], 8), opening([7], 8, session_id=2))
        await client.until(lambda: 2 in client.ended)
        assert client.ended[2].reason is EndReason.OVERLOADED
        assert await client.tokens(1, path=0, position=1, count=3) == [8, 9, 10]
        await client.say(Commit(1, 1, position=1, token_ids=(8, 9, 10), window=8))
        await client.until(lambda: 1 in client.ended)
        assert client.ended[1].reason is EndReason.MAX_MODEL_LEN
        assert running.metric("draftwire_draft_ended_sessions_total", reason="overloaded") == 1


async def test_a_bad_message_ends_its_session_alone() -> None:
    """A wrong position, an unreadable window and an unknown id each end one session, with the field named."""
    async with draft_worker() as running:
        client = await running.stream()
        await client.say(*(opening([7], 1, session_id=i) for i in (1, 2, 3, 4)))
        await client.until(lambda: client.opened == {1, 2, 3, 4})
        step = pb.VerifierStep(
            commits=[
                pb.Commit(session_id=1, number=1, position=9, window=1),
                pb.Commit(session_id=2, number=1, position=1, window=1000),
                pb.Commit(session_id=3, number=1, position=1, token_ids=[512], window=1),
                pb.Commit(session_id=4, number=1, position=1, token_ids=[8], window=1),
            ]
        )
        await client.call.write(pb.SpeculateRequest(step=step))
        await client.until(lambda: client.ended.keys() == {1, 2, 3})
        assert {ended.reason for ended in client.ended.values()} == {EndReason.INVALID}
        for session_id, field in {1: "position", 2: "window", 3: "token 512"}.items():
            assert field in client.ended[session_id].detail
        assert await client.tokens(4, path=0, position=2, count=1) == [9]


@pytest.mark.parametrize(
    ("hello", "code"),
    [
        (replace(HELLO, protocol_version=2), grpc.StatusCode.FAILED_PRECONDITION),
        (replace(HELLO, model=replace(TARGET, vocab_fingerprint="other")), grpc.StatusCode.FAILED_PRECONDITION),
    ],
)
async def test_an_incompatible_peer_is_refused(hello: object, code: grpc.StatusCode) -> None:
    """Another protocol version or vocabulary is FAILED_PRECONDITION, at once."""
    async with draft_worker() as running:
        client = Client(running.stub)
        await client.send(hello)
        assert await client.status() is code
        assert "hello." in await client.call.details()


async def test_the_first_message_must_be_hello() -> None:
    """A step first, a second Hello, an empty message: INVALID_ARGUMENT each."""
    async with draft_worker() as running:
        early = Client(running.stub)
        await early.say(opening([7], 1))
        assert await early.status() is grpc.StatusCode.INVALID_ARGUMENT
        twice = await running.stream()
        await twice.send(HELLO)
        assert await twice.status() is grpc.StatusCode.INVALID_ARGUMENT
        empty = await running.stream()
        await empty.call.write(pb.SpeculateRequest())
        assert await empty.status() is grpc.StatusCode.INVALID_ARGUMENT


async def test_streams_are_limited() -> None:
    """The second stream of a worker that takes one is RESOURCE_EXHAUSTED; the first goes on."""
    async with draft_worker(max_streams=1) as running:
        first = await running.stream()
        second = Client(running.stub)
        assert await second.status() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await first.say(opening([7], 1))
        assert await first.tokens(1, path=0, position=1, count=1) == [8]


async def test_drain_waits_for_the_sessions() -> None:
    """Draining is said, health is NOT_SERVING, the open session drafts on; once it is closed the streams end."""
    async with draft_worker(shutdown_grace=PATIENCE) as running:
        client = await running.stream()
        await client.say(opening([7], 2))
        await client.tokens(1, path=0, position=1, count=2)
        draining = running.drain()
        await client.until(lambda: client.drained)
        health = health_pb2_grpc.HealthStub(running.channel)
        reply = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE_NAME))
        assert reply.status == health_pb2.HealthCheckResponse.NOT_SERVING
        await client.say(opening([7], 1, session_id=2))
        await client.until(lambda: 2 in client.ended)
        await client.say(Commit(1, 1, position=1, token_ids=(8,), window=2))
        assert await client.tokens(1, path=0, position=3, count=1) == [10]
        late = Client(running.stub)
        assert await late.status() is grpc.StatusCode.UNAVAILABLE
        await client.say(Close(1))
        assert await client.status() is grpc.StatusCode.UNAVAILABLE
        await asyncio.wait_for(draining, PATIENCE)


async def test_a_drain_does_not_wait_for_ever() -> None:
    """A session that is never closed delays the end by the grace, no longer; its stream is UNAVAILABLE."""
    async with draft_worker(shutdown_grace=0.05) as running:
        client = await running.stream()
        await client.say(opening([7], 1))
        await client.tokens(1, path=0, position=1, count=1)
        running.drain()
        assert await client.status() is grpc.StatusCode.UNAVAILABLE
        assert client.drained


async def test_an_engine_failure_is_said_and_ends_the_worker() -> None:
    """Every session hears that the engine failed, and the process is told to end without waiting for the grace."""

    class Broken(FakeEngine):
        def forward(self, chunks: object) -> Tensor:
            raise EngineError("the device is gone")

    drafter = ModelDrafter(Broken(FakeModel(), num_slots=2))
    async with draft_worker(make_drafter=lambda: drafter, shutdown_grace=300) as running:
        client = await running.stream()
        await client.say(opening([7], 1))
        await client.until(lambda: 1 in client.ended)
        assert client.ended[1].reason is EndReason.INTERNAL
        await asyncio.wait_for(running.worker.failed.wait(), PATIENCE)
        running.drain()
        assert await client.status() is grpc.StatusCode.UNAVAILABLE


async def test_a_taken_port_is_said() -> None:
    """The flag is named, and the worker that could not start can be drained like any other."""
    async with draft_worker() as running:
        second = DraftWorker(
            DraftConfig(port=running.worker.port, metrics_port=0, shutdown_grace=5),
            lambda: ModelDrafter(FakeEngine(FakeModel(), num_slots=2)),
            new_registry(),
            asyncio.Event(),
        )
        with pytest.raises(InvalidArgument, match="--port"):
            await second.start()
        await asyncio.wait_for(second.drain(), PATIENCE)


async def test_model_and_health() -> None:
    """GetModel says what is served and health that it is."""
    async with draft_worker() as running:
        reply = await running.stub.GetModel(pb.DraftServiceGetModelRequest())
        assert (reply.model.name, reply.model.vocab_size, reply.model.engine) == ("fake", 512, "fake")
        health = health_pb2_grpc.HealthStub(running.channel)
        status = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE_NAME))
        assert status.status == health_pb2.HealthCheckResponse.SERVING


async def test_ngram_worker_speaks_every_vocabulary() -> None:
    """Without a model any fingerprint is answered with the same one, and the text's repetition is proposed."""
    async with draft_worker(make_drafter=lambda: NgramDrafter(ngram_info(), max_sessions=2)) as running:
        target = replace(TARGET, vocab_fingerprint="anything", vocab_size=77)
        client = await running.stream(replace(HELLO, model=target))
        assert client.hello is not None
        assert (client.hello.model.vocab_fingerprint, client.hello.model.vocab_size) == ("anything", 77)
        await client.say(opening([1, 2, 1, 2], 3))
        assert await client.tokens(1, path=0, position=4, count=3) == [1, 2, 1]
