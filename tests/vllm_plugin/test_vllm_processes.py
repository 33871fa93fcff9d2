"""No process of vLLM's outlives the verify worker that started it, however that ends."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.service_law import TARGET
from support.vllm_chain import write_chain
from support.vllm_processes import END_SECONDS, all_end, below, engine_core

from draftwire.cli.processes import ServiceProcess
from draftwire.errors import Unavailable

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[ServiceProcess]:
    """A verify worker on vLLM without drafts, not started."""
    flags = {"backend": "vllm", "target": write_chain(TARGET, tmp_path / "model", 256), "max_model_len": 256}
    flags |= {"port": 0, "metrics_port": 0, "vllm_args": '{"block_size": 32, "kv_cache_memory_bytes": 67108864}'}
    return ServiceProcess("verify worker", "verify_service", flags, tmp_path / "verify.log")


async def test_killed(worker: ServiceProcess) -> None:
    """kill -9: the engine core ends by itself, and its worker with it."""
    await worker.start()
    orphans = below(worker.pid)
    assert await engine_core(worker.pid) in orphans
    worker.signal(signal.SIGKILL)  # and no waiting: its stdout is theirs too, so for asyncio it ends with them
    assert await all_end(orphans)
    await worker.wait()


async def test_terminated_while_it_loads(worker: ServiceProcess) -> None:
    """SIGTERM while vLLM starts: the worker ends without an error, and vLLM's processes with it.

    The engine core stands still, as in a load that heeds no SIGTERM.
    """
    starting = asyncio.create_task(worker.start())
    core = await engine_core(os.getpid())
    children = below(worker.pid)
    assert core in children
    assert not starting.done()
    core.suspend()
    worker.signal(signal.SIGTERM)
    assert await all_end(children)
    assert await asyncio.wait_for(worker.wait(), END_SECONDS) == 0
    with pytest.raises(Unavailable, match="did not start"):
        await starting
