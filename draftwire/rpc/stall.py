"""What a peer that does not read costs: its call or stream, after a while."""

import asyncio
from collections.abc import Awaitable

from draftwire.errors import ResourceExhausted


async def written(write: Awaitable[None], seconds: float, what: str) -> None:
    """Await one write; flow control holds it back while the peer does not read.

    Raises ResourceExhausted("the {what} was not read for ..") where that takes longer than `seconds`.
    """
    try:
        async with asyncio.timeout(seconds):
            await write
    except TimeoutError:
        raise ResourceExhausted(f"the {what} was not read for {seconds:g} s") from None
