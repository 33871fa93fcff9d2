"""A verify worker whose target runs on vLLM: the same VerifyService, for targets that outgrow one machine.

The engine core, and with it the plug-in that takes drafts, is a process of vLLM's; this one speaks gRPC and hands the
requests over.
"""

import asyncio
import contextlib
import logging
import threading
import time
from dataclasses import replace
from typing import Any

import psutil
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM

from draftwire import service
from draftwire.errors import ModelError
from draftwire.rpc.server import RpcServer
from draftwire.types import ModelInfo
from draftwire.v1 import verify_service_pb2
from draftwire.v1.verify_service_pb2_grpc import add_VerifyServiceServicer_to_server
from draftwire.vllm_plugin.answers import VllmServicer
from draftwire.vllm_plugin.target import target_info
from verify_service.config import VerifyConfig

logger = logging.getLogger(__name__)

SERVICE_NAME = verify_service_pb2.DESCRIPTOR.services_by_name["VerifyService"].full_name

#: How often it is looked whether vLLM's processes are still there, and whether a start that is given up has ended.
WATCH_SECONDS, END_SECONDS = 1.0, 0.1

#: How long calls may take to end once the engine has failed, and vLLM's processes to end.
LAST_WORDS_SECONDS, STOP_SECONDS = 1.0, 20.0


class VllmWorker:
    """Start it, use `port`, drain it.

    Args:
        arguments: of vLLM's engine.
        failed: set when vLLM's engine fails; the process should then end.
    """

    def __init__(self, config: VerifyConfig, arguments: dict[str, Any], failed: asyncio.Event) -> None:
        self.config = config
        self.instance_id = service.instance_id("verify")
        self.port = 0
        self.failed = failed
        self._arguments = arguments
        self._server = RpcServer(config.host, config.port)
        self._starting: _Starting | None = None
        self._llm: AsyncLLM | None = None
        self._servicer: VllmServicer | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start vLLM, then serve. Raises ModelError with vLLM's reason if it does not start."""
        self._starting = _Starting(self._arguments)
        try:
            self._llm = await self._starting.llm
        except (ValueError, TypeError, OSError, RuntimeError) as error:
            raise ModelError(f"vLLM does not start: {error}") from error
        model = self._model()
        self._servicer = VllmServicer(self.config, self.instance_id, model, self._llm)
        add_VerifyServiceServicer_to_server(self._servicer, self._server.server)  # type: ignore[no-untyped-call]
        self.port = await self._server.start([SERVICE_NAME])
        self._watch = asyncio.create_task(self._watch_engine())
        logger.info(
            "serving %s (vLLM, %s, V=%d, max_model_len=%d) on %s:%d with %d draft address(es)",
            *(model.name, model.dtype, model.vocab_size, model.max_model_len),
            *(self.config.host, self.port, len(self.config.drafts)),
        )

    async def drain(self) -> None:
        """NOT_SERVING, no new calls, finish the running ones within --shutdown-grace, stop."""
        if self._servicer:
            self._servicer.refuse()
            await self._server.drain(LAST_WORDS_SECONDS if self.failed.is_set() else self.config.shutdown_grace)
        if self._watch:
            self._watch.cancel()
        if self._llm:
            await asyncio.to_thread(self._llm.shutdown, STOP_SECONDS)
        elif self._starting:
            await asyncio.to_thread(self._starting.end)

    def _model(self) -> ModelInfo:
        assert self._llm is not None
        model = target_info(self._llm.vllm_config)
        return replace(model, name=self.config.served_model_name or model.name)

    async def _watch_engine(self) -> None:
        assert self._llm is not None
        while not self._llm.errored:  # noqa: ASYNC110  there is nothing to wait for
            await asyncio.sleep(WATCH_SECONDS)
        logger.error("vLLM's engine failed")
        self.failed.set()


class _Starting:
    """A start of vLLM, on a thread that does not keep the process from ending; `llm` is its future."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._loop = asyncio.get_running_loop()
        self.llm: asyncio.Future[AsyncLLM] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(arguments,), name="vllm-start", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Kill vLLM's processes, which would not end with us, until the start makes no more; on another thread."""
        deadline = time.monotonic() + STOP_SECONDS
        running = True
        while running and time.monotonic() < deadline:
            self._thread.join(END_SECONDS)
            running = self._thread.is_alive()
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()

    def _run(self, arguments: dict[str, Any]) -> None:
        llm, error = None, None
        try:
            llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
        except BaseException as caught:
            error = caught
        self._loop.call_soon_threadsafe(self._settle, llm, error)

    def _settle(self, llm: Any, error: BaseException | None) -> None:
        if not self.llm.done():
            self.llm.set_exception(error) if error else self.llm.set_result(llm)
