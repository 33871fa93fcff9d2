"""What draftwire itself costs: `python -m bench.overhead`.

A verify worker on the fake engine (no model, a forward takes nothing) runs in a process of its own, with its answers
taken there, and a perfect draft lives here. The time from writing the draft's message with K proposals for every
session to reading the commit that answers it is one verify step with its transport: gRPC both ways, conversion, the
session protocol, scheduling, verification. The same messages answered by a process that does nothing else give the
transport alone; the difference is our own time. Bytes on the wire are those of the draft's messages.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from statistics import median
from typing import Any

import grpc
import torch
from prometheus_client import CollectorRegistry

from draftwire.engine.fake import FakeEngine
from draftwire.fake_model import FakeModel
from draftwire.rpc.client import connect
from draftwire.rpc.convert_draft import (
    drafter_message_to_protos,
    verifier_message_from_proto,
    verifier_message_to_protos,
)
from draftwire.rpc.server import RpcServer
from draftwire.sampling import DrawKey, draw
from draftwire.service import SWITCH_INTERVAL
from draftwire.session import PROTOCOL_VERSION, Commit, DrafterStep, Hello, Open, Proposal, VerifierStep
from draftwire.types import DraftToken, GenerateRequest, ModelInfo, SamplingParams, VerificationMode
from draftwire.v1 import draft_service_pb2 as pb
from draftwire.v1.draft_service_pb2_grpc import (
    DraftServiceServicer,
    DraftServiceStub,
    add_DraftServiceServicer_to_server,
)
from verify_service.config import VerifyConfig
from verify_service.worker import VerifyWorker

VOCAB, K = 512, 4
MODEL = FakeModel(vocab_size=VOCAB, max_model_len=1 << 20)
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


async def measure(sessions: int, steps: int) -> dict[str, float]:
    """Milliseconds of one verify step of `sessions` sessions: with its transport, the transport alone, our own."""
    step = await _time("serve", sessions, steps)
    transport = await _time("echo", sessions, steps)
    return {
        "sessions": sessions,
        "steps": len(step),
        "step_ms": _milliseconds(step),
        "transport_ms": _milliseconds(transport),
        "own_ms": round(_milliseconds(step) - _milliseconds(transport), 3),
    }


def _milliseconds(seconds: list[float]) -> float:
    """The median, without the first fifth, which warms up."""
    return round(1000 * median(seconds[len(seconds) // 5 :]), 3)


async def _time(other_side: str, sessions: int, steps: int) -> list[float]:
    """Seconds of each step against the other side, which is this module again in another process."""
    server, draft = RpcServer("127.0.0.1", 0), PerfectDraft(sessions)
    add_DraftServiceServicer_to_server(draft, server.server)  # type: ignore[no-untyped-call]
    port = await server.start(["draftwire.v1.DraftService"])
    command = (sys.executable, "-m", "bench.overhead", other_side, str(port), str(sessions), str(steps))
    process = await asyncio.create_subprocess_exec(*command)
    failed = await process.wait()
    await server.drain(0)
    if failed:
        raise RuntimeError(f"{' '.join(command)} failed")
    return draft.seconds


async def serve(port: int, sessions: int, steps: int) -> None:
    """A verify worker whose answers are taken in its own process."""
    config = VerifyConfig(
        port=0,
        drafts=(f"127.0.0.1:{port}",),
        num_speculative_tokens=K,
        schedule="lockstep",
        max_num_seqs=sessions,
        shutdown_grace=0,
    )
    registry = CollectorRegistry()
    worker = VerifyWorker(config, lambda: FakeEngine(MODEL, num_slots=sessions), registry, asyncio.Event())
    await worker.start()
    async with asyncio.timeout(10):
        while registry.get_sample_value("draftwire_verify_draft_workers") != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def one(index: int) -> None:
        request = GenerateRequest(
            str(index), (index,), max_tokens=steps * (K + 1), sampling=SamplingParams(temperature=0.0)
        )
        async for _ in worker.answer(request):
            pass

    await asyncio.gather(*map(one, range(sessions)))
    await worker.drain()


async def echo(port: int, sessions: int, steps: int) -> None:
    """Answers each of the draft's messages with commits of the same size, and nothing else."""
    info = ModelInfo("echo", f"fake-{VOCAB}", VOCAB, MODEL.max_model_len)
    opens = tuple(
        Open(index, (index,), SamplingParams(), VerificationMode.REJECTION, 1, 0, K) for index in range(sessions)
    )
    async with connect(f"127.0.0.1:{port}") as channel:
        call = DraftServiceStub(channel).Speculate()  # type: ignore[no-untyped-call]
        for message in (Hello(PROTOCOL_VERSION, "echo", info, sessions), VerifierStep(opens)):
            await call.write(verifier_message_to_protos(message)[0])
        await call.read()
        for step in range(steps):
            await call.read()
            tokens = tuple(range(K + 1))
            commits = tuple(Commit(index, step + 1, 1 + step * (K + 1), tokens, K) for index in range(sessions))
            await call.write(verifier_message_to_protos(VerifierStep((), commits))[0])
        call.cancel()


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
        "verify_step": [await measure(1, 2000), await measure(64, 400)],
        "bytes_per_drafted_token": {
            mode.value: {str(sessions): wire_bytes(sessions, mode) for sessions in (1, 64)} for mode in VerificationMode
        },
    }
    print(json.dumps(report))


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_INTERVAL)
    match sys.argv[1:]:
        case [("serve" | "echo") as name, *numbers]:
            asyncio.run({"serve": serve, "echo": echo}[name](*map(int, numbers)))
        case _:
            asyncio.run(main())
