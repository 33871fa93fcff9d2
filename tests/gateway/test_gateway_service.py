"""The gateway over real gRPC: prompts in three forms, text out, stops, limits, usage, errors that name their field."""

import grpc
import pytest
from support.fake_verify import FakeVerify
from support.gateway import read_all, request, running_gateway

from draftwire.errors import InvalidArgument, NotFound, ResourceExhausted
from draftwire.rpc.status import error_of
from draftwire.v1 import gateway_service_pb2 as pb
from draftwire.v1 import verify_service_pb2

STOP, LENGTH = verify_service_pb2.FINISH_REASON_STOP, verify_service_pb2.FINISH_REASON_LENGTH
ANSWER = "Hello wörld 🎉, all done."
SCRIPT = list(ANSWER.encode())


async def test_unary_and_stream_give_the_same_answer():
    """Text, ids, reason, usage and statistics are the same in one message and as a stream."""
    fake = FakeVerify(SCRIPT)
    async with running_gateway(fake) as gateway:
        whole = await gateway.stub.Generate(request(request_id="me"))
        text, token_ids, done = await read_all(gateway.stub.GenerateStream(request(request_id="me")))
    assert (whole.text, list(whole.token_ids), whole.done) == (text, token_ids, done)
    assert (text, token_ids) == (ANSWER, SCRIPT)
    assert (done.reason, done.stop_string, done.request_id, done.model) == (LENGTH, "", "me", "fake")
    usage = done.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (2, len(SCRIPT), 1)
    steps = -(-len(SCRIPT) // 3)
    assert (done.speculation.steps, done.speculation.committed_tokens) == (steps, len(SCRIPT))
    assert done.speculation.accepted_tokens == done.speculation.tested_tokens == len(SCRIPT) - steps


async def test_the_three_prompts_and_every_parameter_reach_the_worker():
    """Text, chat and ids become the ids that the fake tokenizer defines; sampling, seed, stops and the rest pass on."""
    fake = FakeVerify(SCRIPT)
    chat = pb.ChatMessages(
        messages=[pb.ChatMessage(role="system", content="S"), pb.ChatMessage(role="user", content="U")]
    )
    async with running_gateway(fake) as gateway:
        await gateway.stub.Generate(request("é", request_id="r1"))
        await gateway.stub.Generate(request(None, chat=chat))
        everything = pb.GatewayServiceGenerateRequest(
            token_ids=pb.TokenIds(ids=[5, 400]),
            max_tokens=7,
            sampling={"temperature": 0.5, "top_k": 9, "top_p": 0.75, "min_p": 0.25},
            seed=0,
            stop_token_ids=[44],
            ignore_eos=True,
            speculation={"num_speculative_tokens": 2},
        )
        await gateway.stub.Generate(everything)
        await gateway.stub.Generate(request(speculation={"disabled": True}))
    text, conversation, ids, plain = fake.calls
    assert (text.prompt_token_ids, text.request_id) == ((0xC3, 0xA9), "r1")
    assert bytes(conversation.prompt_token_ids) == b"system: S\nuser: U\nassistant: "
    assert conversation.request_id.startswith("gateway-")
    sampling = ids.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 9, 0.75, 0.25)
    assert (ids.prompt_token_ids, ids.max_tokens, ids.seed, ids.stop_token_ids) == ((5, 400), 7, 0, (44,))
    assert (ids.ignore_eos, ids.num_speculative_tokens) == (True, 2)
    assert (text.seed, text.num_speculative_tokens, plain.num_speculative_tokens) == (None, None, 0)
    assert text.max_tokens == 4096 - 2  # as many as fit


