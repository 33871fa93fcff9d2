"""Tensor parallelism, with vLLM's `LLM`: three workers with remote drafts answer as one worker without.

Three, because the embedded target has nine heads and three key-value heads.
"""

import asyncio
from pathlib import Path

import pytest
from support.vllm_engine import Answered, Plain, accepted, arguments, assert_same, draft_worker, greedy, speculative

from draftwire.models import EMBEDDED_DRAFT

# Five processes start, each of which imports vLLM.
pytestmark = [pytest.mark.model, pytest.mark.e2e, pytest.mark.timeout(1200)]

TOKENS = 16


async def test_three_workers_answer_as_one(plain: Plain, tmp_path: Path) -> None:
    """Greedy answers are equal, and the draft's proposals are accepted by all three together."""
    from vllm import LLM  # noqa: PLC0415  reads the environment that support.vllm_engine sets

    prompts = plain.prompts[:4]
    options = arguments(tensor_parallel_size=3, per_request_spec_decode_metrics="detailed") | speculative()
    three = await asyncio.to_thread(lambda: LLM(**options))

    async def same() -> list[Answered]:
        answers = await asyncio.to_thread(greedy, three, prompts, TOKENS)
        assert_same(prompts, answers, plain.answers[:4])
        return answers

    try:
        async with draft_worker(tmp_path, EMBEDDED_DRAFT):
            await accepted(same)
    finally:
        three.llm_engine.engine_core.shutdown()
