"""What a verify worker says at its start of the tokens that a step may hold."""

import logging

import pytest
from support.verify_worker import verify_worker

from draftwire.errors import InvalidArgument
from draftwire.fake_model import FakeModel


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        ({"batch_invariant": True}, logging.INFO),  # the default is above what the engine can do
        ({"batch_invariant": True, "max_num_batched_tokens": 512}, logging.WARNING),  # somebody asked for more
        ({"batch_invariant": True, "max_num_batched_tokens": 256}, None),
        ({"batch_invariant": True, "max_num_batched_tokens": 64}, None),
        ({}, None),
    ],
)
async def test_a_lowered_budget_is_told(caplog: pytest.LogCaptureFixture, flags: dict, level: int | None) -> None:
    """One line that names both flags and the number that counts; a warning only where the flag was given."""
    caplog.set_level(logging.INFO)
    async with verify_worker(
        FakeModel(), max_batched_tokens=min(256, flags.get("max_num_batched_tokens", 256)), **flags
    ):
        pass
    lines = [(record.levelno, record.getMessage()) for record in caplog.records if "batched" in record.getMessage()]
    told = "--batch-invariant: a step takes at most 256 tokens here, not --max-num-batched-tokens = 512"
    assert lines == ([(level, told)] if level else [])


async def test_a_step_holds_a_token_of_every_session() -> None:
    """Else the youngest of them would never take part; as many sessions as tokens are allowed."""
    async with verify_worker(FakeModel(), max_batched_tokens=4, max_num_seqs=4):
        pass
    with pytest.raises(InvalidArgument, match="--max-num-seqs: must be at most 4, the tokens of a step here, got 5"):
        async with verify_worker(FakeModel(), max_batched_tokens=4, max_num_seqs=5):
            pass
