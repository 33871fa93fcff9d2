"""vLLM with remote drafts: its answers are those of plain vLLM, whatever the draft guesses and vLLM does.

The engine has 11 blocks of 32 tokens for keys and values, too few for 4 long answers.
"""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass

import pytest
import pytest_asyncio
from support.vllm_engine import (
    MANY_TOKENS,
    PATIENCE,
    TOKENS,
    Answered,
    Engine,
    K,
    Plain,
    accepted,
    assert_same,
    draft_worker,
    engine,
    plugin_metric,
    speculative,
    workers,
)

from draftwire.cli.processes import ServiceProcess
from draftwire.models import EMBEDDED_DRAFT

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.model, pytest.mark.e2e, pytest.mark.timeout(1200)]

TEMPERATURE = 0.7
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@dataclass
class Stage:
    """What the tests share: the engine with the plug-in, the worker with the shipped draft, the prompts, plain vLLM's
    answers."""

    engine: Engine
    draft: ServiceProcess
    prompts: list[list[int]]
    plain: list[list[int]]

    async def accepted(self, max_tokens: int, without_drafts: Collection[int] = ()) -> None:
        """Answers to all prompts, all at once, are plain vLLM's, and the draft guessed some of their tokens.

        Those to the prompts `without_drafts` ask for none, and none of theirs was guessed.
        """

        async def same() -> list[Answered]:
            asked = [
                self.engine.answer(prompt, max_tokens=max_tokens, limit=0 if index in without_drafts else None)
                for index, prompt in enumerate(self.prompts)
            ]
            answers = await asyncio.gather(*asked)
            assert {len(answer.token_ids) for answer in answers} == {max_tokens}
            assert_same(self.prompts, answers, self.plain)
            # Not `drafted`: vLLM pads the step in which a preempted request resumes, and counts that.
            assert sum(answers[index].accepted for index in without_drafts) == 0
            return answers

        made = await accepted(same)
        print(f"{sum(answer.accepted for answer in made)} of {sum(answer.drafted for answer in made)} accepted")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def stage(plain: Plain, tmp_path_factory) -> AsyncIterator[Stage]:
    """Engine and draft worker, connected."""
    async with (
        engine(**speculative(), num_gpu_blocks_override=12) as running,
        draft_worker(tmp_path_factory.mktemp("vllm"), EMBEDDED_DRAFT) as worker,
    ):
        yield Stage(running, worker, plain.prompts, plain.answers)


async def test_greedy_answers(stage: Stage) -> None:
    """All with drafts."""
    await stage.accepted(TOKENS)


async def test_some_with_drafts_and_some_without(stage: Stage) -> None:
    """Every other request asks for no drafts."""
    await stage.accepted(TOKENS, without_drafts=range(1, 16, 2))


async def test_preemption(stage: Stage) -> None:
    """Long answers that do not fit: vLLM preempts and resumes requests, and their answers stay the same.

    The four without drafts keep step, so they need 12 blocks at once; the others came later and are preempted first.
    """
    before = stage.engine.counter("vllm:num_preemptions")
    await stage.accepted(MANY_TOKENS, without_drafts=range(4))
    assert stage.engine.counter("vllm:num_preemptions") > before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_the_draft_is_lost_in_mid_stream(stage: Stage, number: signal.Signals) -> None:
    """All answers lose their drafts while they run and are plain vLLM's all the same; drafts are used again later."""
    while not await _lost_while_they_ran(stage, number):
        pass
    if number is signal.SIGKILL:
        await workers(0)
        await stage.draft.start()
    else:
        stage.draft.signal(signal.SIGCONT)
    await workers(1)
    await stage.accepted(TOKENS)


async def _lost_while_they_ran(stage: Stage, number: signal.Signals) -> bool:
    """Sends the signal once drafts are accepted; False if the answers were complete before any was."""
    name = "speculative_decoding_accepted_tokens_total"
    before = await plugin_metric(name)
    answering = asyncio.create_task(stage.engine.answers(stage.prompts, max_tokens=MANY_TOKENS))
    async with asyncio.timeout(PATIENCE):
        while not answering.done() and await plugin_metric(name) == before:
            await asyncio.sleep(0.02)
        running = not answering.done()
        if running:
            stage.draft.signal(number)
        assert_same(stage.prompts, await answering, stage.plain)
    return running


async def test_guided_json(stage: Stage) -> None:
    """Answers that a grammar guides: the JSON parses, drafts are accepted, greedy tokens are those without drafts."""
    from vllm.sampling_params import StructuredOutputsParams  # noqa: PLC0415

    guided = {"structured_outputs": StructuredOutputsParams(json=SCHEMA), "ignore_eos": False, "max_tokens": 60}
    prompts = stage.prompts[:3]
    plain = await stage.engine.answers(prompts, limit=0, **guided)
    drafted = await accepted(lambda: stage.engine.answers(prompts, **guided))
    sampled = await accepted(lambda: stage.engine.answers(prompts, temperature=TEMPERATURE, **guided))
    assert [answer.token_ids for answer in drafted] == [answer.token_ids for answer in plain]
    for answer in drafted + sampled:
        assert set(json.loads(answer.text)) == {"name", "age"}


async def test_metrics(stage: Stage) -> None:
    """vLLM counts proposals as for its own drafts; the plug-in's counters say the same."""
    ours, vllms = "speculative_decoding_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens"

    async def counted() -> list[Answered]:
        ours_before, vllms_before = await plugin_metric(ours), stage.engine.counter(vllms)
        answers = await stage.engine.answers(stage.prompts[:K], max_tokens=TOKENS)
        done = sum(answer.accepted for answer in answers)
        # vLLM counts what was accepted behind the end of an answer, the plug-in only what became a token of it.
        assert done - len(answers) * K <= await plugin_metric(ours) - ours_before <= done
        async with asyncio.timeout(20):  # vLLM counts a step after it has sent its tokens
            while stage.engine.counter(vllms) - vllms_before != done:
                await asyncio.sleep(0.05)
        return answers

    await accepted(counted)
    assert await plugin_metric("draftwire_verify_draft_workers") == 1
