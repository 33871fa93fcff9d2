"""VerifyService on the wire: convert, call, convert."""

import logging
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import grpc

from draftwire.errors import ResourceExhausted, Unavailable
from draftwire.rpc.convert import model_info_to_proto
from draftwire.rpc.convert_verify import event_to_proto, generate_request_from_proto
from draftwire.rpc.status import errors_as_status
from draftwire.types import Committed, Finished, GenerateRequest, ModelInfo, Started
from draftwire.v1 import verify_service_pb2 as pb
from draftwire.v1.verify_service_pb2_grpc import VerifyServiceServicer
from draftwire.validate import validate_request
from verify_service.config import VerifyConfig
from verify_service.events import Cancel, Event, Submit, Wake
from verify_service.generation import Generation
from verify_service.output import Output

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]


class VerifyServicer(VerifyServiceServicer):
    """Args:
    model: the target.
    post: hands an event to the engine's thread.
    acceptance: the worker's acceptance rate, where a new session starts.
    """

    def __init__(
        self,
        config: VerifyConfig,
        instance_id: str,
        model: ModelInfo,
        post: Callable[[Event], None],
        acceptance: Callable[[], float],
    ) -> None:
        self._config = config
        self._instance_id = instance_id
        self._model = model
        self._post = post
        self._acceptance = acceptance
        self._outputs: set[Output] = set()
        self._refusal: Unavailable | None = None

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

    async def Generate(
        self, request: pb.VerifyServiceGenerateRequest, context: Context
    ) -> AsyncIterator[pb.VerifyServiceGenerateResponse]:
        """One answer. A caller that goes away, or whose deadline passes, cancels this coroutine and frees its slot."""
        async with errors_as_status(context):
            wanted = generate_request_from_proto(request)
            validate_request(wanted, self._model, self._config.num_speculative_tokens)
            if not wanted.request_id:
                wanted = replace(wanted, request_id=f"gen-{secrets.token_hex(8)}")
            async for event in self.answer(wanted):
                yield event_to_proto(event)

    async def answer(self, request: GenerateRequest) -> AsyncIterator[Started | Committed | Finished]:
        """The events of one validated request. Raises ResourceExhausted, Unavailable; closing it frees the slot."""
        if self._refusal:
            raise self._refusal
        most = self._config.max_num_seqs + self._config.max_waiting
        if len(self._outputs) >= most:
            raise ResourceExhausted(f"{most} requests run or wait already (--max-num-seqs + --max-waiting)")
        output = Output(self._config.max_pending_tokens)
        generation = Generation.of(request, self._model, output, secrets.randbits(64), self._acceptance())
        self._outputs.add(output)
        try:
            self._post(Submit(generation))
            while True:
                was_full = output.full
                event = await output.get()
                yield event
                if isinstance(event, Finished):
                    return
                if was_full:
                    self._post(Wake())
        finally:
            self._outputs.discard(output)
            self._post(Cancel(generation))

    def refuse(self) -> None:
        """Take no new calls (drain)."""
        self._refusal = Unavailable("the verify worker drains")

    def fail(self, error: Exception) -> None:
        """The engine is gone: every answer ends, and no new one begins; on the event loop."""
        self._refusal = Unavailable(f"the engine failed: {type(error).__name__}")
        for output in self._outputs:
            output.put(self._refusal)
            output.wake()
