"""The processes that vLLM starts below ours, and whether they end."""

import asyncio
import contextlib

import psutil

#: How long processes may take to start or to end on a busy machine, seconds.
START_SECONDS, END_SECONDS = 300.0, 60.0


def below(pid: int) -> list[psutil.Process]:
    """All processes that a process has started, directly or not."""
    return psutil.Process(pid).children(recursive=True)


async def engine_core(pid: int) -> psutil.Process:
    """vLLM's engine core below a process, once it is there."""
    async with asyncio.timeout(START_SECONDS):
        while True:
            for process in below(pid):
                if _is_engine_core(process):
                    return process
            await asyncio.sleep(0.05)


async def all_end(processes: list[psutil.Process]) -> bool:
    """Whether all of them end in time; those that do not are killed."""
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, END_SECONDS)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return not alive


def _is_engine_core(process: psutil.Process) -> bool:
    try:
        return "EngineCore" in process.name()
    except psutil.NoSuchProcess:
        return False
