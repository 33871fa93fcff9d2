"""Tensor parallelism: three vLLM workers with remote drafts answer as one worker without.

Three, because the embedded target has nine heads and three key-value heads.
"""

from pathlib import Path

import pytest
from support.vllm_engine import assert_same, draft_worker, engine, speculative
from transformers import AutoTokenizer

from draftwire.models import EMBEDDED_TARGET, resolve

# Eight processes start, each of which imports vLLM.
pytestmark = [pytest.mark.model, pytest.mark.e2e, pytest.mark.timeout(900)]

TEXTS = ("The capital of France is", "def add(a, b):", "1, 2, 3, 4, 5,", "To be or not to be")
TOKENS = 16


async def test_three_workers_answer_as_one(tmp_path: Path) -> None:
    """Greedy answers are equal, and the draft's proposals are accepted by all three together."""
    tokenizer = AutoTokenizer.from_pretrained(resolve(EMBEDDED_TARGET))
    prompts = [tokenizer(text)["input_ids"] for text in TEXTS]
    async with engine() as one:
        plain = [answer.token_ids for answer in await one.answers(prompts, max_tokens=TOKENS)]
    async with engine(**speculative(), tensor_parallel_size=3) as three, draft_worker(tmp_path, EMBEDDED_TARGET):
        answers = await three.answers(prompts, max_tokens=TOKENS)
    assert_same(prompts, answers, plain)
    assert sum(answer.accepted for answer in answers) > 0
