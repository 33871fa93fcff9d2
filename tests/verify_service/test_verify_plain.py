"""A verify worker without drafts over real gRPC: plain decoding of the hand-computable target."""

import asyncio

import grpc
import pytest
from support.timing import in_some_try
from support.verify_worker import finished, output, verify_worker

from draftwire.engine.fake import FakeModel
from draftwire.errors import InvalidArgument, ResourceExhausted
from draftwire.rpc.status import error_of
from draftwire.types import FinishReason, GenerateRequest, SamplingParams, Started
from draftwire.v1 import verify_service_pb2 as pb

GREEDY = SamplingParams(temperature=0.0)


async def test_counts_up():
    """Prompt [7] continues 8, 9, 10, 11 and ends by length; one step a token."""
    async with verify_worker(FakeModel()) as target:
        answer = await target.generate([7], max_tokens=4, sampling=GREEDY)
    assert isinstance(answer[0], Started)
    assert output(answer) == [8, 9, 10, 11]
    end = finished(answer)
    assert end.reason is FinishReason.LENGTH
    assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (1, 4)
    assert (end.speculation.steps, end.speculation.committed_tokens, end.speculation.tested_tokens) == (4, 4, 0)


async def test_drift_skips_at_its_positions():
    """With drift 5 the tokens at positions 5 and 10 skip one: [0] -> 1 2 3 4 6 7 8 9 10 12 ..."""
    async with verify_worker(FakeModel(drift=5)) as target:
        answer = await target.generate([0], max_tokens=11, sampling=GREEDY)
    assert output(answer) == [1, 2, 3, 4, 6, 7, 8, 9, 10, 12, 13]


async def test_long_prompt_is_prefilled_in_pieces():
    """A prompt of 100 tokens through steps of at most 16 tokens gives what it gives at once."""
    prompt = list(range(100))
    async with verify_worker(FakeModel(), max_batched_tokens=16, max_num_batched_tokens=16) as target:
        answer = await target.generate(prompt, max_tokens=3, sampling=GREEDY)
        assert target.metric("draftwire_verify_prefill_tokens_total") == 99
    assert output(answer) == [100, 101, 102]


async def test_eos_ends_the_answer_and_counts():
    """eos = 10: [7] -> 8 9 10, stop; with ignore_eos it goes on."""
    async with verify_worker(FakeModel(eos=10)) as target:
        answer = await target.generate([7], max_tokens=8, sampling=GREEDY)
        going_on = await target.generate([7], max_tokens=5, sampling=GREEDY, ignore_eos=True)
        own_stop = await target.generate([7], max_tokens=5, sampling=GREEDY, stop_token_ids=(9,))
    assert output(answer) == [8, 9, 10]
    assert finished(answer).reason is FinishReason.STOP
    assert finished(answer).usage.completion_tokens == 3
    assert output(going_on) == [8, 9, 10, 11, 12]
    assert output(own_stop) == [8, 9]


async def test_committed_tokens_are_continued():
    """A failover's second call goes on after what the first committed and counts it in max_tokens and usage."""
    async with verify_worker(FakeModel()) as target:
        answer = await target.generate([7], committed_token_ids=(8, 9), max_tokens=5, sampling=GREEDY)
    assert output(answer) == [10, 11, 12]
    assert finished(answer).usage.completion_tokens == 5


async def test_many_answers_share_the_steps():
    """Eight answers at once take about as many steps as one, and none disturbs another."""

    async def steps() -> float:
        async with verify_worker(FakeModel(step_seconds=0.01)) as target:
            calls = (target.generate([10 * i], max_tokens=20, sampling=GREEDY) for i in range(8))
            answers = await asyncio.gather(*calls)
            for i, answer in enumerate(answers):
                assert output(answer) == [10 * i + j for j in range(1, 21)]
            return target.metric("draftwire_verify_steps_total")

    await in_some_try(steps, lambda count: count < 60)


async def test_more_requests_than_slots_wait_their_turn():
    """With one slot, three answers come one after another; a fourth request beyond the queue is refused with a hint."""
    async with verify_worker(FakeModel(step_seconds=0.02), num_slots=1, max_waiting=2) as target:
        # A second each, so that the first still runs when the fourth comes.
        running = [asyncio.create_task(target.generate([i], max_tokens=50, sampling=GREEDY)) for i in range(3)]
        await target.until(
            lambda: (
                target.metric("draftwire_verify_running_sessions") + target.metric("draftwire_verify_waiting_sessions")
                == 3
            )
        )
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await target.generate([3], max_tokens=1)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        error = error_of(refused.value)
        assert isinstance(error, ResourceExhausted)
        assert error.retry_after > 0
        for i, task in enumerate(running):
            assert output(await task) == [i + j for j in range(1, 51)]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"max_tokens": 5000}, "max_tokens"),
        ({"sampling": SamplingParams(top_p=1.5)}, "sampling.top_p"),
        ({"stop_token_ids": (9999,)}, "stop_token_ids"),
        ({"committed_token_ids": (1, 2), "max_tokens": 2}, "committed_token_ids"),
        ({"num_speculative_tokens": 31}, "speculation.num_speculative_tokens"),
    ],
)
async def test_bad_fields_are_named(fields, field):
    """A value out of range is INVALID_ARGUMENT and the field is in its details."""
    async with verify_worker(FakeModel()) as target:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await target.generate([1], **fields)
    error = error_of(refused.value)
    assert isinstance(error, InvalidArgument)
    assert error.field == field


async def test_cancelled_call_frees_its_slot_within_a_step():
    """After a cancel, the slot is free again and no more than one further step was spent."""
    async with verify_worker(FakeModel(step_seconds=0.05), num_slots=1) as target:
        events = target.events(GenerateRequest("a", (1,), max_tokens=1000, sampling=GREEDY))
        async for event in events:
            if not isinstance(event, Started):
                break
        await events.aclose()
        await target.until(lambda: not target.metric("draftwire_verify_running_sessions"))
        steps = target.metric("draftwire_verify_steps_total")
        await asyncio.sleep(0.3)
        assert target.metric("draftwire_verify_steps_total") <= steps + 1
        assert target.metric("draftwire_verify_answers_total", outcome="cancelled") == 1


async def test_expired_deadline_frees_its_slot():
    """A call past its deadline is cancelled on the worker too."""
    async with verify_worker(FakeModel(step_seconds=0.02), num_slots=1) as target:
        with pytest.raises(grpc.aio.AioRpcError) as expired:
            await target.generate([1], max_tokens=1000, timeout=1.0)
        assert expired.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await target.until(lambda: not target.metric("draftwire_verify_running_sessions"))
        assert target.metric("draftwire_verify_answers_total", outcome="cancelled") == 1


async def test_same_seed_same_tokens():
    """In coupled mode the output is a function of prompt and seed: two calls agree, another seed or choice differs."""
    async with verify_worker(FakeModel(sharpness=1.0, vocab_size=64)) as target:
        first, again, other, choice = [
            output(await target.generate([1], max_tokens=30, seed=seed, choice=choice))
            for seed, choice in ((5, 0), (5, 0), (6, 0), (5, 1))
        ]
    assert first == again
    assert first != other
    assert first != choice


async def test_served_model_name():
    """--served-model-name is what the worker calls its model."""
    async with verify_worker(FakeModel(), served_model_name="mine") as target:
        reply = await target.stub.GetModel(pb.VerifyServiceGetModelRequest())
    assert reply.model.name == "mine"
