"""A call's life: deadline, cancellation, a reader that stops reading, drain, hostile messages, and what metrics say."""

import asyncio
from dataclasses import replace

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from support.fake_verify import FakeVerify, serve_fake
from support.gateway import MODEL, read_all, request, running_gateway
from support.timing import PATIENCE, in_some_try

from draftwire.errors import ResourceExhausted
from draftwire.fake_model import FakeModel
from draftwire.rpc.client import connect
from draftwire.rpc.status import error_of
from draftwire.types import Usage
from draftwire.v1 import gateway_service_pb2 as pb
from draftwire.v1.gateway_service_pb2_grpc import GatewayServiceStub
from gateway.config import GatewayConfig
from gateway.metrics import GatewayMetrics
from gateway.server import GATEWAY_SERVICE, gateway_server
from gateway.tokenizer import FakeTokenizer, load_tokenizer

SCRIPT = list(b"one two three four five six")
NAME = "draftwire_gateway_"


async def test_deadline():
    """The worker gets what is left of the caller's deadline; when it passes, both calls end.

    A stall while the call is on its way may keep it from the worker, or make it look cancelled to the gateway.
    """

    async def outcome() -> str:
        fake = FakeVerify(SCRIPT, hold_at=6)
        async with running_gateway(fake) as gateway:
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await gateway.stub.Generate(request(), timeout=0.5)
            assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            if not fake.holding.is_set():
                return "late"
            await fake.cancelled.wait()
            assert 0 < fake.deadlines[0] < 0.51  # gRPC rounds to milliseconds, upwards
            await gateway.until_value(NAME + "requests_in_flight", 0)
            assert fake.running == 0
            return "exceeded" if gateway.metric(NAME + "requests_total", outcome="deadline_exceeded") else "cancelled"

    await in_some_try(outcome, lambda found: found == "exceeded")


@pytest.mark.parametrize("method", ["Generate", "GenerateStream"])
async def test_cancellation_reaches_the_worker(method):
    """The caller cancels: the worker's call is cancelled, and the gateway's slot is free."""
    fake = FakeVerify(SCRIPT, hold_at=6)
    async with running_gateway(fake, max_concurrent_requests=1) as gateway:
        call = getattr(gateway.stub, method)(request())
        await fake.holding.wait()
        assert gateway.metric(NAME + "requests_in_flight") == 1
        call.cancel()
        await fake.cancelled.wait()
        await gateway.until_value(NAME + "requests_total", 1, outcome="cancelled")
        await gateway.until_value(NAME + "requests_in_flight", 0)
        fake.gate.set()
        assert (await gateway.stub.Generate(request())).text == bytes(SCRIPT).decode()


class WideTokenizer(FakeTokenizer):
    """Every token is 4,000 characters, so that few tokens fill every buffer on the way."""

    def decode(self, token_ids):
        """4,000 letters a token."""
        return "".join(chr(97 + token_id) * 4000 for token_id in token_ids)


async def test_slow_reader():
    """A caller that stops reading stops the worker's stream, and gets everything once it reads on."""
    tokens = 8000  # 32 MB of text
    fake = FakeVerify([i % 26 for i in range(tokens)], block=10)
    fake.model = replace(fake.model, max_model_len=100_000)
    tokenizer = WideTokenizer(FakeModel())
    async with running_gateway(fake, tokenizer=tokenizer) as gateway:
        call = aiter(gateway.stub.GenerateStream(request()))
        first = await anext(call)
        taken, before = 0, -1
        while taken != before:  # until the gateway takes nothing more from the worker for half a second
            await asyncio.sleep(0.5)
            taken, before = gateway.metric(NAME + "inter_token_latency_seconds_count"), taken
        assert 0 < taken < tokens / 2
        text, token_ids, done = await read_all(call)
    assert len(first.delta.token_ids) + len(token_ids) == tokens == done.usage.completion_tokens
    assert first.delta.text + text == tokenizer.decode(fake.script)


