"""An n-gram draft worker as a process: with nothing to say it keeps its sessions, stopped it loses them."""

import asyncio
import signal

import pytest
from support.system import system

pytestmark = pytest.mark.e2e

TARGET = "fake:step_seconds=0.02,vocab_size=2048"  # it counts up, so its text never repeats itself


async def test_stopped_ngram_worker(tmp_path):
    """No match for three seconds: nothing happens. SIGSTOP: the session leaves. SIGCONT: a repeated text is drafted."""
    flags = {"drafter": "ngram"}
    async with system(tmp_path, target=TARGET, draft="fake:", draft_flags=flags) as made:
        quiet = await made.generate([7], max_tokens=150)
        assert quiet.token_ids == list(range(8, 158))
        assert quiet.speculation.reassignments == 0
        stopped = False

        async def stop_once(transcript):
            nonlocal stopped
            if not stopped and len(transcript.token_ids) > 30:
                made.drafters[0].signal(signal.SIGSTOP)
                stopped = True

        lost = await made.generate([7], stop_once, max_tokens=250)
        assert lost.token_ids == list(range(8, 258))
        assert lost.speculation.reassignments == 1
        made.drafters[0].signal(signal.SIGCONT)
        async with asyncio.timeout(60):
            while (await made.generate([*range(100), 0], max_tokens=60)).speculation.tokens_per_step < 2:
                pass
