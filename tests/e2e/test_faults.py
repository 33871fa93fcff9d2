"""What breaks in production, with real processes: workers killed, stopped, restarted; callers gone; everything full.

The models are the hand-computable fakes, so every expected token is known; a step of the target takes 20 ms.
"""

import asyncio
import signal
import sys
import time
from math import inf

import grpc
import pytest
from support.system import metric, system, until_metric
from support.timing import PATIENCE, in_some_try

from draftwire.errors import ResourceExhausted
from draftwire.fake_model import FakeModel
from draftwire.rpc.status import error_of

pytestmark = pytest.mark.e2e

STEP = 0.02
TARGET = f"fake:step_seconds={STEP},drift=9"
DRAFT = "fake:"
MODEL_DRAFTER = {"drafter": "model"}
PLAIN = {"disabled": True}
RUNNING = "draftwire_verify_running_sessions"


def expected(first, count):
    """What the fake target says after the prompt [first]."""
    model, tokens = FakeModel(drift=9), [first]
    for position in range(1, count + 1):
        tokens.append(model.next_token(tokens[-1], position))
    return tokens[1:]


def speed(transcript, start):
    """Tokens per second from a time of the transcript's clock to its end."""
    end = transcript.arrivals[-1][0]
    return sum(count for when, count in transcript.arrivals if start <= when < end) / (end - start)


async def tokens_per_step(made):
    """Of a short answer; above two where the draft worker is in use."""
    return (await made.generate([3], max_tokens=60)).speculation.tokens_per_step


async def test_killed_draft_worker(tmp_path):
    """kill -9 of the draft worker in mid stream: the output does not change, and a restarted worker is used again."""
    async with system(tmp_path, target=TARGET, draft=DRAFT, draft_flags=MODEL_DRAFTER) as made:
        draft, verify = made.drafters[0], made.verifiers[0]

        async def reassignments():
            """Of an answer that saw the worker die, which it does unless it is over before we get to that."""
            killed = None

            async def kill_once(transcript):
                nonlocal killed
                if killed is None and len(transcript.token_ids) > 30:
                    killed = asyncio.create_task(draft.kill())

            transcript = await made.generate([7], kill_once, max_tokens=200)
            await killed
            assert transcript.token_ids == expected(7, 200)
            await draft.start()
            await until_metric(verify, "draftwire_verify_draft_workers", 1)
            return transcript.speculation.reassignments

        await in_some_try(lambda: tokens_per_step(made), lambda found: found > 2)
        await in_some_try(reassignments, lambda found: found == 1)
        await in_some_try(lambda: tokens_per_step(made), lambda found: found > 2)


async def test_stopped_draft_worker(tmp_path):
    """SIGSTOP of the draft worker: output unchanged and at plain speed within 2 s; after SIGCONT it is used again."""
    async with system(tmp_path, target=TARGET, draft=DRAFT, draft_flags=MODEL_DRAFTER) as made:
        draft = made.drafters[0]

        async def speeds():
            """Of plain decoding, and of an answer since two seconds after the stop; 0 if it did not last so long."""
            stopped = None

            async def stop_once(transcript):
                nonlocal stopped
                if stopped is None and len(transcript.token_ids) > 30:
                    draft.signal(signal.SIGSTOP)
                    stopped = transcript.arrivals[-1][0]

            plain = await made.generate([7], max_tokens=100, speculation=PLAIN)
            transcript = await made.generate([7], stop_once, max_tokens=300)
            draft.signal(signal.SIGCONT)
            assert transcript.token_ids == expected(7, 300)
            async with asyncio.timeout(PATIENCE):
                while await tokens_per_step(made) < 2:
                    pass
            lasted = transcript.arrivals[-1][0] > stopped + 3
            return speed(plain, plain.arrivals[0][0]), speed(transcript, stopped + 2) if lasted else 0.0

        await in_some_try(speeds, lambda found: found[1] > 0.8 * found[0])


async def test_killed_verify_worker(tmp_path):
    """kill -9 of the verify worker that answers: the gateway goes on at the other; nothing is lost or repeated."""
    async with system(tmp_path, target=TARGET, draft=DRAFT, verifiers=2, draft_flags=MODEL_DRAFTER) as made:

        async def answer():
            """The worker that was killed in the middle of it; None if it was over before we found out which."""
            killed = None

            async def kill_once(transcript):
                nonlocal killed
                if killed is None and len(transcript.token_ids) > 30:
                    for worker in made.verifiers:
                        if await metric(worker, RUNNING):
                            killed = worker
                            await worker.kill()
                            return  # the session may run at the other one by now

            transcript = await made.generate([7], kill_once, max_tokens=300)
            assert transcript.token_ids == expected(7, 300)
            assert transcript.usage.completion_tokens == 300
            return killed

        killed = await in_some_try(answer, lambda found: found is not None)
        await killed.start()
        await until_metric(killed, "draftwire_verify_draft_workers", 1)
        answers = await asyncio.gather(*(made.generate([i], max_tokens=30) for i in range(6)))
        assert [answer.token_ids for answer in answers] == [expected(i, 30) for i in range(6)]


