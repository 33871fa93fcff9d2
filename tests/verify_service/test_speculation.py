"""Draft worker and verify worker together over real gRPC, on models that a reader can compute."""

import asyncio
import time

import pytest
from support.pair import connected, draft_worker, pair
from support.timing import in_some_try
from support.verify_worker import finished, output, verify_worker

from draftwire.engine.fake import FakeModel
from draftwire.types import Committed, GenerateRequest, SamplingParams

GREEDY = SamplingParams(temperature=0.0)
SLOW = 0.02  # seconds of a target step; the draft is much faster
COUNT = 60


def counting(first, count, drift=0):
    """What the fake target says after the prompt [first]."""
    tokens = [first]
    for position in range(1, count + 1):
        tokens.append(FakeModel(drift=drift).next_token(tokens[-1], position))
    return tokens[1:]


async def test_perfect_draft_reaches_the_window():
    """A draft that is always right gives K + 1 = 6 tokens a step, but for the first steps: acceptance is exactly 1."""

    async def tokens_per_step() -> float:
        async with pair(FakeModel(), FakeModel(step_seconds=SLOW), num_speculative_tokens=5) as target:
            answer = await target.generate([7], max_tokens=COUNT, sampling=GREEDY)
        stats = finished(answer).speculation
        assert output(answer) == counting(7, COUNT)
        assert stats.accepted_tokens == stats.tested_tokens
        assert stats.stale_tokens == stats.untested_tokens == 0
        return stats.tokens_per_step

    await in_some_try(tokens_per_step, lambda found: found >= 5)


@pytest.mark.parametrize("schedule", ["auto", "eager", "lockstep"])
@pytest.mark.parametrize("params", [{"sampling": GREEDY}, {"sampling": SamplingParams(), "seed": 3}])
async def test_wrong_guesses_change_nothing(schedule, params):
    """The target drifts at every seventh position and the draft does not: the output is the target's own."""

    async def acceptance() -> float:
        flags = {"num_speculative_tokens": 4, "schedule": schedule}
        async with pair(FakeModel(), FakeModel(drift=7, step_seconds=SLOW), **flags) as target:
            answer = await target.generate([7], max_tokens=COUNT, **params)
        stats = finished(answer).speculation
        assert output(answer) == counting(7, COUNT, drift=7)
        assert stats.committed_tokens == COUNT
        assert stats.accepted_tokens <= stats.tested_tokens
        return stats.acceptance

    await in_some_try(acceptance, lambda found: 0.5 < found < 1)


async def test_statistics_add_up():
    """Metrics and the answer's own statistics say the same."""
    async with pair(FakeModel(), FakeModel(drift=7, step_seconds=SLOW), num_speculative_tokens=4) as target:
        stats = finished(await target.generate([7], max_tokens=COUNT, sampling=GREEDY)).speculation
        steps = "speculative_decoding_verification_latency_seconds_count"  # the last to be counted
        await target.until(lambda: target.metric(steps) == stats.steps)
        assert target.metric("speculative_decoding_accepted_tokens_total") == stats.accepted_tokens
        rejected = target.metric("speculative_decoding_rejected_tokens_total")
        assert rejected == stats.tested_tokens - stats.accepted_tokens
        assert target.metric("speculative_decoding_untested_tokens_total") == stats.untested_tokens
        assert target.metric("speculative_decoding_late_bound_tokens_total") == stats.late_bound_tokens
        assert target.metric("speculative_decoding_step_acceptance_sum") == stats.accepted_tokens
        assert target.metric("draftwire_verify_committed_tokens_total") == COUNT


async def test_caller_can_decline_speculation():
    """num_speculative_tokens = 0 asks no draft."""
    async with pair(FakeModel(), FakeModel(), num_speculative_tokens=4) as target:
        stats = finished(await target.generate([7], max_tokens=10, num_speculative_tokens=0)).speculation
    assert (stats.tested_tokens, stats.steps) == (0, 10)


