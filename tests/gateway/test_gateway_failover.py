"""Workers that fail, refuse, lie or come back: the caller's text and ids are those of one undisturbed answer."""

import grpc
import pytest
from grpc_health.v1 import health_pb2
from support.fake_verify import MODEL, FakeVerify, serve_fake
from support.gateway import read_all, request, running_gateway

from draftwire.errors import EngineError, ResourceExhausted, Unavailable
from draftwire.ports import free_port
from draftwire.rpc.status import error_of
from draftwire.types import ModelInfo

SCRIPT = list("naïve 🎉 failover, nothing lost.".encode())
TEXT = bytes(SCRIPT).decode()

#: Answers after which each of three equally loaded workers was asked, though chance decides: all but (2/3)^200.
ENOUGH = 200


async def answer_of(gateway, **fields):
    """(text, ids, done) of a stream."""
    return await read_all(gateway.stub.GenerateStream(request(**fields)))


async def one_call_each(gateway):
    """As many calls as workers, which hold them: each goes to a worker that has none yet."""
    calls = [gateway.stub.GenerateStream(request()) for _ in gateway.workers]
    for worker in gateway.workers:
        await worker.fake.holding.wait()
    return calls


async def asked(gateway, fake):
    """Good answers until the worker was asked for one: with nothing to do they all are as likely to be."""
    for _ in range(ENOUGH):
        text, token_ids, done = await answer_of(gateway)
        assert (text, token_ids, done.usage.completion_tokens) == (TEXT, SCRIPT, len(SCRIPT))
        if fake.calls:
            return
    raise AssertionError("never asked")


@pytest.mark.parametrize("fail_at", [0, 6, 9, len(SCRIPT)])
@pytest.mark.parametrize("error", [Unavailable("gone"), EngineError("cuda")])
async def test_failover_in_mid_stream(fail_at, error):
    """Two of three workers fail, the second later: text, ids and usage are whole, statistics cover all of them.

    Where the first fails after the last token the second never gets to where it would.
    """
    fakes = [FakeVerify(SCRIPT, fail_at=at, error=error) for at in (fail_at, fail_at + 6, None)]
    failing = [fake for fake in fakes[:2] if fake.fail_at <= len(SCRIPT)]
    answers = []
    async with running_gateway(*fakes) as gateway:
        while any(fake.fail_at is not None for fake in failing):
            assert len(answers) < ENOUGH
            answers.append(await answer_of(gateway, seed=7))
        failures = gateway.metric("draftwire_gateway_worker_failures_total")
    for text, token_ids, done in answers:
        assert (text, token_ids) == (TEXT, SCRIPT)
        assert done.usage.completion_tokens == done.speculation.committed_tokens == len(SCRIPT)
    assert failures == len(failing)
    for call in (call for fake in fakes for call in fake.calls):
        assert call.seed == 7
        assert call.request_id in {done.request_id for _, _, done in answers}
        assert list(call.committed_token_ids) == SCRIPT[: len(call.committed_token_ids)]


async def test_a_killed_worker_and_its_restart():
    """The worker's process dies in mid stream: the other one goes on. Started again on its port, it is used again."""
    first, second = FakeVerify(SCRIPT, hold_at=6), FakeVerify(SCRIPT, hold_at=6)
    async with running_gateway(first, second) as gateway:
        calls = await one_call_each(gateway)
        second.gate.set()
        await gateway.workers[0].stop()
        for call in calls:
            text, token_ids, _ = await read_all(call)
            assert (text, token_ids) == (TEXT, SCRIPT)
        await gateway.until_workers(1)
        again = FakeVerify(SCRIPT, max_sessions=1000)
        async with serve_fake(again, int(gateway.workers[0].address.rpartition(":")[2])):
            await gateway.until_workers(2)
            await asked(gateway, again)


@pytest.mark.parametrize("broken", [{"skip": 1}, {"skip": -1}, {"unfinished": True}])
async def test_a_worker_that_breaks_the_protocol(broken):
    """Tokens lost or said again, or no Finished: the worker's failure, never wrong or missing text."""
    bad = FakeVerify(SCRIPT, **broken)
    async with running_gateway(bad, FakeVerify(SCRIPT)) as gateway:
        await asked(gateway, bad)
        assert gateway.metric("draftwire_gateway_worker_failures_total") == 1


async def test_end_lost_after_the_last_token():
    """The worker dies between the last token and Finished: the gateway knows the end by itself."""
    ended = FakeVerify([*b"bye", 300], fail_at=4)
    async with running_gateway(ended) as gateway:
        text, token_ids, done = await answer_of(gateway)
        assert (text, token_ids, done.reason) == ("bye", [*b"bye", 300], 1)
        await gateway.until_workers(1)
        ended.fail_at = 3
        text, token_ids, done = await answer_of(gateway, max_tokens=3)
    assert (text, token_ids, done.reason) == ("bye", [*b"bye"], 2)
    assert len(ended.calls) == 2


