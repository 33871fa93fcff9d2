"""vLLM with remote drafts on a toy model: the law of its answers, and its pace when it loses the draft worker."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from support.service_law import cut
from support.stats import ToyChain, total_variation
from support.vllm_chain import write_chain
from support.vllm_engine import Answered, Engine, accepted, draft_worker, engine, plugin_metric, speculative, workers

from draftwire.cli.processes import ServiceProcess
from draftwire.types import SamplingParams

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.e2e, pytest.mark.timeout(1200)]

EOS = 5
#: Every row has two likeliest tokens, and enough beside them for a lost top_k to show.
TARGET = ToyChain(
    (
        (0.05, 0.40, 0.25, 0.15, 0.08, 0.07),
        (0.15, 0.05, 0.35, 0.10, 0.07, 0.28),
        (0.14, 0.10, 0.06, 0.27, 0.05, 0.38),
        (0.33, 0.12, 0.15, 0.05, 0.09, 0.26),
        (0.40, 0.30, 0.10, 0.08, 0.05, 0.07),
        (0.30, 0.25, 0.15, 0.14, 0.10, 0.06),
    ),
    eos=EOS,
)
#: Guesses 0 1 2 EOS: right often, wrong often, and the end of an answer among them. 3 is followed by 0.
DRAFT = ToyChain(
    (
        (0.1, 0.5, 0.1, 0.1, 0.1, 0.1),
        (0.1, 0.1, 0.5, 0.1, 0.1, 0.1),
        (0.1, 0.1, 0.1, 0.1, 0.1, 0.5),
        (0.5, 0.1, 0.1, 0.1, 0.1, 0.1),
        (0.5, 0.1, 0.1, 0.1, 0.1, 0.1),
        (0.5, 0.1, 0.1, 0.1, 0.1, 0.1),
    ),
    eos=EOS,
)
PROMPT = (0, 3, 0)
MAX_MODEL_LEN, SLOTS = 16384, 64
SIZES = {"max_model_len": MAX_MODEL_LEN, "max_num_seqs": SLOTS}
#: Of the law: answers in a round, and rounds at most; the distance that is allowed, and how long an answer may be.
ANSWERS, ROUNDS, DISTANCE, LENGTH = 8192, 4, 0.02, 4
SAMPLING = SamplingParams(temperature=0.7, top_k=2)
HELD = "draftwire_vllm_held_steps_total"

Answers = Counter[tuple[int, ...]]


@dataclass
class Stage:
    """The engine with the plug-in, and a draft worker that a test may stop, kill and start again."""

    engine: Engine
    draft: ServiceProcess


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Of the two models and the logs."""
    made = tmp_path_factory.mktemp("toy")
    for chain, name in ((TARGET, "target"), (DRAFT, "draft")):
        write_chain(chain, made / name, MAX_MODEL_LEN)
    return made


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def plain_rounds(folder: Path) -> list[Answers]:
    """What an engine without speculation answers, in each round; it is gone afterwards."""
    async with engine(**_options(folder)) as running:
        return [await answers(running) for _ in range(ROUNDS)]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def stage(folder: Path) -> AsyncIterator[Stage]:
    """Both, connected."""
    async with (
        engine(**_options(folder), **speculative(max_wait=0.25)) as running,
        draft_worker(folder, str(folder / "draft"), SIZES) as worker,
    ):
        yield Stage(running, worker)


def _options(folder: Path) -> dict[str, Any]:
    return {"model": str(folder / "target"), "max_num_batched_tokens": 512} | SIZES