async def test_a_caller_that_never_reads():
    """A write that hangs for --stall-seconds ends both calls and frees the slot; the caller then reads why."""
    tokens = 8000  # 32 MB of text
    fake = FakeVerify([i % 26 for i in range(tokens)], block=10, hold_at=tokens)
    fake.model = replace(fake.model, max_model_len=100_000)
    flags = {"tokenizer": WideTokenizer(FakeModel()), "max_concurrent_requests": 1, "stall_seconds": 0.5}
    async with running_gateway(fake, **flags) as gateway:
        silent = aiter(gateway.stub.GenerateStream(request()))
        await anext(silent)
        await gateway.until_value(NAME + "requests_total", 1, outcome="resource_exhausted")
        assert gateway.metric(NAME + "requests_in_flight") == 0
        await fake.cancelled.wait()
        fake.script = SCRIPT
        assert (await gateway.stub.Generate(request())).done.usage.completion_tokens == len(SCRIPT)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await read_all(silent)
    error = error_of(failure.value)
    assert isinstance(error, ResourceExhausted)
    assert "not read for 0.5 s" in str(error)


async def test_drain():
    """At its end the gateway says NOT_SERVING, refuses new calls, and lets the running one finish."""
    fake, stop = FakeVerify(SCRIPT, hold_at=6), asyncio.Event()
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(address: str) -> None:
        config = GatewayConfig(model=MODEL, verify=(address,), port=0, shutdown_grace=PATIENCE)
        async with gateway_server(config, load_tokenizer(MODEL), GatewayMetrics(CollectorRegistry())) as bound:
            port.set_result(bound)
            await stop.wait()

    async with serve_fake(fake) as worker:
        gateway = asyncio.create_task(run(worker.address))
        async with connect(f"127.0.0.1:{await port}") as channel:
            stub, health = GatewayServiceStub(channel), health_pb2_grpc.HealthStub(channel)
            watch = health.Watch(health_pb2.HealthCheckRequest(service=GATEWAY_SERVICE))
            states = aiter(watch)
            while (await anext(states)).status != health_pb2.HealthCheckResponse.SERVING:
                pass
            call = stub.GenerateStream(request())
            await fake.holding.wait()
            stop.set()
            assert (await anext(states)).status == health_pb2.HealthCheckResponse.NOT_SERVING
            watch.cancel()
            async with connect(f"127.0.0.1:{await port}") as later:
                with pytest.raises(grpc.aio.AioRpcError) as failure:
                    await GatewayServiceStub(later).Generate(request())
            assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
            fake.gate.set()
            text, _, done = await read_all(call)
            assert (text, done.usage.completion_tokens) == (bytes(SCRIPT).decode(), len(SCRIPT))
        await gateway


numbers = st.integers(0, 2**32 - 1)
texts = st.text(max_size=300)
samplings = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(width=32),
        "top_k": numbers,
        "top_p": st.floats(width=32),
        "min_p": st.floats(width=32),
    },
)
prompts = st.one_of(
    st.fixed_dictionaries({"text": texts}),
    st.fixed_dictionaries({"token_ids": st.fixed_dictionaries({"ids": st.lists(numbers, max_size=20)})}),
    st.fixed_dictionaries(
        {
            "chat": st.fixed_dictionaries(
                {"messages": st.lists(st.fixed_dictionaries({"role": texts, "content": texts}), max_size=3)}
            )
        }
    ),
    st.just({}),
)
hostile_fields = st.fixed_dictionaries(
    {},
    optional={
        "model": texts,
        "max_tokens": numbers,
        "sampling": samplings,
        "seed": st.integers(0, 2**64 - 1),
        "stop": st.lists(texts, max_size=18),
        "stop_token_ids": st.lists(numbers, max_size=66),
        "ignore_eos": st.booleans(),
        "speculation": st.fixed_dictionaries(
            {}, optional={"disabled": st.booleans(), "num_speculative_tokens": numbers}
        ),
        "request_id": texts,
        "include_special_tokens": st.booleans(),
    },
)
messages = st.one_of(
    st.binary(max_size=200),
    st.builds(
        lambda prompt, fields: pb.GatewayServiceGenerateRequest(**prompt, **fields).SerializeToString(),
        prompts,
        hostile_fields,
    ),
)


