"""vLLM with remote drafts: its answers are those of plain vLLM, whatever the draft workers are and do.

One plain engine gives the answers to compare with; one with the plug-in gives all others. Its place for keys and values
is too small for 16 long answers, and large enough for everything else.
"""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from support.vllm_engine import (
    Answered,
    Engine,
    K,
    assert_same,
    draft_worker,
    engine,
    logits_after,
    plugin_metric,
    speculative,
    workers,
)
from transformers import AutoTokenizer

from draftwire.models import EMBEDDED_DRAFT, EMBEDDED_TARGET, resolve

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.model, pytest.mark.e2e, pytest.mark.timeout(600)]

TEXTS = (
    "The capital of France is",
    "Once upon a time there was",
    "def add(a, b):",
    "List three colours:",
    "The sun rises in the",
    "Water boils at",
    "1, 2, 3, 4, 5,",
    "My name is",
    "Dear Sir or Madam,",
    "In 1969, humans",
    "The quick brown fox",
    "A recipe for bread:",
    "import numpy as np",
    "Question: What is 2+2? Answer:",
    "The best way to learn",
    "To be or not to be",
)
TOKENS, MANY_TOKENS = 32, 72
TEMPERATURE = 0.7
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@dataclass
class Stage:
    """What the tests share: the engine with the plug-in, the prompts, plain vLLM's answers."""

    engine: Engine
    logs: Path
    prompts: list[list[int]]
    plain: list[list[int]]
    plain_long: list[list[int]]

    def same(self, answers: list[Answered], plain: list[list[int]]) -> None:
        """The answers are plain vLLM's."""
        assert_same(self.prompts, answers, plain)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def stage(tmp_path_factory) -> AsyncIterator[Stage]:
    """Plain vLLM first, then the engine with the plug-in."""
    tokenizer = AutoTokenizer.from_pretrained(resolve(EMBEDDED_TARGET))
    prompts = [tokenizer(text)["input_ids"] for text in TEXTS]
    async with engine() as plain:
        short = [answer.token_ids for answer in await plain.answers(prompts, max_tokens=TOKENS)]
        long = [answer.token_ids for answer in await plain.answers(prompts, max_tokens=MANY_TOKENS)]
    async with engine(**speculative(), num_gpu_blocks_override=40) as running:
        yield Stage(running, tmp_path_factory.mktemp("vllm"), prompts, short, long)


async def test_the_shipped_draft(stage: Stage) -> None:
    """16 prompts at once: plain vLLM's greedy tokens, some of them guessed by the draft."""
    async with draft_worker(stage.logs, EMBEDDED_DRAFT):
        answers = await stage.engine.answers(stage.prompts, max_tokens=TOKENS)
    stage.same(answers, stage.plain)
    accepted, drafted = sum(answer.accepted for answer in answers), sum(answer.drafted for answer in answers)
    print(f"{accepted} of {drafted} proposals accepted")
    assert accepted > 0


async def test_a_perfect_draft(stage: Stage) -> None:
    """Draft = target: everything that is offered is accepted."""
    async with draft_worker(stage.logs, EMBEDDED_TARGET):
        answers = await stage.engine.answers(stage.prompts, max_tokens=TOKENS)
    stage.same(answers, stage.plain)
    accepted, rejected = sum(answer.accepted for answer in answers), sum(answer.rejected for answer in answers)
    print(f"{accepted} proposals accepted, {rejected} steps with a rejection")
    assert accepted > 16
    assert rejected == 0


async def test_some_with_drafts_and_some_without(stage: Stage) -> None:
    """Every other request asks for no drafts: it gets none, the others do, and all answers are plain vLLM's."""
    async with draft_worker(stage.logs, EMBEDDED_DRAFT):
        mixed = [
            stage.engine.answer(prompt, max_tokens=TOKENS, limit=0 if index % 2 else None)
            for index, prompt in enumerate(stage.prompts)
        ]
        answers = await asyncio.gather(*mixed)
    stage.same(answers, stage.plain)
    assert sum(answer.drafted for answer in answers[::2]) > 0
    assert sum(answer.drafted for answer in answers[1::2]) == 0


async def test_preemption(stage: Stage) -> None:
    """Long answers that do not fit: vLLM preempts and resumes requests, and their answers stay the same."""
    async with draft_worker(stage.logs, EMBEDDED_TARGET):
        answers = await stage.engine.answers(stage.prompts, max_tokens=MANY_TOKENS)
    stage.same(answers, stage.plain_long)
    assert sum(answer.accepted for answer in answers) > 0
    assert stage.engine.counter("vllm:num_preemptions") > 0


async def test_killed_and_restarted(stage: Stage) -> None:
    """kill -9 of the draft worker in mid stream: the answers do not change, and a new worker is used again."""
    async with draft_worker(stage.logs, EMBEDDED_TARGET) as worker:
        killed = None
        arrivals: list[float] = []  # of any answer's tokens, after the kill

        async def kill_once(count: int) -> None:
            nonlocal killed
            if killed is None and count >= TOKENS // 2:
                killed = asyncio.create_task(worker.kill())
            if killed is not None:
                arrivals.append(time.monotonic())

        answers = await asyncio.gather(
            *(stage.engine.answer(prompt, max_tokens=TOKENS, on_tokens=kill_once) for prompt in stage.prompts)
        )
        await killed
        stage.same(answers, stage.plain)
        assert max(later - earlier for earlier, later in pairwise(arrivals)) < 2, "plain decoding goes on within 2 s"
        await workers(0)
        await worker.start()
        await workers(1)
        again = await stage.engine.answers(stage.prompts, max_tokens=TOKENS)
        stage.same(again, stage.plain)
        assert sum(answer.accepted for answer in again) > 0


