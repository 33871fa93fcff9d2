"""GatewayService on the wire: convert, call, convert."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc

from draftwire.rpc.convert import model_info_to_proto
from draftwire.rpc.stall import written
from draftwire.rpc.status import errors_as_status
from draftwire.v1 import gateway_service_pb2 as pb
from draftwire.v1.gateway_service_pb2_grpc import GatewayServiceServicer
from gateway.answers import Answers
from gateway.convert import answer_to_proto, event_to_proto, request_from_proto
from gateway.metrics import GatewayMetrics
from gateway.requests import Delta, Done

Context = grpc.aio.ServicerContext[Any, Any]


class GatewayServicer(GatewayServiceServicer):
    """The gRPC front door of `Answers`.

    Args:
        stall_seconds: how long a stream's caller may refuse to read.
    """

    def __init__(self, answers: Answers, metrics: GatewayMetrics, stall_seconds: float) -> None:
        self._answers = answers
        self._metrics = metrics
        self._stall_seconds = stall_seconds

    async def Generate(
        self, request: pb.GatewayServiceGenerateRequest, context: Context
    ) -> pb.GatewayServiceGenerateResponse:
        """The whole answer."""
        async with errors_as_status(context), self._answer(request, context) as events:
            return answer_to_proto([event async for event in events])

    async def GenerateStream(self, request: pb.GatewayServiceGenerateRequest, context: Context) -> None:
        """The answer as it is produced; the next event is asked for when the one before has been written."""
        async with errors_as_status(context), self._answer(request, context) as events:
            async for event in events:
                await written(context.write(event_to_proto(event)), self._stall_seconds, "answer")

    async def ListModels(
        self, request: pb.GatewayServiceListModelsRequest, context: Context
    ) -> pb.GatewayServiceListModelsResponse:
        """The one model."""
        async with errors_as_status(context):
            return pb.GatewayServiceListModelsResponse(models=[model_info_to_proto(self._answers.model)])

    @asynccontextmanager
    async def _answer(
        self, request: pb.GatewayServiceGenerateRequest, context: Context
    ) -> AsyncIterator[AsyncGenerator[Delta | Done, None]]:
        """The events of one answer; what leaves the block ends it, and is its outcome in the metrics."""
        remaining = context.time_remaining()
        deadline = None if remaining is None else asyncio.get_running_loop().time() + remaining
        with self._metrics.request(remaining) as timer:
            wanted = request_from_proto(request)
            async with aclosing(self._answers.answer(wanted, timer, deadline)) as events:
                yield events
