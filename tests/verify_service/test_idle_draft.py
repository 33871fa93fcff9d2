"""A draft that has no guess and one that is dead say equally little; the verify worker tells them apart.

The target counts up, so its text never repeats itself and an n-gram never matches; a step takes 20 ms.
"""

import asyncio
import threading

from support.pair import connected, draft_worker
from support.verify_worker import finished, output, verify_worker

from draft_service.drafters.ngram import NgramDrafter
from draftwire.fake_model import FakeModel
from draftwire.types import ModelInfo, SamplingParams
from verify_service.drafts import SILENCE_SECONDS

GREEDY = SamplingParams(temperature=0.0)
STEP = 0.02
#: Tokens of an answer that takes half as long again as silence may last.
LONG = int(1.5 * SILENCE_SECONDS / STEP)


class Wedged(NgramDrafter):
    """An n-gram drafter whose engine thread hangs from `wedge` until `release`, while its event loop goes on."""

    def __init__(self) -> None:
        super().__init__(ModelInfo("ngram", "", (1 << 32) - 1, 4096, engine="ngram"), max_sessions=16)
        self.wedge, self.release = threading.Event(), threading.Event()

    def step(self, sessions):
        if self.wedge.is_set():
            self.release.wait()
        return super().step(sessions)


async def test_no_match_is_no_silence():
    """Nothing matches for longer than silence may last: the session stays where it is, and nobody is warned."""
    async with (
        draft_worker(FakeModel(), make_drafter=Wedged) as draft,
        verify_worker(FakeModel(step_seconds=STEP), drafts=(f"127.0.0.1:{draft.port}",), num_speculative_tokens=4) as w,
    ):
        await connected(w)
        answer = await w.generate([7], max_tokens=LONG, sampling=GREEDY)
        assert output(answer) == list(range(8, 8 + LONG))
        assert finished(answer).speculation.reassignments == 0


async def test_a_wedged_engine_is_silent():
    """The event loop answers pings, but nothing looks at the session any more: it leaves, and the output is right."""
    drafter = Wedged()
    async with (
        draft_worker(FakeModel(), make_drafter=lambda: drafter) as draft,
        verify_worker(FakeModel(step_seconds=STEP), drafts=(f"127.0.0.1:{draft.port}",), num_speculative_tokens=4) as w,
    ):
        await connected(w)
        answering = asyncio.create_task(w.generate([7], max_tokens=400, sampling=GREEDY, timeout=60))
        try:
            while w.metric("draftwire_verify_committed_tokens_total") < 10:
                await asyncio.sleep(0.01)
            drafter.wedge.set()
            while not answering.done() and not w.metric("draftwire_verify_draft_reassignments_total", reason="silent"):
                await asyncio.sleep(0.01)
        finally:
            drafter.release.set()
        answer = await answering
        assert output(answer) == list(range(8, 408))
        assert finished(answer).speculation.reassignments == 1
