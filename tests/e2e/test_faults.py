"""What breaks in production, with real processes: workers killed, stopped, restarted; callers gone; everything full.

The models are the hand-computable fakes, so every expected token is known; a step of the target takes 20 ms.
"""

import asyncio
import signal
import sys

import grpc
import pytest
from support.system import metric, system, until_metric

from draftwire.errors import ResourceExhausted
from draftwire.fake_model import FakeModel
from draftwire.rpc.status import error_of

pytestmark = pytest.mark.e2e

STEP = 0.02
TARGET = f"fake:step_seconds={STEP},drift=9"
DRAFT = "fake:"
MODEL_DRAFTER = {"drafter": "model"}


def expected(first, count):
    """What the fake target says after the prompt [first]."""
    model, tokens = FakeModel(drift=9), [first]
    for position in range(1, count + 1):
        tokens.append(model.next_token(tokens[-1], position))
    return tokens[1:]


def speed(transcript, start, end):
    """Tokens per second between two times of the transcript's clock."""
    return sum(count for when, count in transcript.arrivals if start <= when < end) / (end - start)


async def test_killed_draft_worker(tmp_path):
    """kill -9 of the draft worker in mid stream: the output does not change, and a restarted worker is used again."""
    async with system(tmp_path, target=TARGET, draft=DRAFT, draft_flags=MODEL_DRAFTER) as made:
        draft, verify = made.drafters[0], made.verifiers[0]
        before = (await made.generate([3], max_tokens=60)).speculation
        killed = None

        async def kill_once(transcript):
            nonlocal killed
            if killed is None and len(transcript.token_ids) > 30:
                killed = asyncio.create_task(draft.kill())

        transcript = await made.generate([7], kill_once, max_tokens=200)
        await killed
        assert transcript.token_ids == expected(7, 200)
        assert transcript.speculation.reassignments == 1
        await draft.start()
        await until_metric(verify, "draftwire_verify_draft_workers", 1)
        after = (await made.generate([3], max_tokens=60)).speculation
        assert before.tokens_per_step > 2
        assert after.tokens_per_step > 2


async def test_stopped_draft_worker(tmp_path):
    """SIGSTOP of the draft worker: output unchanged and at plain speed within 2 s; after SIGCONT it is used again."""
    async with system(tmp_path, target=TARGET, draft=DRAFT, draft_flags=MODEL_DRAFTER) as made:
        draft = made.drafters[0]
        stopped = None

        async def stop_once(transcript):
            nonlocal stopped
            if stopped is None and len(transcript.token_ids) > 30:
                draft.signal(signal.SIGSTOP)
                stopped = transcript.arrivals[-1][0]

        transcript = await made.generate([7], stop_once, max_tokens=300)
        assert transcript.token_ids == expected(7, 300)
        end = transcript.arrivals[-1][0]
        assert end > stopped + 3, "the stream lasts long enough to see"
        assert speed(transcript, stopped + 2, end) > 0.8 / STEP
        draft.signal(signal.SIGCONT)
        async with asyncio.timeout(20):
            while (await made.generate([3], max_tokens=60)).speculation.tokens_per_step < 2:
                pass


async def test_killed_verify_worker(tmp_path):
    """kill -9 of the verify worker that answers: the gateway goes on at the other; nothing is lost or repeated."""
    async with system(tmp_path, target=TARGET, draft=DRAFT, verifiers=2, draft_flags=MODEL_DRAFTER) as made:
        killed = None

        async def kill_once(transcript):
            nonlocal killed
            if killed is None and len(transcript.token_ids) > 30:
                for worker in made.verifiers:
                    if await metric(worker, "draftwire_verify_running_sessions"):
                        killed = worker
                        await worker.kill()
                        return  # the session may run at the other one by now

        transcript = await made.generate([7], kill_once, max_tokens=150)
        assert killed is not None
        assert transcript.token_ids == expected(7, 150)
        assert transcript.usage.completion_tokens == 150
        await killed.start()
        await until_metric(killed, "draftwire_verify_draft_workers", 1)
        answers = await asyncio.gather(*(made.generate([i], max_tokens=30) for i in range(6)))
        assert [answer.token_ids for answer in answers] == [expected(i, 30) for i in range(6)]


