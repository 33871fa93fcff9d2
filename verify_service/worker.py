"""A verify worker put together: engine thread, draft clients, server. Tests build it in their own process."""

import asyncio
import logging
import random
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace

from prometheus_client import CollectorRegistry

from draftwire.engine.base import Engine
from draftwire.engine.thread import EngineThread
from draftwire.errors import InvalidArgument
from draftwire.rpc.server import RpcServer
from draftwire.service import instance_id
from draftwire.session import PROTOCOL_VERSION, Hello, VerifierStep
from draftwire.types import Committed, Finished, GenerateRequest, Started
from draftwire.v1 import verify_service_pb2
from draftwire.v1.verify_service_pb2_grpc import add_VerifyServiceServicer_to_server
from verify_service.config import VerifyConfig
from verify_service.draft_clients import DraftClients
from verify_service.drafts import Drafts
from verify_service.events import ALWAYS_TAKEN, Event
from verify_service.loop import VerifyLoop
from verify_service.metrics import VerifyMetrics
from verify_service.output import Mailman
from verify_service.policy import Planner, StepClock
from verify_service.prompt_archive import FILE_BYTES, PromptArchive
from verify_service.prompt_files import PromptFiles
from verify_service.servicer import VerifyServicer

logger = logging.getLogger(__name__)

SERVICE_NAME = verify_service_pb2.DESCRIPTOR.services_by_name["VerifyService"].full_name

#: How long calls may take to end once the engine has failed.
LAST_WORDS_SECONDS = 1.0

#: How long the engine's thread may take to end its step.
THREAD_SECONDS = 10.0


class VerifyWorker:
    """Start it, use `port`, drain it.

    Args:
        make_engine: loads the target; called on the engine's thread, which owns it.
        registry: where its metrics go.
        failed: set when the engine's loop fails; the process should then end.
        fresh_seed: keys the answers whose callers give no seed, and the drafts' own randomness; 64 bits.
    """

    def __init__(
        self,
        config: VerifyConfig,
        make_engine: Callable[[], Engine],
        registry: CollectorRegistry,
        failed: asyncio.Event,
        fresh_seed: Callable[[], int] = lambda: secrets.randbits(64),
    ) -> None:
        self.config = config
        self.instance_id = instance_id("verify")
        self.port = 0
        self._make_engine = make_engine
        self._metrics = VerifyMetrics(registry)
        self.failed = failed
        self._fresh_seed = fresh_seed
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[VerifyLoop] = self._loop.create_future()
        self._thread: EngineThread[Event] = EngineThread(self._make_loop, self.engine_failed, name="verify-engine")
        self._clients: DraftClients | None = None
        self._server = RpcServer(config.host, config.port)
        self._servicer: VerifyServicer | None = None
        self._archive: PromptArchive | None = None

    async def start(self) -> None:
        """Load the target, bind, connect to the drafts. Raises the error that kept it from starting."""
        self._archive = self._open_archive()
        self._thread.start()
        engine_loop = await self._ready
        model = replace(engine_loop.model, name=self.config.served_model_name or engine_loop.model.name)
        self._servicer = VerifyServicer(
            *(self.config, self.instance_id, model, self._post),
            *(lambda: engine_loop.acceptance, self._fresh_seed, self._archive),
        )
        add_VerifyServiceServicer_to_server(self._servicer, self._server.server)  # type: ignore[no-untyped-call]
        self.port = await self._server.start([SERVICE_NAME])
        hello = Hello(PROTOCOL_VERSION, self.instance_id, model, self.config.max_num_seqs)
        drafts = self.config.drafts if self.config.num_speculative_tokens else ()
        self._clients = DraftClients(drafts, hello, self._post)
        self._clients.start()
        logger.info(
            "serving %s (%s, %s, V=%d, max_model_len=%d) on %s:%d with %d draft address(es)",
            *(model.name, model.engine, model.dtype, model.vocab_size, model.max_model_len),
            *(self.config.host, self.port, len(self._clients)),
        )

    def answer(self, request: GenerateRequest) -> AsyncGenerator[Started | Committed | Finished, None]:
        """The events of one answer, taken in this process; the request is not validated again."""
        assert self._servicer is not None, "start first"
        return self._servicer.answer(request)

    async def drain(self) -> None:
        """NOT_SERVING, no new calls, finish the running ones within --shutdown-grace, stop.

        Before the target is loaded there is nothing to wait for: the engine's thread ends once it is loaded.
        """
        if self._servicer:
            if self.failed.is_set():
                grace = LAST_WORDS_SECONDS
            else:
                grace = self.config.shutdown_grace
                self._servicer.refuse()
            await self._server.drain(grace)
        if self._clients:
            await self._clients.stop()
        if self._archive:
            await asyncio.to_thread(self._archive.close)
        await asyncio.to_thread(self._thread.stop, THREAD_SECONDS if self._servicer else 0.0)

    def _open_archive(self) -> PromptArchive | None:
        config = self.config
        if config.collect_prompts is None:
            return None
        most = config.collect_max_mib << 20
        return PromptArchive(
            PromptFiles(config.collect_prompts, most),
            file_bytes=min(FILE_BYTES, most // 4),
            fraction=config.collect_fraction,
            count=lambda outcome, count: self._metrics.collected.labels(outcome).inc(count),
        )

    def _post(self, event: Event) -> None:
        self._thread.post(event, always=isinstance(event, ALWAYS_TAKEN))

    def _make_loop(self) -> VerifyLoop:
        """On the engine's thread."""
        config, metrics = self.config, self._metrics
        engine = self._make_engine()
        _check_step_budget(config, engine.max_batched_tokens)
        clock = StepClock()
        window = config.window if config.num_speculative_tokens else 0
        loop = VerifyLoop(
            engine=engine,
            drafts=Drafts(
                model=engine.info,
                window=window,
                send=self._send,
                clock=clock,
                metrics=metrics,
                rng=random.Random(self._fresh_seed()),
            ),
            planner=Planner(config.schedule, config.num_speculative_tokens, clock),
            clock=clock,
            mailman=Mailman(self._loop),
            metrics=metrics,
            instance_id=self.instance_id,
            poll=self._thread.drain_into,
        )
        self._loop.call_soon_threadsafe(self._start_serving, loop)
        return loop

    def _start_serving(self, loop: VerifyLoop) -> None:
        if not self._ready.done():  # nobody waits any more if the worker was told to stop meanwhile
            self._ready.set_result(loop)

    def _send(self, steps: Mapping[int, VerifierStep]) -> None:
        if self._clients:
            self._clients.send(steps)

    def engine_failed(self, error: Exception) -> None:
        """The engine is of no use any more; on any thread."""
        self._loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: Exception) -> None:
        if not self._ready.done():
            self._ready.set_exception(error)
        if self._servicer:
            self._servicer.fail(error)
        self.failed.set()


def _check_step_budget(config: VerifyConfig, budget: int) -> None:
    """Batch-invariant mode bounds a step by what the kernels allow; a warning where somebody asked for more.

    Raises InvalidArgument where a step could not hold a token of each session: the youngest would wait for the oldest.
    """
    if budget < config.max_num_seqs:
        raise InvalidArgument(
            "--max-num-seqs", f"must be at most {budget}, the tokens of a step here, got {config.max_num_seqs}"
        )
    if config.batch_invariant and budget < config.max_num_batched_tokens:
        asked = "max_num_batched_tokens" in config.model_fields_set
        logger.log(
            logging.WARNING if asked else logging.INFO,
            "--batch-invariant: a step takes at most %d tokens here, not --max-num-batched-tokens = %d",
            *(budget, config.max_num_batched_tokens),
        )
