"""The verify workers behind the gateway: their channels, their health, and which of them may be used.

One task a worker: probe it (health, model, vocabulary), hold a health watch open while it is up, probe it again after a
backoff when the watch says that it stops or breaks, or when a call failed. Choosing among them is `Router`'s.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from draftwire.errors import DraftwireError, Incompatible, Unavailable
from draftwire.rpc.client import connect
from draftwire.rpc.convert import model_info_from_proto
from draftwire.rpc.status import error_of
from draftwire.types import ModelInfo
from draftwire.v1 import verify_service_pb2 as pb
from draftwire.v1.verify_service_pb2_grpc import VerifyServiceStub
from gateway.router import Router

logger = logging.getLogger(__name__)

#: How long a worker may take to answer a probe. Unit: seconds.
PROBE_TIMEOUT = 5.0

VERIFY_SERVICE = pb.DESCRIPTOR.services_by_name["VerifyService"].full_name


@dataclass(slots=True, eq=False)
class Worker:
    """One verify worker.

    Attributes:
        address: host:port.
        model: what it serves; None before the first successful probe.
        probed: set once a probe has found it good or bad.
        failed: set when a call failed, so that the worker is probed again.
        problem: why it was not used the last time, for the log.
    """

    address: str
    channel: grpc.aio.Channel
    stub: VerifyServiceStub
    health: health_pb2_grpc.HealthStub
    model: ModelInfo | None = None
    probed: asyncio.Event = field(default_factory=asyncio.Event)
    failed: asyncio.Event = field(default_factory=asyncio.Event)
    problem: str = ""


class Pool:
    """Verify workers that serve one model.

    Args:
        addresses: host:port, at least one.
        fingerprint: of the gateway's vocabulary; a worker with another one is never used.

    Attributes:
        changed: set whenever `usable` may have changed; the reader clears it.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        fingerprint: str,
        *,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fingerprint = fingerprint
        self.changed = asyncio.Event()
        self._next_change = asyncio.Event()
        self._clock = clock
        self._router = Router(addresses, rng or random.Random())
        self._workers = {address: _worker(address) for address in addresses}
        self._model: ModelInfo | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep the workers probed meanwhile; close their channels at the end."""
        tasks = [asyncio.create_task(self._tend(worker)) for worker in self._workers.values()]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await asyncio.gather(*(worker.channel.close() for worker in self._workers.values()))

    async def settled(self) -> None:
        """Wait until every worker has been probed once; at most about two PROBE_TIMEOUT."""
        for worker in self._workers.values():
            await worker.probed.wait()

    @property
    def model(self) -> ModelInfo:
        """The model as the workers serve it, the last one known while none can be used.

        Raises Unavailable before the first worker was reached.
        """
        if self._model is None:
            raise Unavailable("no verify worker has been reached yet")
        return self._model

    @property
    def usable(self) -> int:
        """How many workers can be used."""
        return len(self._usable())

    @contextmanager
    def lease(self, exclude: Collection[str]) -> Iterator[Worker | None]:
        """The worker for one call, counted as running meanwhile; None if none can be used."""
        address = self._router.choose(exclude)
        try:
            yield None if address is None else self._workers[address]
        finally:
            if address is not None:
                self._router.release(address)

    async def change(self, within: float) -> None:
        """Wait until `usable` may have changed, at most `within` seconds."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._next_change.wait(), within)

    def failed(self, worker: Worker, error: DraftwireError) -> None:
        """A call on the worker failed: no new calls for it until it has answered a probe."""
        worker.failed.set()
        self._down(worker, error)

    async def _tend(self, worker: Worker) -> None:
        while True:
            try:
                capacity = await self._probe(worker)
                self._up(worker, capacity)
                await _until_unhealthy(worker)
                if not worker.failed.is_set():
                    self._down(worker, Unavailable("its health says that it stops, or its connection broke"))
            except grpc.aio.AioRpcError as error:
                self._down(worker, error_of(error))
            except DraftwireError as error:
                self._down(worker, error)
            except Exception as error:
                logger.exception("probing verify worker %s failed", worker.address)
                self._down(worker, Unavailable(f"the probe failed: {error!r}"))
            await asyncio.sleep(max(0.0, self._router.due(worker.address) - self._clock()))

    async def _probe(self, worker: Worker) -> int:
        """Returns how many calls the worker can run. Raises DraftwireError or AioRpcError where it cannot be used."""
        worker.failed.clear()
        check = health_pb2.HealthCheckRequest(service=VERIFY_SERVICE)
        if (await worker.health.Check(check, timeout=PROBE_TIMEOUT)).status != health_pb2.HealthCheckResponse.SERVING:
            raise Unavailable("its health is not SERVING")
        answer = await worker.stub.GetModel(pb.VerifyServiceGetModelRequest(), timeout=PROBE_TIMEOUT)
        model = model_info_from_proto(answer.model)
        if model.vocab_fingerprint != self._fingerprint:
            theirs, ours = model.vocab_fingerprint, self._fingerprint
            raise Incompatible(f"its model {model.name!r} has vocabulary {theirs!r}, the gateway {ours!r}")
        others = {w.model.name for w in self._usable() if w is not worker and w.model is not None}
        if others and model.name not in others:
            raise Incompatible(f"serves model {model.name!r}, the other workers {sorted(others)}")
        worker.model = model
        return int(answer.max_sessions)

    def _up(self, worker: Worker, capacity: int) -> None:
        logger.info("verify worker %s is in use", worker.address)
        worker.problem = ""
        worker.probed.set()
        self._router.up(worker.address, capacity)
        self._changed()

    def _down(self, worker: Worker, error: DraftwireError) -> None:
        worker.probed.set()
        was_usable = worker in self._usable()
        self._router.down(worker.address, self._clock())
        problem = f"{type(error).__name__}: {error}"
        if was_usable or problem != worker.problem:
            level = logging.ERROR if isinstance(error, Incompatible) else logging.WARNING
            logger.log(level, "verify worker %s is not used: %s", worker.address, problem)
            worker.problem = problem
        if was_usable:
            self._changed()

    def _usable(self) -> list[Worker]:
        return [self._workers[address] for address in self._router.usable()]

    def _changed(self) -> None:
        usable = self._usable()
        models = [worker.model for worker in usable if worker.model is not None]
        if models:
            shortest = min(model.max_model_len for model in models)
            self._model = replace(models[0], max_model_len=shortest)
        self.changed.set()
        self._next_change.set()  # of everybody who waits now
        self._next_change = asyncio.Event()


def _worker(address: str) -> Worker:
    channel = connect(address)
    stub = VerifyServiceStub(channel)  # type: ignore[no-untyped-call]
    return Worker(address, channel, stub, health_pb2_grpc.HealthStub(channel))


async def _until_unhealthy(worker: Worker) -> None:
    """Return once the worker says that it stops, its connection breaks, or a call on it failed."""
    tasks = [asyncio.create_task(_watch(worker)), asyncio.create_task(worker.failed.wait())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watch(worker: Worker) -> None:
    call = worker.health.Watch(health_pb2.HealthCheckRequest(service=VERIFY_SERVICE))
    try:
        async for update in call:
            if update.status != health_pb2.HealthCheckResponse.SERVING:
                return
    finally:
        call.cancel()  # a worker that drains waits for open calls, and this is one