async def test_killed_caller(tmp_path):
    """kill -9 of a caller in mid stream: its slot is free within a second, and another caller is served."""
    async with system(tmp_path, target=TARGET, draft=DRAFT, verify_flags={"max_num_seqs": 1}) as made:
        caller = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "draftwire.cli.main", "generate", "A", "--gateway", made.gateway.address),
            *("--temperature", "0", "--max-tokens", "3000"),
            stdout=asyncio.subprocess.PIPE,
        )
        await caller.stdout.read(3)
        assert await metric(made.verifiers[0], "draftwire_verify_running_sessions") == 1
        caller.kill()
        await caller.wait()
        await until_metric(made.verifiers[0], "draftwire_verify_running_sessions", 0, seconds=1.5)
        assert (await made.generate([7], max_tokens=10)).token_ids == expected(7, 10)


async def test_deadline_and_cancel_free_the_slot(tmp_path):
    """A call past its deadline, and a cancelled one, free their slot within a step or two of the target."""
    async with system(tmp_path, target=TARGET, draft=DRAFT, verify_flags={"max_num_seqs": 1}) as made:
        for end in ("deadline", "cancel"):
            call = asyncio.create_task(made.generate([7], max_tokens=3000, timeout=0.5 if end == "deadline" else 60))
            await until_metric(made.verifiers[0], "draftwire_verify_running_sessions", 1)
            if end == "cancel":
                call.cancel()
            with pytest.raises((TimeoutError, asyncio.CancelledError)):
                await call
            await until_metric(made.verifiers[0], "draftwire_verify_running_sessions", 0, seconds=1.0)


async def test_overload_is_refused_with_a_hint(tmp_path):
    """One slot, a queue of one: the third caller gets RESOURCE_EXHAUSTED with a hint, the others their answers."""
    flags = {"max_num_seqs": 1, "max_waiting": 1}
    async with system(tmp_path, target=TARGET, draft=DRAFT, verify_flags=flags) as made:
        first = asyncio.create_task(made.generate([1], max_tokens=60))
        second = asyncio.create_task(made.generate([2], max_tokens=60))
        await until_metric(made.verifiers[0], "draftwire_verify_waiting_sessions", 1)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await made.generate([3], max_tokens=60)
        error = error_of(refused.value)
        assert isinstance(error, ResourceExhausted)
        assert error.retry_after > 0
        assert (await first).token_ids == expected(1, 60)
        assert (await second).token_ids == expected(2, 60)


async def test_draft_worker_drains(tmp_path):
    """SIGTERM of one of two draft workers: its sessions move to the other, and it exits with 0."""
    async with system(tmp_path, target=TARGET, draft=DRAFT, drafters=2, draft_flags=MODEL_DRAFTER) as made:
        answers = [asyncio.create_task(made.generate([i], max_tokens=100)) for i in range(4)]
        await until_metric(made.verifiers[0], "draftwire_verify_running_sessions", 4)
        await made.drafters[0].stop()
        assert made.drafters[0].returncode == 0
        for i, answer in enumerate(answers):
            assert (await answer).token_ids == expected(i, 100)


async def test_verify_worker_drains(tmp_path):
    """SIGTERM of the only verify worker: the running answer is finished, a new one is refused, the exit code is 0."""
    flags = {"shutdown_grace": 20}
    async with system(tmp_path, target=TARGET, draft=DRAFT, verify_flags=flags) as made:
        running = asyncio.create_task(made.generate([7], max_tokens=200))
        await until_metric(made.verifiers[0], "draftwire_verify_running_sessions", 1)
        stopping = asyncio.create_task(made.verifiers[0].stop())
        await asyncio.sleep(0.5)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await made.generate([8], max_tokens=5)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert (await running).token_ids == expected(7, 200)
        await stopping
        assert made.verifiers[0].returncode == 0
