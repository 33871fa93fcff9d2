"""VerifyService's servicer without a server: a caller that does not read, an engine that fails, a full inbox."""

import asyncio
from contextlib import aclosing

import pytest
from support.timing import PATIENCE

from draftwire.errors import EngineError, ResourceExhausted, Unavailable
from draftwire.types import Committed, GenerateRequest, ModelInfo
from draftwire.v1 import verify_service_pb2 as pb
from verify_service.config import VerifyConfig
from verify_service.events import ALWAYS_TAKEN, Cancel, DraftDown, Submit
from verify_service.servicer import VerifyServicer

MODEL = ModelInfo("m", "f", 100, 1000)
REQUEST = GenerateRequest("r", (1,), max_tokens=9)


class Caller:
    """A gRPC context whose writes hang."""

    def __init__(self):
        self.ended = None

    async def write(self, event):
        """Flow control: nothing is read."""
        await asyncio.Event().wait()

    async def abort(self, code, details, trailing_metadata):
        self.ended = details


def servicer(events, **flags):
    """A servicer whose engine thread is the list `events`."""
    return VerifyServicer(VerifyConfig(**flags), "v", MODEL, events.append, lambda: 0.5, lambda: 1)


async def until(events, count):
    """Wait until so much was posted."""
    async with asyncio.timeout(PATIENCE):
        while len(events) < count:
            await asyncio.sleep(0)


async def test_a_caller_that_does_not_read_loses_the_answer():
    """A write that hangs for stall_seconds ends the call and frees the slot, however little was committed."""
    events, caller = [], Caller()
    serving = servicer(events, stall_seconds=0.01)
    request = pb.VerifyServiceGenerateRequest(prompt_token_ids=[1], max_tokens=9)
    call = asyncio.create_task(serving.Generate(request, caller))
    await until(events, 1)
    generation = events[0].generation
    generation.output.put(Committed(1, (2,)))
    generation.output.wake()
    await asyncio.wait_for(call, PATIENCE)
    assert events == [Submit(generation), Cancel(generation)]
    assert "not read for 0.01 s" in caller.ended


async def test_a_failed_engine_ends_every_answer():
    """Running answers end with EngineError (INTERNAL); new ones are refused as Unavailable, for another worker."""
    events = []
    serving = servicer(events)
    running = [asyncio.create_task(anext(serving.answer(REQUEST))) for _ in range(3)]
    await until(events, 3)
    serving.fail(ValueError("secret"))
    for answer in running:
        with pytest.raises(EngineError, match="ValueError$"):
            await answer
    with pytest.raises(Unavailable, match="engine failed"):
        await anext(serving.answer(REQUEST))


async def test_no_more_answers_than_places():
    """max_num_seqs run, max_waiting wait, one more is refused; a place is free as soon as an answer is closed."""
    events = []
    serving = servicer(events, max_num_seqs=1, max_waiting=1)
    async with aclosing(serving.answer(REQUEST)) as first, aclosing(serving.answer(REQUEST)) as second:
        begun = [asyncio.create_task(anext(answer)) for answer in (first, second)]
        await until(events, 2)
        with pytest.raises(ResourceExhausted, match="2 requests"):
            await anext(serving.answer(REQUEST))
        for task in begun:
            task.cancel()
        await asyncio.wait(begun)
    assert [type(event) for event in events] == [Submit, Submit, Cancel, Cancel]


def test_ends_are_always_taken():
    """A full inbox refuses neither the end of a call nor that of a stream, or slots would be held for ever."""
    assert Cancel in ALWAYS_TAKEN
    assert DraftDown in ALWAYS_TAKEN
    assert Submit not in ALWAYS_TAKEN
