"""Processes that ought to end."""

import asyncio

import psutil
from support.timing import PATIENCE


async def gone(*processes: psutil.Process) -> None:
    """Wait until they have ended; one whose parent was killed may stay a zombie, for nobody waits for it."""
    async with asyncio.timeout(PATIENCE):
        while any(map(_is_there, processes)):
            await asyncio.sleep(0.05)


def _is_there(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # since the first look
        return False
