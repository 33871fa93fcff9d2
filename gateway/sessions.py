"""One request's life on verify workers: every token exactly once, whatever happens to the worker.

A worker that fails in mid answer is replaced by another one, which gets the tokens committed so far and goes on after
them. Greedy and seeded output is unchanged by that; without a seed the rest is drawn with fresh randomness, and its
distribution is unchanged. Where there is no other one, the answer waits a while for a worker to come back. A call that
finds none to begin with fails at once: its caller has lost nothing, and another gateway may do better.
"""

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from dataclasses import fields, replace

import grpc

from draftwire.errors import (
    DeadlineExceeded,
    DraftwireError,
    EngineError,
    Incompatible,
    ProtocolViolation,
    ResourceExhausted,
    Unavailable,
)
from draftwire.rpc.convert_verify import event_from_proto, generate_request_to_proto
from draftwire.rpc.status import error_of
from draftwire.types import Committed, Finished, FinishReason, GenerateRequest, SpeculationStats, Started, Usage
from draftwire.v1.verify_service_pb2 import VerifyServiceGenerateRequest
from gateway.pool import Pool, Worker

#: Workers that may fail one request before the caller hears of it.
MAX_FAILURES = 4

#: Before workers that said to be full are asked again, whatever they said of when; seconds.
LEAST_WAIT = 0.1

#: The worker's fault, so another one may do better.
_WORKER_FAILED = (Unavailable, EngineError, ProtocolViolation, Incompatible)


class Session:
    """One answer and what is known of it.

    Args:
        request: validated, max_tokens set.
        end_ids: ids that end the answer.
        deadline: on the event loop's clock, seconds; None = none.
        failover_wait: how long to wait for a worker after one has failed, seconds.

    Attributes:
        failures: workers that failed it so far.
    """

    def __init__(
        self, request: GenerateRequest, end_ids: Collection[int], deadline: float | None, failover_wait: float
    ) -> None:
        self.failures = 0
        self._request = request
        self._end_ids = end_ids
        self._deadline = deadline
        self._failover_wait = failover_wait
        self._wait_until = 0.0  # for a worker, since one has failed
        self._committed: list[int] = []
        self._cached_tokens = 0
        self._admitted = False  # whether the current worker said Started
        self._earlier = SpeculationStats()  # of the workers that failed
        self._current = SpeculationStats()

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self._request.request_id

    def finish(self, reason: FinishReason, unused: int = 0) -> Finished:
        """The end of the answer as it stands, without its last `unused` tokens."""
        completion = len(self._committed) - unused
        usage = Usage(len(self._request.prompt_token_ids), completion, self._cached_tokens)
        return Finished(reason, usage, _sum(self._earlier, self._current))

    async def run(self, pool: Pool) -> AsyncGenerator[Committed | Finished, None]:
        """Committed events without gap or overlap, then Finished. Closing the generator cancels the call on the worker.

        Raises Unavailable (no worker, or too many failed), ResourceExhausted (every worker is full), DeadlineExceeded,
        and what the worker has against the request.
        """
        full: dict[str, ResourceExhausted] = {}
        failure: DraftwireError | None = None
        while (finished := self._finished()) is None:
            with pool.lease(full) as worker:
                if worker is None:
                    await self._wait(pool, full, failure)
                    continue
                try:
                    async with aclosing(self._attempt(worker)) as events:
                        async for event in events:
                            yield event
                            if isinstance(event, Finished):
                                return
                except _WORKER_FAILED as error:
                    pool.failed(worker, error)
                    self._lost(error)
                    failure = error
                except ResourceExhausted as error:
                    if self._admitted:
                        raise  # it gave up on a caller that does not read; nobody else would do better
                    full[worker.address] = error
        yield finished  # the worker was lost between the last token and its Finished

    async def _attempt(self, worker: Worker) -> AsyncGenerator[Committed | Finished, None]:
        """The rest of the answer from one worker."""
        self._admitted = False
        call = worker.stub.Generate(self._remaining_request(), timeout=self._remaining_time())
        try:
            async for proto in call:
                match event_from_proto(proto):
                    case Started():
                        self._admitted = True
                    case Committed() as committed:
                        self._take(committed)
                        yield committed
                    case Finished() as finished:
                        self._current = finished.speculation
                        yield self.finish(finished.reason)
                        return
            raise ProtocolViolation("the stream ended without Finished")
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from error
        finally:
            call.cancel()

    async def _wait(self, pool: Pool, full: dict[str, ResourceExhausted], failure: DraftwireError | None) -> None:
        """Return when it may be worth to look for a worker again; raise if that is over, or no worker has failed."""
        left = self._wait_until - asyncio.get_running_loop().time()
        if failure is None or left <= 0:
            raise _nobody(full, failure, self._failover_wait)
        remaining = self._remaining_time()
        waits = [left, *(max(error.retry_after, LEAST_WAIT) for error in full.values())]
        await pool.change(within=min(waits if remaining is None else [*waits, remaining]))
        full.clear()

    def _remaining_request(self) -> VerifyServiceGenerateRequest:
        return generate_request_to_proto(replace(self._request, committed_token_ids=tuple(self._committed)))

    def _remaining_time(self) -> float | None:
        if self._deadline is None:
            return None
        remaining = self._deadline - asyncio.get_running_loop().time()
        if remaining <= 0:
            raise DeadlineExceeded("the call's deadline has passed")
        return remaining

    def _take(self, event: Committed) -> None:
        expected = len(self._request.prompt_token_ids) + len(self._committed)
        if event.position != expected:
            raise ProtocolViolation(f"committed.position: must be {expected}, got {event.position}")
        if not self._committed:
            self._cached_tokens = event.cached_tokens
        self._committed += event.token_ids
        self._current = event.speculation

    def _lost(self, error: DraftwireError) -> None:
        """Count a worker that failed; raises Unavailable if it was one too many."""
        self.failures += 1
        self._wait_until = asyncio.get_running_loop().time() + self._failover_wait
        self._earlier, self._current = _sum(self._earlier, self._current), SpeculationStats()
        if self.failures == MAX_FAILURES:
            raise Unavailable(f"{MAX_FAILURES} verify workers failed the request; the last one: {error}") from error

    def _finished(self) -> Finished | None:
        """The end of the answer, if the committed tokens hold it already."""
        if self._committed and self._committed[-1] in self._end_ids:
            return self.finish(FinishReason.STOP)
        if len(self._committed) == self._request.max_tokens:
            return self.finish(FinishReason.LENGTH)
        return None


def _sum(a: SpeculationStats, b: SpeculationStats) -> SpeculationStats:
    return SpeculationStats(*(getattr(a, item.name) + getattr(b, item.name) for item in fields(SpeculationStats)))


def _nobody(full: dict[str, ResourceExhausted], failure: DraftwireError | None, waited: float) -> DraftwireError:
    if full:
        retry_after = min(error.retry_after for error in full.values())
        return ResourceExhausted("every verify worker is full", retry_after)
    if failure is None:
        return Unavailable("no verify worker can be used")
    return Unavailable(f"no verify worker could go on in {waited:g} s (--failover-wait); the last failed: {failure}")
