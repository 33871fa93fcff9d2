"""A verify worker whose target runs on vLLM: the same VerifyService, for targets that outgrow one machine.

The engine core, and with it the plug-in that takes drafts, is a process of vLLM's; this one speaks gRPC and hands the
requests over.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
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

#: How often it is looked whether vLLM's processes are still there.
WATCH_SECONDS = 1.0

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
        self._llm: AsyncLLM | None = None
        self._servicer: VllmServicer | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start vLLM, then serve. Raises ModelError with vLLM's reason if it does not start."""
        try:
            self._llm = await _on_a_thread(lambda: AsyncLLM.from_engine_args(AsyncEngineArgs(**self._arguments)))
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
        else:  # it is still starting, and its processes would not end with us
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()

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


async def _on_a_thread(make: Callable[[], Any]) -> Any:
    """`make()` on a thread that does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    made: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if not made.done():
            made.set_exception(error) if error else made.set_result(result)

    def run() -> None:
        try:
            result, error = make(), None
        except BaseException as caught:
            result, error = None, caught
        loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="vllm-start", daemon=True).start()
    return await made
