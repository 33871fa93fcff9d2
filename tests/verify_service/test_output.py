"""The way of an answer's events to its caller: what a slow caller gets, and when its session goes on."""

import asyncio

import pytest

from draftwire.types import Committed
from verify_service.output import Mailman, Output


async def test_a_paused_session_resumes_once():
    """Full at four tokens; the caller that takes them makes room and says so exactly once."""
    resumed = []
    output = Output(4, resume=lambda: resumed.append(output.full))
    mailman = Mailman(asyncio.get_running_loop())
    for position, tokens in ((0, (1,)), (1, (2,))):
        mailman.post(output, Committed(position, tokens))
    mailman.deliver()
    assert (await output.get()).token_ids == (1, 2)
    assert not resumed, "it was never full"
    for position in (2, 3):
        mailman.post(output, Committed(position, (position, position)))
    mailman.deliver()
    assert output.full
    assert (await output.get()).token_ids == (2, 2, 3, 3)
    assert resumed == [False], "there is room when it is said"


async def test_an_error_ends_the_answer():
    """What was committed before comes first."""
    output = Output(4, resume=lambda: None)
    output.put(Committed(0, (1,)))
    output.put(ValueError("the end"))
    output.wake()
    assert (await output.get()).token_ids == (1,)
    with pytest.raises(ValueError, match="the end"):
        await output.get()