async def test_stopped_and_continued(stage: Stage) -> None:
    """SIGSTOP of the draft worker in mid stream: same answer, at plain speed within 2 s; used again after SIGCONT."""
    prompt, long = stage.prompts[0], 240
    plain_began = time.monotonic()
    plain = await stage.engine.answer(prompt, max_tokens=long, limit=0)
    plain_seconds = time.monotonic() - plain_began
    async with draft_worker(stage.logs, EMBEDDED_TARGET) as worker:
        stopped = None
        arrivals: list[tuple[float, int]] = []

        async def stop_once(count: int) -> None:
            nonlocal stopped
            arrivals.append((time.monotonic(), count))
            if stopped is None and count >= 10:
                worker.signal(signal.SIGSTOP)
                stopped = arrivals[-1][0]

        try:
            answer = await stage.engine.answer(prompt, max_tokens=long, on_tokens=stop_once)
        finally:
            worker.signal(signal.SIGCONT)
        assert answer.token_ids == plain.token_ids
        late = [(when, count) for when, count in arrivals if when > stopped + 2]
        assert len(late) > 5, "the answer lasts long enough to see"
        speed = (late[-1][1] - late[0][1]) / (late[-1][0] - late[0][0])
        print(f"{speed:.1f} tokens per second without the draft, {long / plain_seconds:.1f} plain")
        assert speed > 0.5 * long / plain_seconds
        async with asyncio.timeout(30):
            while not (await stage.engine.answer(prompt, max_tokens=TOKENS)).accepted:
                pass


async def test_the_law_at_a_temperature(stage: Stage) -> None:
    """Temperature 0.7 among the two likeliest tokens: the likelier one comes as often as its probability says.

    At each position of a sampled answer the likelier token's probability p is computed from what stands before.
    Positions are sorted into five bins by p, so that opposite biases do not make up for each other; the distance is the
    sum over the bins of |hits - sum of p|, for each position. By chance alone it is about 0.009 here.
    """
    sampling = {"temperature": TEMPERATURE, "top_k": 2, "max_tokens": TOKENS}
    async with draft_worker(stage.logs, EMBEDDED_DRAFT):
        rounds = [await stage.engine.answers(stage.prompts, **sampling) for _ in range(10)]
    assert sum(answer.accepted for answers in rounds for answer in answers) > 100
    surplus, positions = torch.zeros(5), 0
    for answers in rounds:
        for prompt, answer in zip(stage.prompts, answers, strict=True):
            logits = logits_after(prompt + answer.token_ids)[len(prompt) - 1 : -1]
            two, ids = logits.topk(2)
            p = torch.softmax(two / TEMPERATURE, dim=-1)[:, 0]  # 0.5 to 1
            drawn = torch.tensor(answer.token_ids)
            assert (drawn[:, None] == ids).any(dim=1).all(), "a token that is not among the two likeliest"
            bins = ((p - 0.5) * 10).long().clamp(0, 4)
            surplus.index_add_(0, bins, (drawn == ids[:, 0]).float() - p)
            positions += len(drawn)
    distance = surplus.abs().sum().item() / positions
    print(f"distance {distance:.4f} over {positions} positions; by bin {[round(x, 1) for x in surplus.tolist()]}")
    assert distance < 0.02


async def test_guided_json(stage: Stage) -> None:
    """Answers that a grammar guides: the JSON parses, drafts are accepted, greedy tokens are those without drafts."""
    from vllm.sampling_params import StructuredOutputsParams  # noqa: PLC0415

    guided = {"structured_outputs": StructuredOutputsParams(json=SCHEMA), "ignore_eos": False, "max_tokens": 60}
    async with draft_worker(stage.logs, EMBEDDED_TARGET):
        plain = await stage.engine.answers(stage.prompts[:4], limit=0, **guided)
        drafted = await stage.engine.answers(stage.prompts[:4], **guided)
        sampled = await stage.engine.answers(stage.prompts[:4], temperature=TEMPERATURE, **guided)
    assert [answer.token_ids for answer in drafted] == [answer.token_ids for answer in plain]
    assert sum(answer.accepted for answer in drafted) > 0
    assert sum(answer.accepted for answer in sampled) > 0
    for answer in drafted + sampled:
        assert set(json.loads(answer.text)) == {"name", "age"}


async def test_metrics(stage: Stage) -> None:
    """vLLM counts proposals as for its own drafts; the plug-in's counters say the same and more."""
    async with draft_worker(stage.logs, EMBEDDED_TARGET):
        before = await plugin_metric("speculative_decoding_accepted_tokens_total")
        vllm_before = stage.engine.counter("vllm:spec_decode_num_accepted_tokens")
        answers = await stage.engine.answers(stage.prompts[:K], max_tokens=TOKENS)
        accepted = sum(answer.accepted for answer in answers)
        assert accepted > 0
        # vLLM counts what was accepted behind the end of an answer, the plug-in only what became a token of it.
        ours = await plugin_metric("speculative_decoding_accepted_tokens_total") - before
        assert accepted - len(answers) * K <= ours <= accepted
        async with asyncio.timeout(5):  # vLLM counts a step after it has sent its tokens
            while stage.engine.counter("vllm:spec_decode_num_accepted_tokens") - vllm_before != accepted:
                await asyncio.sleep(0.05)
        assert await plugin_metric("draftwire_verify_draft_workers") == 1
