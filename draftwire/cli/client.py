"""A small client of the gateway, for the command line and the benchmark."""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import grpc

from draftwire.rpc.convert_verify import finish_reason_from_proto, speculation_stats_from_proto, usage_from_proto
from draftwire.types import SpeculationStats, Usage
from draftwire.v1 import gateway_service_pb2 as pb
from draftwire.v1.gateway_service_pb2_grpc import GatewayServiceStub


@dataclass(slots=True)
class Transcript:
    """One answer, with when it came.

    Attributes:
        text, token_ids, usage, speculation, reason: what the gateway said.
        began: when the call was made, time.monotonic() seconds.
        arrivals: (time, number of tokens) of every event that carried tokens.
    """

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    usage: Usage = field(default_factory=lambda: Usage(0, 0))
    speculation: SpeculationStats = field(default_factory=SpeculationStats)
    reason: str = ""
    began: float = field(default_factory=time.monotonic)
    arrivals: list[tuple[float, int]] = field(default_factory=list)

    @property
    def time_to_first_token(self) -> float:
        """Seconds from the call to its first token."""
        return self.arrivals[0][0] - self.began

    @property
    def decode_seconds(self) -> float:
        """Seconds from the first event with tokens to the last."""
        return self.arrivals[-1][0] - self.arrivals[0][0]

    @property
    def decode_tokens(self) -> int:
        """Tokens that came after the first event."""
        return sum(count for _, count in self.arrivals[1:])

    def inter_token_latencies(self) -> Sequence[float]:
        """Seconds per token after the first; the tokens of one event share its distance from the one before."""
        latencies: list[float] = []
        for (before, _), (now, count) in zip(self.arrivals, self.arrivals[1:], strict=False):
            latencies += [(now - before) / count] * count
        return latencies


async def stream(
    channel: grpc.aio.Channel, request: pb.GatewayServiceGenerateRequest, transcript: Transcript
) -> AsyncIterator[str]:
    """Make the call, keep its record in `transcript` and give the text as it comes. Raises grpc.aio.AioRpcError."""
    stub = GatewayServiceStub(channel)  # type: ignore[no-untyped-call]
    transcript.began = time.monotonic()
    async for event in stub.GenerateStream(request):
        if event.HasField("delta"):
            delta = event.delta
            if delta.token_ids:
                transcript.arrivals.append((time.monotonic(), len(delta.token_ids)))
            transcript.token_ids += delta.token_ids
            transcript.text += delta.text
            yield delta.text
        else:
            done = event.done
            transcript.usage = usage_from_proto(done.usage)
            transcript.speculation = speculation_stats_from_proto(done.speculation)
            transcript.reason = finish_reason_from_proto(done.reason).value
