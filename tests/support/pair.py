"""A draft worker and a verify worker on fake models inside the test's own process, over real gRPC."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry
from support.timing import PATIENCE
from support.verify_worker import RunningWorker, verify_worker

from draft_service.config import DraftConfig
from draft_service.drafters.base import Drafter
from draft_service.drafters.model import ModelDrafter
from draft_service.worker import DraftWorker
from draftwire.engine.fake import FakeEngine
from draftwire.fake_model import FakeModel


@asynccontextmanager
async def draft_worker(
    model: FakeModel, *, num_slots: int = 16, make_drafter: Callable[[], Drafter] | None = None, **flags: Any
) -> AsyncIterator[DraftWorker]:
    """A draft worker that serves the fake `model`, or another drafter; flags as in DraftConfig."""
    flags = {"port": 0, "metrics_port": 0, "max_num_seqs": num_slots, "shutdown_grace": 0.5} | flags
    worker = DraftWorker(
        DraftConfig(**flags),
        make_drafter or (lambda: ModelDrafter(FakeEngine(model, num_slots=num_slots))),
        CollectorRegistry(),
        asyncio.Event(),
    )
    await worker.start()
    try:
        yield worker
    finally:
        await worker.drain()


@asynccontextmanager
async def pair(draft: FakeModel, target: FakeModel, **flags: Any) -> AsyncIterator[RunningWorker]:
    """Both, connected; flags are the verify worker's."""
    async with (
        draft_worker(draft) as drafter,
        verify_worker(target, drafts=(f"127.0.0.1:{drafter.port}",), **flags) as verifier,
    ):
        await connected(verifier)
        yield verifier


async def connected(verifier: RunningWorker, count: int = 1) -> None:
    """Wait until `count` draft workers are connected."""
    async with asyncio.timeout(PATIENCE):
        while verifier.metric("draftwire_verify_draft_workers") != count:
            await asyncio.sleep(0.01)
