"""A draft worker put together: engine thread, servicer, server. Tests build it in their own process."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from prometheus_client import CollectorRegistry

from draft_service.config import DraftConfig
from draft_service.drafters.base import Drafter
from draft_service.inbox import Event, inbox_capacity
from draft_service.loop import DraftLoop
from draft_service.metrics import Metrics
from draft_service.servicer import DraftServicer, StreamLimits
from draftwire.engine.thread import EngineThread
from draftwire.rpc.server import RpcServer
from draftwire.service import instance_id
from draftwire.session import DrafterStep, Load
from draftwire.v1 import draft_service_pb2
from draftwire.v1.draft_service_pb2_grpc import add_DraftServiceServicer_to_server

logger = logging.getLogger(__name__)

SERVICE_NAME = draft_service_pb2.DESCRIPTOR.services_by_name["DraftService"].full_name

#: How long calls may take to end once their streams were told to.
LAST_WORDS_SECONDS = 1.0

#: How long the engine's thread may take to end its step.
THREAD_SECONDS = 10.0


class DraftWorker:
    """Start it, use `port`, drain it.

    Args:
        make_drafter: loads the draft; called on the engine's thread, which owns it.
        registry: where its metrics go.
        failed: set when the engine's loop fails; the process should then end.
    """

    def __init__(
        self,
        config: DraftConfig,
        make_drafter: Callable[[], Drafter],
        registry: CollectorRegistry,
        failed: asyncio.Event,
    ) -> None:
        self.config = config
        self.instance_id = instance_id("draft")
        self.port = 0
        self._make_drafter = make_drafter
        self._metrics = Metrics(registry)
        self.failed = failed
        self._loop = asyncio.get_running_loop()
        self._loaded: asyncio.Future[Drafter] = self._loop.create_future()
        self._thread: EngineThread[Event] = EngineThread(
            self._make_loop, self._on_failure, name="draft-engine", capacity=inbox_capacity(config.max_streams)
        )
        self._server = RpcServer(config.host, config.port)
        self._servicer: DraftServicer | None = None

    async def start(self) -> None:
        """Load the draft, then serve. Raises the error that kept it from starting."""
        self._thread.start()
        drafter = await self._loaded
        info = replace(drafter.info, name=self.config.served_model_name or drafter.info.name)
        self._servicer = DraftServicer(
            info=info,
            instance_id=self.instance_id,
            max_sessions=drafter.max_sessions,
            post=self._thread.post,
            metrics=self._metrics,
            limits=StreamLimits(max_streams=self.config.max_streams, stall_seconds=self.config.stall_seconds),
        )
        add_DraftServiceServicer_to_server(self._servicer, self._server.server)  # type: ignore[no-untyped-call]
        self.port = await self._server.start([SERVICE_NAME])
        logger.info(
            "serving %s (drafter %s, dtype %s, max_model_len %d, %d sessions) on %s:%d",
            *(info.name, self.config.drafter, info.dtype, info.max_model_len),
            *(drafter.max_sessions, self.config.host, self.port),
        )

    async def drain(self) -> None:
        """NOT_SERVING, ask the verify workers to go, wait for it within --shutdown-grace, stop.

        Before the draft is loaded there is nothing to wait for: the engine's thread ends once it is loaded.
        """
        if self._servicer:
            await self._server.set_serving(False)
            await self._servicer.drain(0.0 if self.failed.is_set() else self.config.shutdown_grace)
            await self._server.drain(LAST_WORDS_SECONDS)
        await asyncio.to_thread(self._thread.stop, THREAD_SECONDS if self._servicer else 0.0)

    def _make_loop(self) -> DraftLoop:
        """On the engine's thread."""
        drafter = self._make_drafter()
        self._loop.call_soon_threadsafe(self._start_serving, drafter)
        return DraftLoop(
            drafter, self._emit, metrics=self._metrics, max_sessions_per_stream=self.config.stream_sessions
        )

    def _start_serving(self, drafter: Drafter) -> None:
        if not self._loaded.done():  # nobody waits any more if the worker was told to stop meanwhile
            self._loaded.set_result(drafter)

    def _emit(self, steps: Mapping[int, DrafterStep], load: Load) -> None:
        self._loop.call_soon_threadsafe(self._deliver, steps, load)

    def _deliver(self, steps: Mapping[int, DrafterStep], load: Load) -> None:
        if self._servicer:
            self._servicer.deliver(steps, load)

    def _on_failure(self, error: Exception) -> None:
        self._loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: Exception) -> None:
        if not self._loaded.done():
            self._loaded.set_exception(error)
        self.failed.set()
