"""Tensor parallelism, with vLLM's `LLM`: three workers with remote drafts answer as one worker without.

Three, because the embedded target has nine heads and three key-value heads.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.vllm_engine import Answered, arguments, assert_same, draft_worker, speculative
from transformers import AutoTokenizer

from draftwire.models import EMBEDDED_TARGET, resolve

# Eight processes start, each of which imports vLLM.
pytestmark = [pytest.mark.model, pytest.mark.e2e, pytest.mark.timeout(900)]

TEXTS = ("The capital of France is", "def add(a, b):", "1, 2, 3, 4, 5,", "To be or not to be")
TOKENS = 16


def answers(llm: Any, prompts: list[list[int]]) -> list[Answered]:
    """Greedy answers, all at once."""
    from vllm import SamplingParams  # noqa: PLC0415  reads the environment that support.vllm_engine sets

    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    parts = [output.outputs[0] for output in outputs]
    return [Answered(list(part.token_ids), part.text, part.spec_decode_metrics) for part in parts]


async def test_three_workers_answer_as_one(tmp_path: Path) -> None:
    """Greedy answers are equal, and the draft's proposals are accepted by all three together."""
    from vllm import LLM  # noqa: PLC0415

    tokenizer = AutoTokenizer.from_pretrained(resolve(EMBEDDED_TARGET))
    prompts = [tokenizer(text)["input_ids"] for text in TEXTS]
    one = await asyncio.to_thread(lambda: LLM(**arguments()))
    plain = [answer.token_ids for answer in await asyncio.to_thread(answers, one, prompts)]
    one.llm_engine.engine_core.shutdown()
    options = arguments(tensor_parallel_size=3, per_request_spec_decode_metrics="detailed") | speculative()
    three = await asyncio.to_thread(lambda: LLM(**options))
    try:
        async with draft_worker(tmp_path, EMBEDDED_TARGET):
            drafted = await asyncio.to_thread(answers, three, prompts)
    finally:
        three.llm_engine.engine_core.shutdown()
    assert_same(prompts, drafted, plain)
    assert sum(answer.accepted for answer in drafted) > 0
