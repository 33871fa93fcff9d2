"""What draftwire itself costs: `python -m bench.overhead`.

A verify worker on the fake engine (no model, a forward takes nothing), a perfect draft that lives here, and callers in
processes of their own. The time from the moment that the draft's message with K proposals for every session is written
to the moment that the answering commit is read is the cost of one verify step: gRPC both ways, conversion, the session
protocol, scheduling, verification, and the callers' streams. Bytes on the wire are those of the same messages.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import median
from typing import Any

import grpc
import torch

from draftwire.cli.processes import ServiceProcess
from draftwire.fake_model import FakeModel
from draftwire.rpc.client import connect
from draftwire.rpc.convert_draft import drafter_message_to_protos, verifier_message_from_proto
from draftwire.rpc.convert_verify import event_from_proto, generate_request_to_proto
from draftwire.rpc.server import RpcServer
from draftwire.sampling import DrawKey, draw
from draftwire.session import PROTOCOL_VERSION, DrafterStep, Hello, Proposal, VerifierStep
from draftwire.types import (
    DraftToken,
    Finished,
    GenerateRequest,
    ModelInfo,
    SamplingParams,
    VerificationMode,
)
from draftwire.v1 import draft_service_pb2 as pb
from draftwire.v1.draft_service_pb2_grpc import DraftServiceServicer, add_DraftServiceServicer_to_server
from draftwire.v1.verify_service_pb2_grpc import VerifyServiceStub

VOCAB, K = 512, 4
MODEL = FakeModel(vocab_size=VOCAB, max_model_len=1 << 20)
TARGET = f"fake:vocab_size={VOCAB},max_model_len={MODEL.max_model_len}"
Context = grpc.aio.ServicerContext[Any, Any]


class PerfectDraft(DraftServiceServicer):
    """Answers every step of the verifier with K right proposals for each of its sessions, and times the answer.

    Args:
        sessions: how many must be open before times are kept.
    """

    def __init__(self, sessions: int) -> None:
        self._sessions = sessions
        self._drafted: dict[int, int] = {}  # session -> first position that was not proposed yet
        self.seconds: list[float] = []

    async def Speculate(
        self, requests: AsyncIterator[pb.SpeculateRequest], context: Context
    ) -> AsyncIterator[pb.SpeculateResponse]:
        """The stream: one message in, one message out."""
        info = ModelInfo("perfect", f"fake-{VOCAB}", VOCAB, MODEL.max_model_len, engine="bench")
        yield drafter_message_to_protos(Hello(PROTOCOL_VERSION, "bench", info, 1024))[0]
        written = 0.0
        async for request in requests:
            message, _ = verifier_message_from_proto(request)
            if not isinstance(message, VerifierStep):
                continue
            if len(message.commits) == self._sessions and written:
                self.seconds.append(time.perf_counter() - written)
            proposals = self._propose(message)
            if proposals:
                (reply,) = drafter_message_to_protos(DrafterStep(proposals=proposals))
                written = time.perf_counter()
                yield reply

    def _propose(self, step: VerifierStep) -> tuple[Proposal, ...]:
        said = [(opening.session_id, 0, opening.token_ids) for opening in step.opens]
        said += [(commit.session_id, commit.position, commit.token_ids) for commit in step.commits]
        for close in step.closes:
            self._drafted.pop(close.session_id, None)
        proposals = []
        for session, position, tokens in said:
            committed = position + len(tokens)
            start = max(committed, self._drafted.get(session, 0))
            guesses = tuple(
                DraftToken((tokens[-1] + 1 + where - committed) % VOCAB) for where in range(start, committed + K)
            )
            if guesses:
                self._drafted[session] = committed + K
                proposals.append(Proposal(session, 0, start, guesses))
        return tuple(proposals)


async def measure(sessions: int, tokens: int) -> dict[str, float]:
    """Milliseconds of one verify step with `sessions` sessions: median and 95th percentile."""
    server, draft = RpcServer("127.0.0.1", 0), PerfectDraft(sessions)
    add_DraftServiceServicer_to_server(draft, server.server)  # type: ignore[no-untyped-call]
    port = await server.start(["draftwire.v1.DraftService"])
    with tempfile.TemporaryDirectory() as logs:
        flags = {
            "target": TARGET,
            "port": 0,
            "metrics_port": 0,
            "drafts": f"127.0.0.1:{port}",
            "num_speculative_tokens": K,
            "schedule": "lockstep",
            "max_num_seqs": sessions,
            "threads": 1,
        }
        verify = ServiceProcess("verify worker", "verify_service", flags, Path(logs, "verify.log"))
        try:
            await verify.start()
            caller = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "bench.overhead", "call", verify.address, str(sessions), str(tokens))
            )
            if await caller.wait():
                raise RuntimeError(f"the callers failed: {verify.last_words()}")
        finally:
            await verify.stop()
            await server.drain(0)
    steady = sorted(draft.seconds[len(draft.seconds) // 5 :])
    return {
        "sessions": sessions,
        "steps": len(steady),
        "median_ms": round(1000 * median(steady), 3),
        "p95_ms": round(1000 * steady[int(0.95 * len(steady))], 3),
    }


async def call(address: str, sessions: int, tokens: int) -> None:
    """The callers: `sessions` answers of `tokens` tokens at once."""
    async with connect(address) as channel:
        stub = VerifyServiceStub(channel)  # type: ignore[no-untyped-call]

        async def one(index: int) -> None:
            request = GenerateRequest(
                f"c{index}", (index,), max_tokens=tokens, sampling=SamplingParams(temperature=0.0)
            )
            async for event in stub.Generate(generate_request_to_proto(request)):
                if isinstance(event_from_proto(event), Finished):
                    return

        await asyncio.gather(*map(one, range(sessions)))


def wire_bytes(sessions: int, mode: VerificationMode, vocab_size: int = 49152) -> float:
    """Bytes of a proposals message per drafted token: one token for each session, from random logits."""
    logits = torch.randn(sessions, vocab_size, generator=torch.Generator().manual_seed(1)) * 2
    keys = [DrawKey(SamplingParams(), mode, 7, 0, 100, session) for session in range(sessions)]
    proposals = tuple(Proposal(1000 + index, 3, 700, (token,)) for index, token in enumerate(draw(logits, keys)))
    (message,) = drafter_message_to_protos(DrafterStep(proposals=proposals))
    return round(message.ByteSize() / sessions, 1)


async def main() -> None:
    """Print one JSON object."""
    report = {
        "verify_step": [await measure(1, 5000), await measure(64, 1500)],
        "bytes_per_drafted_token": {
            mode.value: {str(sessions): wire_bytes(sessions, mode) for sessions in (1, 64)} for mode in VerificationMode
        },
    }
    print(json.dumps(report))


if __name__ == "__main__":
    if sys.argv[1:2] == ["call"]:
        asyncio.run(call(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
    else:
        asyncio.run(main())