async def test_no_worker_left():
    """The only worker fails for good: UNAVAILABLE with RetryInfo, and health says NOT_SERVING."""
    fake = FakeVerify(SCRIPT, hold_at=3)
    async with running_gateway(fake, failover_wait=0) as gateway:
        call = gateway.stub.GenerateStream(request())
        await fake.holding.wait()
        await gateway.workers[0].stop()
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await read_all(call)
        await gateway.until(health_pb2.HealthCheckResponse.NOT_SERVING)
        with pytest.raises(grpc.aio.AioRpcError) as later:
            await gateway.stub.Generate(request())
        assert gateway.metric("draftwire_gateway_requests_total", outcome="unavailable") == 2
    assert isinstance(error_of(failure.value), Unavailable)
    assert isinstance(error_of(later.value), Unavailable)


async def test_tries_are_bounded():
    """A worker that is healthy but fails every call is not tried for ever."""
    fakes = [FakeVerify(SCRIPT, refuse=EngineError("broken")) for _ in range(8)]
    async with running_gateway(*fakes) as gateway:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await gateway.stub.Generate(request())
    assert isinstance(error_of(failure.value), Unavailable)
    assert sum(len(fake.calls) for fake in fakes) == 4


async def test_full_workers():
    """One full worker: the other is tried, and the full one stays in use. All full: the shortest retry hint."""
    full, free = FakeVerify(SCRIPT, refuse=ResourceExhausted("full", 2.5)), FakeVerify(SCRIPT)
    async with running_gateway(full, free) as gateway:
        await asked(gateway, full)
        free.refuse = ResourceExhausted("full too", 1.5)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await gateway.stub.Generate(request())
        assert gateway.metric("draftwire_gateway_verify_workers") == 2
        assert gateway.metric("draftwire_gateway_worker_failures_total") == 0
    error = error_of(failure.value)
    assert isinstance(error, ResourceExhausted)
    assert error.retry_after == 1.5


async def test_wrong_vocabulary_is_never_used(caplog):
    """A worker with another vocabulary is named in the log as refused; all calls go to the right one."""
    wrong = FakeVerify(SCRIPT, model=ModelInfo("other", "fake-600", 600, 4096), max_sessions=1000)
    async with running_gateway(wrong, FakeVerify(SCRIPT)) as gateway:
        for _ in range(3):
            assert (await gateway.stub.Generate(request())).text == TEXT
        address = gateway.workers[0].address
        await gateway.until_value("draftwire_gateway_verify_workers", 1)
    assert wrong.calls == []
    assert any(address in line and "fake-600" in line and "other" in line for line in caplog.messages)


async def test_only_wrong_workers():
    """With nobody else the gateway stays NOT_SERVING and answers UNAVAILABLE."""
    wrong = FakeVerify(SCRIPT, model=ModelInfo("other", "fake-600", 600, 4096))
    async with running_gateway(wrong) as gateway:
        await gateway.until(health_pb2.HealthCheckResponse.NOT_SERVING)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await gateway.stub.Generate(request())
    assert isinstance(error_of(failure.value), Unavailable)
    assert wrong.calls == []


async def test_shortest_worker_sets_the_limit():
    """Workers with different max_model_len: no request is accepted that one of them could not finish."""
    short = FakeVerify(SCRIPT, model=ModelInfo("fake", "fake-512", 512, 100, (300,)))
    async with running_gateway(short, FakeVerify(SCRIPT, model=MODEL)) as gateway:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await gateway.stub.Generate(request("x" * 10, max_tokens=91))
        assert error_of(failure.value).field == "max_tokens"
        assert (await gateway.stub.Generate(request("x" * 10, max_tokens=90))).text == TEXT


async def test_starts_before_its_workers():
    """The gateway starts alone, NOT_SERVING; when a worker appears it becomes SERVING and answers."""
    port = free_port()
    async with running_gateway(also=(f"127.0.0.1:{port}",)) as gateway:
        await gateway.until(health_pb2.HealthCheckResponse.NOT_SERVING)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await gateway.stub.Generate(request())
        assert isinstance(error_of(failure.value), Unavailable)
        async with serve_fake(FakeVerify(SCRIPT), port):
            await gateway.until_serving()
            assert (await gateway.stub.Generate(request())).text == TEXT


async def test_a_draining_worker_gets_no_new_calls():
    """NOT_SERVING of a worker is seen without a call; what runs there is left to finish."""
    draining, other = FakeVerify(SCRIPT, hold_at=3, max_sessions=1000), FakeVerify(SCRIPT, hold_at=3)
    async with running_gateway(draining, other) as gateway:
        calls = await one_call_each(gateway)
        other.gate.set()
        await gateway.workers[0].server.set_serving(False)
        await gateway.until_workers(1)
        before = len(draining.calls)
        assert (await gateway.stub.Generate(request())).text == TEXT
        assert len(draining.calls) == before
        draining.gate.set()
        assert [(await read_all(call))[0] for call in calls] == [TEXT] * 2
        assert gateway.metric("draftwire_gateway_worker_failures_total") == 0