@pytest.fixture
async def besieged():
    """A gateway with a good call in mid stream, which must end well whatever else comes in."""
    fake = FakeVerify(SCRIPT, hold_at=6, hold_only="good")
    async with running_gateway(fake) as gateway:
        call = gateway.stub.GenerateStream(request(request_id="good"))
        await fake.holding.wait()
        yield gateway
        fake.gate.set()
        text, token_ids, done = await read_all(call)
        assert (text, token_ids, done.usage.completion_tokens) == (bytes(SCRIPT).decode(), SCRIPT, len(SCRIPT))
        assert gateway.metric(NAME + "requests_total", outcome="internal") is None
        assert gateway.metric(NAME + "worker_failures_total") == 0


@settings(max_examples=1000, suppress_health_check=list(HealthCheck))
@given(message=messages)
async def test_hostile_messages(besieged, message):
    """A thousand malformed or absurd requests each get an answer or a status that blames the caller."""
    method = besieged.channel.unary_unary("/draftwire.v1.GatewayService/Generate")
    try:
        answer = pb.GatewayServiceGenerateResponse.FromString(await method(message, timeout=PATIENCE))
    except grpc.aio.AioRpcError as error:
        assert error.code() in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}, error  # noqa: PT017
    else:
        assert answer.done.usage.completion_tokens == len(answer.token_ids) > 0


def test_latencies_by_hand():
    """Two tokens after 1 s, three 0.3 s later: one second to the first, three gaps of 0.1 s, 2 s in all.

    The two have no time between them that anybody could have measured.
    """
    now = 10.0
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry, lambda: now)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(NAME + name, labels)

    with metrics.request(None) as timer:
        assert value("requests_in_flight") == 1
        now = 11.0
        timer.tokens(2)
        now = 11.3
        timer.tokens(3)
        now = 12.0
        timer.done("stop", Usage(prompt_tokens=5, completion_tokens=5))
    assert value("time_to_first_token_seconds_sum") == 1.0
    assert value("inter_token_latency_seconds_count") == 3
    assert value("inter_token_latency_seconds_sum") == pytest.approx(0.3)
    assert (
        value("inter_token_latency_seconds_bucket", le="0.1") + value("inter_token_latency_seconds_bucket", le="0.15")
        >= 3
    )
    assert value("end_to_end_latency_seconds_sum") == 2.0
    assert (value("prompt_tokens_total"), value("completion_tokens_total")) == (5, 5)
    assert (value("requests_total", outcome="stop"), value("requests_in_flight")) == (1, 0)


@pytest.mark.parametrize("block", [1, 4, 100])
async def test_tokens_behind_a_stop_string_are_not_timed(block):
    """The sixth token ends the answer, whatever comes with it: a gap for each used token after the first event."""
    async with running_gateway(FakeVerify(list(b"abcdefghij"), block=block)) as gateway:
        await gateway.stub.Generate(request(stop=["f"]))
        assert gateway.metric(NAME + "completion_tokens_total") == 6
        assert gateway.metric(NAME + "inter_token_latency_seconds_count") == max(0, 6 - block)


async def test_metrics_of_a_call():
    """One good answer and one refused request, as /metrics tells them; nothing is labelled with a request's id."""
    async with running_gateway(FakeVerify(SCRIPT, block=9)) as gateway:
        await gateway.stub.Generate(request(request_id="secret-id"))
        with pytest.raises(grpc.aio.AioRpcError):
            await gateway.stub.Generate(request(""))
        assert gateway.metric(NAME + "requests_total", outcome="length") == 1
        assert gateway.metric(NAME + "requests_total", outcome="invalid_argument") == 1
        assert gateway.metric(NAME + "time_to_first_token_seconds_count") == 1
        assert gateway.metric(NAME + "inter_token_latency_seconds_count") == len(SCRIPT) - 9
        assert gateway.metric(NAME + "end_to_end_latency_seconds_count") == 1
        assert gateway.metric(NAME + "completion_tokens_total") == len(SCRIPT)
        assert gateway.metric(NAME + "verify_workers") == 1
        samples = [sample for family in gateway.registry.collect() for sample in family.samples]
        assert not any("secret-id" in str(sample) for sample in samples)