async def test_killed_caller(tmp_path):
    """kill -9 of a caller in mid stream: its slot is free within a second, and another caller is served."""
    async with system(tmp_path, target=TARGET, draft=DRAFT, verify_flags={"max_num_seqs": 1}) as made:

        async def seconds():
            """From the kill to a free slot."""
            caller = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "draftwire.cli.main", "generate", "A", "--gateway", made.gateway.address),
                *("--temperature", "0", "--max-tokens", "3000"),
                stdout=asyncio.subprocess.PIPE,
            )
            await caller.stdout.read(3)
            assert await metric(made.verifiers[0], RUNNING) == 1
            caller.kill()
            await caller.wait()
            return await seconds_until_free(made)

        await in_some_try(seconds, lambda found: found < 1.5)
        assert (await made.generate([7], max_tokens=10)).token_ids == expected(7, 10)


async def seconds_until_free(made):
    """How long a session goes on running; left to itself it would for ten seconds and more."""
    began = time.monotonic()
    await until_metric(made.verifiers[0], RUNNING, 0)
    return time.monotonic() - began


async def test_deadline_and_cancel_free_the_slot(tmp_path):
    """A call past its deadline, and a cancelled one, free their slot within a step or two of the target."""
    async with system(tmp_path, target=TARGET, draft=DRAFT, verify_flags={"max_num_seqs": 1}) as made:

        async def past_its_deadline():
            begun = asyncio.Event()

            async def on_text(_):
                begun.set()

            with pytest.raises(TimeoutError):
                await made.generate([7], on_text, max_tokens=3000, timeout=1.0)
            return await seconds_until_free(made) if begun.is_set() else inf

        async def cancelled():
            call = asyncio.create_task(made.generate([7], max_tokens=3000))
            await until_metric(made.verifiers[0], RUNNING, 1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            return await seconds_until_free(made)

        for end in (past_its_deadline, cancelled):
            await in_some_try(end, lambda found: found < 1.0)


async def test_overload_is_refused_with_a_hint(tmp_path):
    """One slot, a queue of one: the third caller gets RESOURCE_EXHAUSTED with a hint, the others their answers."""
    flags = {"max_num_seqs": 1, "max_waiting": 1}
    async with system(tmp_path, target=TARGET, draft=DRAFT, verify_flags=flags) as made:
        # Three seconds each, so that the first still runs when the third comes.
        first, second = (asyncio.create_task(made.generate([i], max_tokens=150, speculation=PLAIN)) for i in (1, 2))
        await until_metric(made.verifiers[0], "draftwire_verify_waiting_sessions", 1)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await made.generate([3], max_tokens=60)
        error = error_of(refused.value)
        assert isinstance(error, ResourceExhausted)
        assert error.retry_after > 0
        assert (await first).token_ids == expected(1, 150)
        assert (await second).token_ids == expected(2, 150)


async def test_draft_worker_drains(tmp_path):
    """SIGTERM of one of two draft workers: its sessions move to the other, and it exits with 0."""
    async with system(tmp_path, target=TARGET, draft=DRAFT, drafters=2, draft_flags=MODEL_DRAFTER) as made:
        answers = [asyncio.create_task(made.generate([i], max_tokens=600)) for i in range(4)]
        await until_metric(made.verifiers[0], RUNNING, 4)
        await made.drafters[0].stop()
        assert made.drafters[0].returncode == 0
        for i, answer in enumerate(answers):
            assert (await answer).token_ids == expected(i, 600)


async def test_verify_worker_drains(tmp_path):
    """SIGTERM of the only verify worker: the running answer is finished, a new one is refused, the exit code is 0."""
    flags = {"shutdown_grace": 20}
    async with system(tmp_path, target=TARGET, draft=DRAFT, verify_flags=flags) as made:
        running = asyncio.create_task(made.generate([7], max_tokens=200, speculation=PLAIN))
        await until_metric(made.verifiers[0], RUNNING, 1)
        stopping = asyncio.create_task(made.verifiers[0].stop())
        await until_metric(made.gateway, "draftwire_gateway_verify_workers", 0)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await made.generate([8], max_tokens=5)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert (await running).token_ids == expected(7, 200)
        await stopping
        assert made.verifiers[0].returncode == 0
