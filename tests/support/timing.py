"""Time in tests: how long to wait for anything, and claims about speed that a pause of the machine must not refute."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

#: No test waits longer than this for anything. A right service needs far less on a slow machine that stops for seconds,
#: so only a test that fails is kept waiting. Seconds.
PATIENCE = 120.0

#: How often a claim about speed is tried. A pause of the machine spoils one try, a service that is slow all of them.
TRIES = 4


async def in_some_try(measure: Callable[[], Awaitable[T]], claim: Callable[[T], bool], tries: int = TRIES) -> T:
    """The first result of which the claim holds; fails after so many. What `measure` itself raises is not forgiven."""
    results: list[T] = []
    while len(results) < tries:
        results.append(await measure())
        if claim(results[-1]):
            return results[-1]
    raise AssertionError(f"it held of none of {results}")
