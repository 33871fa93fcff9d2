"""VerifyService on the wire: convert, call, convert."""

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import grpc

from draftwire.errors import EngineError, ResourceExhausted, Unavailable
from draftwire.rpc.convert import model_info_to_proto
from draftwire.rpc.convert_verify import event_to_proto, generate_request_from_proto
from draftwire.rpc.stall import written
from draftwire.rpc.status import errors_as_status
from draftwire.types import Committed, Finished, GenerateRequest, ModelInfo, Started
from draftwire.v1 import verify_service_pb2 as pb
from draftwire.v1.verify_service_pb2_grpc import VerifyServiceServicer
from draftwire.validate import validate_request
from verify_service.config import VerifyConfig
from verify_service.events import Cancel, Event, Submit, Wake
from verify_service.generation import Generation
from verify_service.output import Output
from verify_service.prompt_archive import PromptArchive

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]


class WireServicer(VerifyServiceServicer):
    """The calls, whatever makes the answers: a subclass does.

    Args:
        model: the target.
        archive: keeps a sample of the answers; None = nothing is kept.
    """

    def __init__(
        self, config: VerifyConfig, instance_id: str, model: ModelInfo, archive: PromptArchive | None = None
    ) -> None:
        self._config = config
        self._instance_id = instance_id
        self._model = model
        self._archive = archive

    def answer(self, request: GenerateRequest) -> AsyncGenerator[Started | Committed | Finished, None]:
        """The events of one validated request; closing it ends the answer."""
        raise NotImplementedError

    async def GetModel(
        self, request: pb.VerifyServiceGetModelRequest, context: Context
    ) -> pb.VerifyServiceGetModelResponse:
        """The target."""
        return pb.VerifyServiceGetModelResponse(
            model=model_info_to_proto(self._model),
            instance_id=self._instance_id,
            batch_invariant=self._config.batch_invariant,
            max_sessions=self._config.max_num_seqs,
        )

    async def Generate(self, request: pb.VerifyServiceGenerateRequest, context: Context) -> None:
        """One answer. A caller that goes away, or whose deadline passes, cancels this coroutine and frees its slot."""
        async with errors_as_status(context):
            wanted = generate_request_from_proto(request)
            validate_request(wanted, self._model, self._config.num_speculative_tokens)
            if not wanted.request_id:
                wanted = replace(wanted, request_id=f"gen-{secrets.token_hex(8)}")
            record = self._archive.begin(wanted) if self._archive else None
            try:
                async with aclosing(self.answer(wanted)) as events:
                    async for event in events:
                        await written(context.write(event_to_proto(event)), self._config.stall_seconds, "answer")
                        if record:
                            record.saw(event)
            except asyncio.CancelledError:
                if record:
                    record.over()
                raise


class VerifyServicer(WireServicer):
    """Answers from an engine of ours, on its thread.

    Args:
        post: hands an event to the engine's thread.
        acceptance: the worker's acceptance rate, where a new session starts.
        fresh_seed: keys the answers whose callers give no seed, 64 bits.
    """

    def __init__(
        self,
        config: VerifyConfig,
        instance_id: str,
        model: ModelInfo,
        post: Callable[[Event], None],
        acceptance: Callable[[], float],
        fresh_seed: Callable[[], int],
        archive: PromptArchive | None = None,
    ) -> None:
        super().__init__(config, instance_id, model, archive)
        self._post = post
        self._acceptance = acceptance
        self._fresh_seed = fresh_seed
        self._outputs: set[Output] = set()
        self._refusal: Unavailable | None = None

    async def answer(self, request: GenerateRequest) -> AsyncGenerator[Started | Committed | Finished, None]:
        """The events of one validated request. Raises ResourceExhausted, Unavailable; closing it frees the slot."""
        if self._refusal:
            raise self._refusal
        most = self._config.max_num_seqs + self._config.max_waiting
        if len(self._outputs) >= most:
            raise ResourceExhausted(f"{most} requests run or wait already (--max-num-seqs + --max-waiting)")
        output = Output(self._config.max_pending_tokens, resume=lambda: self._post(Wake()))
        generation = Generation.of(request, self._model, output, self._fresh_seed(), self._acceptance())
        self._outputs.add(output)
        try:
            self._post(Submit(generation))
            event = None
            while not isinstance(event, Finished):
                event = await output.get()
                yield event
        finally:
            self._outputs.discard(output)
            self._post(Cancel(generation))

    def refuse(self) -> None:
        """Take no new calls (drain)."""
        self._refusal = Unavailable("the verify worker drains")

    def fail(self, error: Exception) -> None:
        """The engine is gone: every answer ends, and no new one begins; on the event loop."""
        self._refusal = Unavailable("the engine failed and the verify worker stops")
        told = error if isinstance(error, Unavailable) else EngineError(f"the engine failed: {type(error).__name__}")
        for output in self._outputs:
            output.put(told)
            output.wake()