@pytest.mark.parametrize("block", [1, 2, 5, 100])
async def test_stop_string_across_blocks(block):
    """Cut before the stop string whatever the blocks; usage counts up to the token that completed it."""
    fake = FakeVerify(SCRIPT, block=block, hold_at=len(SCRIPT))
    async with running_gateway(fake) as gateway:
        text, token_ids, done = await read_all(gateway.stub.GenerateStream(request(stop=["rld 🎉", "nowhere"])))
        if block < 100:
            await fake.cancelled.wait()
    assert text == "Hello wö"
    assert (done.reason, done.stop_string) == (STOP, "rld 🎉")
    assert bytes(token_ids).decode() == "Hello wörld 🎉"
    assert done.usage.completion_tokens == len(token_ids)
    assert 0 < done.speculation.steps <= -(-len(SCRIPT) // block)
    assert done.usage.cached_tokens == 1


async def test_the_beginning_of_a_stop_string_is_released_at_the_end():
    """ "done." could have become "done.!": it is held back, and comes before Done."""
    async with running_gateway(FakeVerify(SCRIPT)) as gateway:
        text, _, done = await read_all(gateway.stub.GenerateStream(request(stop=["done.!"])))
    assert (text, done.reason) == (ANSWER, LENGTH)


async def test_end_of_sequence():
    """The end id counts and is among the ids, has no text unless that is asked for, and nothing follows it."""
    fake = FakeVerify([*b"bye", 300, *b"leak"], block=8)
    async with running_gateway(fake) as gateway:
        plain = await gateway.stub.Generate(request())
        special = await gateway.stub.Generate(request(include_special_tokens=True))
        ignored = await gateway.stub.Generate(request(ignore_eos=True))
        stop_id = await gateway.stub.Generate(request(stop_token_ids=[ord("y")]))
    assert (plain.text, list(plain.token_ids), plain.done.reason) == ("bye", [*b"bye", 300], STOP)
    assert plain.done.usage.completion_tokens == 4
    assert special.text == "bye<300>"
    assert (ignored.text, ignored.done.reason) == ("bye<300>leak", LENGTH)
    assert (stop_id.text, stop_id.done.reason, stop_id.done.usage.completion_tokens) == ("b", STOP, 2)


async def test_max_tokens():
    """Exactly as many as asked; the answer ends for its length."""
    async with running_gateway(FakeVerify(SCRIPT)) as gateway:
        answer = await gateway.stub.Generate(request(max_tokens=4))
    assert (answer.text, answer.done.reason, answer.done.usage.completion_tokens) == ("Hell", LENGTH, 4)


BAD = [
    ({"text": ""}, "text"),
    ({"text": "x" * 101}, "text"),
    ({"text": None}, "prompt"),
    ({"text": None, "token_ids": {"ids": []}}, "token_ids"),
    ({"text": None, "token_ids": {"ids": [512]}}, "token_ids"),
    ({"text": None, "token_ids": {"ids": [1] * 4096}}, "token_ids"),
    ({"text": None, "chat": {"messages": []}}, "chat.messages"),
    ({"text": None, "chat": {"messages": [{"role": "user"}] * 4097}}, "chat.messages"),
    ({"text": None, "chat": {"messages": [{"role": "", "content": "x"}]}}, "chat.messages[0].role"),
    ({"text": None, "chat": {"messages": [{"role": "user", "content": "x" * 101}]}}, "chat"),
    ({"text": None, "chat": {"messages": [{"role": "user", "content": "x" * 81}]}}, "chat"),
    ({"text": None, "chat": {"messages": [{"role": "user"}] * 6}}, "chat"),
    ({"text": None, "chat": {"messages": [{"role": "r" * 64, "content": "x" * 21}]}}, "chat"),
    ({"text": None, "chat": {"messages": [{"role": "user", "content": "é" * 41}]}}, "chat"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 4095}, "max_tokens"),
    ({"sampling": {"temperature": -1}}, "sampling.temperature"),
    ({"sampling": {"top_k": 513}}, "sampling.top_k"),
    ({"sampling": {"top_p": 0}}, "sampling.top_p"),
    ({"sampling": {"min_p": float("nan")}}, "sampling.min_p"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["é" * 257]}, "stop"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop_token_ids": [512]}, "stop_token_ids"),
    ({"stop_token_ids": [1] * 65}, "stop_token_ids"),
    ({"speculation": {"num_speculative_tokens": 0}}, "speculation.num_speculative_tokens"),
    ({"speculation": {"num_speculative_tokens": 65}}, "speculation.num_speculative_tokens"),
    ({"request_id": "x" * 129}, "request_id"),
]


async def test_bad_fields_are_named():
    """Each bad value gets INVALID_ARGUMENT with its field's name, and no worker hears of it."""
    fake = FakeVerify(SCRIPT)
    async with running_gateway(fake, max_prompt_bytes=100) as gateway:
        for fields, name in BAD:
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await gateway.stub.Generate(request(**fields))
            error = error_of(failure.value)
            assert isinstance(error, InvalidArgument), fields
            assert error.field == name
        assert gateway.metric("draftwire_gateway_requests_total", outcome="invalid_argument") == len(BAD)
    assert fake.calls == []


async def test_what_the_worker_refuses_reaches_the_caller():
    """A limit that only the worker knows (its --num-speculative-tokens): its error arrives with the field's name."""
    refusal = InvalidArgument("speculation.num_speculative_tokens", "must be at most 5, got 9")
    async with running_gateway(FakeVerify(SCRIPT, refuse=refusal)) as gateway:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await gateway.stub.Generate(request(speculation={"num_speculative_tokens": 9}))
        assert gateway.metric("draftwire_gateway_worker_failures_total") == 0
    assert str(error_of(failure.value)) == str(refusal)


async def test_models():
    """The served name is listed and may be asked for; another one is NOT_FOUND."""
    async with running_gateway(FakeVerify(SCRIPT), served_model_name="front") as gateway:
        models = (await gateway.stub.ListModels(pb.GatewayServiceListModelsRequest())).models
        assert [(model.name, model.vocab_size, model.max_model_len) for model in models] == [("front", 512, 4096)]
        assert (await gateway.stub.Generate(request(model="front"))).done.model == "front"
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await gateway.stub.Generate(request(model="fake"))
    assert isinstance(error_of(failure.value), NotFound)


async def test_own_limit():
    """Beyond --max-concurrent-requests a call gets RESOURCE_EXHAUSTED with RetryInfo; an ended one makes room."""
    fake = FakeVerify(SCRIPT, hold_at=3)
    async with running_gateway(fake, max_concurrent_requests=1) as gateway:
        first = gateway.stub.GenerateStream(request())
        await fake.holding.wait()
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await gateway.stub.Generate(request())
        error = error_of(failure.value)
        assert isinstance(error, ResourceExhausted)
        assert error.retry_after > 0
        fake.gate.set()
        assert (await read_all(first))[0] == ANSWER
        assert (await gateway.stub.Generate(request())).text == ANSWER