async def test_the_law_at_a_temperature(plain_rounds: list[Answers], stage: Stage) -> None:
    """Temperature 0.7 among the two likeliest tokens: each of the 8 answers of at most 4 tokens has its probability,
    and comes as often as from an engine without speculation.

    By chance alone the distance from the law is about 0.01 after one round, that from as many plain answers 0.015, and
    both halve with four; a law that is off by more than 0.03 does not come below 0.02 in any.
    """
    rows = tuple(cut(row, SAMPLING) for row in TARGET.rows)
    law = ToyChain(rows, EOS).answer_law(PROMPT[-1], LENGTH)
    before = await judged()
    seen, plain = Answers(), Answers()
    for plain_round in plain_rounds:
        plain += plain_round
        seen += await answers(stage.engine)
        from_law = total_variation(law, _shares(seen))
        from_plain = total_variation(_shares(plain), _shares(seen))
        right, wrong = (now - then for now, then in zip(await judged(), before, strict=True))
        print(
            f"{seen.total()} answers; distance {from_law:.4f} from the law, {from_plain:.4f} from plain answers; "
            f"{right:g} accepted, {wrong:g} rejected"
        )
        took_part = min(right, wrong) > seen.total() / 16
        if max(from_law, from_plain) < DISTANCE and took_part:
            break
    assert from_law < DISTANCE
    assert from_plain < DISTANCE
    assert took_part, "few drafts came in time"


async def answers(toy: Engine) -> Answers:
    """How often each answer came in ANSWERS draws."""
    sampling = {"temperature": SAMPLING.temperature, "top_k": SAMPLING.top_k}
    seen = Answers()
    for _ in range(ANSWERS // SLOTS):  # at once: while others wait for a slot, no step is held for drafts
        seen.update(map(tuple, await toy.draw(PROMPT, SLOTS, max_tokens=LENGTH, ignore_eos=False, **sampling)))
    return seen


def _shares(seen: Answers) -> dict[tuple[int, ...], float]:
    return {answer: count / seen.total() for answer, count in seen.items()}


async def judged() -> tuple[float, ...]:
    """Proposals that were accepted and rejected so far."""
    names = (f"speculative_decoding_{outcome}_tokens_total" for outcome in ("accepted", "rejected"))
    return tuple([await plugin_metric(name) for name in names])


async def test_a_perfect_draft(stage: Stage) -> None:
    """Greedy, target and draft say the same: everything that is offered is accepted."""

    async def right() -> list[Answered]:
        made = await stage.engine.answers([PROMPT] * 8, max_tokens=32)
        assert [answer.token_ids for answer in made] == [[1, 2, EOS, 0] * 8] * 8
        assert sum(answer.rejected for answer in made) == 0
        return made

    await accepted(right)


async def test_killed_and_restarted(stage: Stage) -> None:
    """kill -9 of the draft worker in mid stream: nobody waits for it 2 s later, and a new one is used again."""
    await answers_go_on(stage, stage.draft.kill)
    await workers(0)
    await stage.draft.start()
    await workers(1)
    await test_a_perfect_draft(stage)


async def test_stopped_and_continued(stage: Stage) -> None:
    """SIGSTOP of the draft worker in mid stream: nobody waits for it 2 s later; it is used again after SIGCONT."""

    async def stop() -> None:
        stage.draft.signal(signal.SIGSTOP)

    try:
        await answers_go_on(stage, stop)
    finally:
        stage.draft.signal(signal.SIGCONT)
    await test_a_perfect_draft(stage)


async def answers_go_on(stage: Stage, lose_drafts: Callable[[], Awaitable[None]]) -> None:
    """Greedy answers lose their drafts: they stay right, and 2 s later no step is held for proposals any more."""
    received = [0] * 4

    async def follow(index: int) -> None:
        right = cycle((1, 2, EOS, 0))
        async for token_ids in stage.engine.stream(PROMPT, max_tokens=MAX_MODEL_LEN - len(PROMPT)):
            assert token_ids == [next(right) for _ in token_ids]
            received[index] += len(token_ids)

    async def more(tokens: int) -> None:
        """Wait until every answer has so many more."""
        enough = [count + tokens for count in received]
        async with asyncio.timeout(120):
            while any(count < wanted for count, wanted in zip(received, enough, strict=True)):
                assert not any(follower.done() for follower in followers), "an answer failed, or was too short to see"
                await asyncio.sleep(0.02)

    accepted_before, _ = await judged()
    followers = [asyncio.create_task(follow(index)) for index in range(len(received))]
    try:
        await more(40)
        assert (await judged())[0] > accepted_before, "drafts are in use"
        await lose_drafts()
        await asyncio.sleep(2)  # what is promised
        held = await plugin_metric(HELD)
        await more(100)
        assert await plugin_metric(HELD) == held
    finally:
        for follower in followers:
            follower.cancel()
        ends = await asyncio.gather(*followers, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends
