"""An event loop on a thread of its own, for tests that are not coroutines themselves (Hypothesis examples)."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, TypeVar

from support.timing import PATIENCE

T = TypeVar("T")


class Background:
    """The loop; `run` is what a test calls."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="background-loop")

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE)


@contextmanager
def background(make: Any) -> Iterator[tuple[Background, Any]]:
    """(the loop, what the async context manager `make()` gives), until the block ends."""
    made = Background()
    made.thread.start()
    try:
        context: AbstractAsyncContextManager[Any] = made.run(_call(make))
        value = made.run(context.__aenter__())
        try:
            yield made, value
        finally:
            made.run(context.__aexit__(None, None, None))
    finally:
        made.loop.call_soon_threadsafe(made.loop.stop)
        made.thread.join(PATIENCE)
        made.loop.close()


async def _call(make: Any) -> Any:
    return make()