async def test_eos_inside_an_accepted_block():
    """eos = 20 lies inside a block of accepted guesses: nothing after it is committed, counted or sent."""
    async with pair(FakeModel(), FakeModel(eos=20, step_seconds=SLOW), num_speculative_tokens=6) as target:
        answer = await target.generate([7], max_tokens=COUNT, sampling=GREEDY)
    end = finished(answer)
    assert output(answer) == list(range(8, 21))
    assert end.usage.completion_tokens == 13
    assert end.speculation.committed_tokens == 13


async def test_draft_lost_in_mid_stream():
    """The draft worker goes away: the stream goes on, plain; a worker that comes back at the same address is used."""
    async with draft_worker(FakeModel()) as first:
        address = f"127.0.0.1:{first.port}"
        async with verify_worker(FakeModel(step_seconds=SLOW), drafts=(address,), num_speculative_tokens=4) as target:
            await connected(target)
            answer = []
            events = target.events(GenerateRequest("a", (7,), max_tokens=800, sampling=GREEDY))
            async for event in events:
                answer.append(event)
                if len(answer) == 10:
                    await first.drain()
                    await connected(target, 0)
                    break
            async with draft_worker(FakeModel(), port=first.port):
                await connected(target)
                answer += [event async for event in events]
    assert output(answer) == counting(7, 800)
    stats = finished(answer).speculation
    assert stats.reassignments == 1
    committed = [event for event in answer if isinstance(event, Committed)]
    assert max(len(event.token_ids) for event in committed[-20:]) > 1, "the new worker's drafts are used"


async def test_silent_draft_costs_speed_only_for_a_moment():
    """A draft that is much slower than the target: the session decodes plainly, in about plain decoding's time."""

    async def seconds() -> float:
        async with pair(FakeModel(step_seconds=4), FakeModel(step_seconds=SLOW), num_speculative_tokens=4) as target:
            began = time.monotonic()
            answer = await target.generate([7], max_tokens=COUNT, sampling=GREEDY)
            ended = time.monotonic()
        assert output(answer) == counting(7, COUNT)
        return ended - began

    await in_some_try(seconds, lambda found: found < 1.5 * SLOW * COUNT + 1)


async def test_many_sessions_with_drafts():
    """Sixteen sessions over eight slots, all speculating: each gets its own tokens."""
    async with pair(FakeModel(), FakeModel(drift=9, step_seconds=0.005), num_speculative_tokens=4) as target:
        answers = await asyncio.gather(*(target.generate([20 * i], max_tokens=40, sampling=GREEDY) for i in range(16)))
    for i, answer in enumerate(answers):
        assert output(answer) == counting(20 * i, 40, drift=9)


async def test_two_draft_workers_share_the_load():
    """Sessions spread over two workers; when one drains, its sessions move to the other and nothing is lost."""
    async with (
        draft_worker(FakeModel()) as one,
        draft_worker(FakeModel()) as two,
        verify_worker(
            FakeModel(step_seconds=SLOW),
            drafts=(f"127.0.0.1:{one.port}", f"127.0.0.1:{two.port}"),
            num_speculative_tokens=4,
        ) as target,
    ):
        await connected(target, 2)
        running = [asyncio.create_task(target.generate([50 * i], max_tokens=400, sampling=GREEDY)) for i in range(8)]
        await target.until(lambda: target.metric("draftwire_verify_committed_tokens_total") >= 100)
        await one.drain()
        answers = await asyncio.gather(*running)
    for i, answer in enumerate(answers):
        assert output(answer) == counting(50 * i, 400)
    assert 1 <= sum(finished(answer).speculation.reassignments for answer in answers) <= 7


async def test_vocabularies_must_agree():
    """A draft with another vocabulary is refused, and the target serves without it."""
    async with (
        draft_worker(FakeModel(vocab_size=100)) as other,
        verify_worker(FakeModel(), drafts=(f"127.0.0.1:{other.port}",), num_speculative_tokens=4) as target,
    ):
        answer = await target.generate([7], max_tokens=20, sampling=GREEDY)
        assert target.metric("draftwire_verify_draft_workers") == 0
    assert output(answer) == counting(7, 20)
    assert finished(answer).speculation.tested_tokens == 0
