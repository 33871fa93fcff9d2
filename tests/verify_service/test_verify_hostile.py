"""Five hundred malformed or hostile requests to a verify worker: each gets a proper status that names the field.

Nobody else notices: beside every message another caller's answer is checked token by token.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.background import Background, background
from support.hostility import ALL, VOCAB, good_answer, ids_beyond
from support.pair import connected, draft_worker
from support.rpc_strategies import any_proto, float32
from support.timing import PATIENCE
from support.verify_worker import RunningWorker, verify_worker

from draftwire.errors import InvalidArgument
from draftwire.fake_model import FakeModel
from draftwire.rpc.client import connect
from draftwire.rpc.limits import MAX_MESSAGE_BYTES
from draftwire.rpc.status import error_of
from draftwire.v1 import verify_service_pb2 as pb

MODEL_LEN, K = 48, 4


def broken_requests() -> st.SearchStrategy[tuple[str, pb.VerifyServiceGenerateRequest]]:
    """(field, request): requests that break exactly one rule, which is that field's."""

    def broken(field: str, **fields: object) -> tuple[str, pb.VerifyServiceGenerateRequest]:
        return field, pb.VerifyServiceGenerateRequest(**({"prompt_token_ids": [7], "max_tokens": 4} | fields))

    def sampling(name: str, values: st.SearchStrategy) -> st.SearchStrategy:
        return values.map(lambda value: broken(f"sampling.{name}", sampling={name: value}))

    strange = st.sampled_from([float("nan"), float("inf"), -float("inf")])
    number = "speculation.num_speculative_tokens"
    return st.one_of(
        st.just(broken("prompt_token_ids", prompt_token_ids=[])),
        ids_beyond.map(lambda token: broken("prompt_token_ids", prompt_token_ids=[7, token])),
        st.integers(MODEL_LEN, 500).map(lambda n: broken("prompt_token_ids", prompt_token_ids=[7] * n, max_tokens=1)),
        ids_beyond.map(lambda token: broken("committed_token_ids", committed_token_ids=[token])),
        st.integers(4, 500).map(lambda n: broken("committed_token_ids", committed_token_ids=[7] * n)),
        st.sampled_from([0, MODEL_LEN, 2**32 - 1]).map(lambda n: broken("max_tokens", max_tokens=n)),
        sampling("temperature", strange | float32(-100, 0, exclude_max=True) | float32(100, 1e9, exclude_min=True)),
        sampling("top_k", st.integers(VOCAB + 1, 2**32 - 1)),
        sampling("top_p", strange | float32(-1, 0) | float32(1, 9, exclude_min=True)),
        sampling("min_p", strange | float32(-1, 0, exclude_max=True) | float32(1, 9, exclude_min=True)),
        ids_beyond.map(lambda token: broken("stop_token_ids", stop_token_ids=[token])),
        st.integers(65, 500).map(lambda n: broken("stop_token_ids", stop_token_ids=[7] * n)),
        st.integers(129, 500).map(lambda n: broken("request_id", request_id="x" * n)),
        (st.just(0) | st.integers(K + 1, 2**32 - 1)).map(
            lambda n: broken(number, speculation={number.split(".")[1]: n})
        ),
    )


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A good request's bytes with some of them changed, lost or doubled."""
    data = bytearray(
        pb.VerifyServiceGenerateRequest(
            request_id="abc", prompt_token_ids=[7, 8], max_tokens=4, sampling={"temperature": 1.0}, stop_token_ids=[9]
        ).SerializeToString()
    )
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(data) - 1))
        data[place : place + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
        data = data or bytearray(b"\0")
    return bytes(data)


@dataclass
class Callers:
    """A worker with a draft, and a way to send it any bytes."""

    target: RunningWorker
    generate: grpc.aio.UnaryStreamMultiCallable

    async def outcome(self, message: bytes) -> grpc.aio.AioRpcError | None:
        """Send the bytes beside a good answer, which must come; returns the status, None for a complete answer."""
        good = asyncio.create_task(good_answer(self.target))
        error, last = None, None
        try:
            async for event in self.generate(message, timeout=PATIENCE):
                last = event
        except grpc.aio.AioRpcError as raised:
            error = raised
        await good
        assert error or last.HasField("finished")
        return error


@asynccontextmanager
async def serve_callers() -> AsyncIterator[Callers]:
    """The worker."""
    model = FakeModel(vocab_size=VOCAB, max_model_len=MODEL_LEN)
    async with (
        draft_worker(model) as draft,
        verify_worker(model, drafts=(f"127.0.0.1:{draft.port}",), num_speculative_tokens=K, schedule="eager") as target,
        connect(f"127.0.0.1:{target.worker.port}") as channel,
    ):
        await connected(target)
        generate = channel.unary_stream(
            "/draftwire.v1.VerifyService/Generate", response_deserializer=pb.VerifyServiceGenerateResponse.FromString
        )
        yield Callers(target, generate)
        async with asyncio.timeout(PATIENCE):
            while target.metric("draftwire_verify_running_sessions") + target.metric(
                "draftwire_verify_waiting_sessions"
            ):
                await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def callers() -> Iterator[tuple[Background, Callers]]:
    """The worker; at the end every slot must be free again."""
    with background(serve_callers) as running:
        yield running


@settings(ALL, max_examples=500)
@given(case=broken_requests())
def test_a_bad_field_is_named(callers: tuple[Background, Callers], case) -> None:
    """One broken rule: INVALID_ARGUMENT, and its details name the field."""
    field, request = case
    loop, world = callers
    error = loop.run(world.outcome(request.SerializeToString()))
    assert error is not None
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    refusal = error_of(error)
    assert isinstance(refusal, InvalidArgument)
    assert refusal.field == field


@settings(ALL, max_examples=500)
@given(
    message=st.one_of(
        any_proto(pb.VerifyServiceGenerateRequest).map(lambda proto: proto.SerializeToString()),
        mutated(),
        st.binary(max_size=64),
    )
)
def test_any_bytes_get_an_answer_or_a_field(callers: tuple[Background, Callers], message: bytes) -> None:
    """Whatever the bytes are: a complete answer, or INVALID_ARGUMENT that names a field."""
    loop, world = callers
    error = loop.run(world.outcome(message))
    if error is not None:
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        refusal = error_of(error)
        assert isinstance(refusal, InvalidArgument)
        assert refusal.field


def test_a_message_beyond_the_limit(callers: tuple[Background, Callers]) -> None:
    """More than MAX_MESSAGE_BYTES: RESOURCE_EXHAUSTED."""
    loop, world = callers
    error = loop.run(world.outcome(b"\0" * (MAX_MESSAGE_BYTES + 1)))
    assert error is not None
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
