"""Runs prompts through a gateway and adds up what came back."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median, quantiles

import grpc

from draftwire.cli.client import Transcript, stream
from draftwire.cli.stack import samples
from draftwire.rpc.client import connect
from draftwire.v1 import gateway_service_pb2 as pb
from draftwire.v1.sampling_pb2 import SamplingParams
from draftwire.v1.verify_service_pb2 import SpeculationParams
from verify_service.policy import StepTimes


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt of the workload."""

    kind: str
    prompt_token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Numbers:
    """Speed and speculation over some answers; an answer decodes from its first event with tokens on."""

    tokens_per_second: float
    acceptance_rate: float
    tokens_per_step: float


@dataclass(slots=True)
class Result:
    """What one configuration answered."""

    answers: list[tuple[Task, Transcript]] = field(default_factory=list)

    @property
    def acceptance(self) -> float:
        """accepted / tested over all answers."""
        return _numbers([transcript for _, transcript in self.answers]).acceptance_rate

    def summary(self) -> dict[str, float]:
        """The numbers that a report shows; latencies in seconds."""
        transcripts = [transcript for _, transcript in self.answers]
        latencies = [latency for transcript in transcripts for latency in transcript.inter_token_latencies()]
        return {
            "time_to_first_token": median(transcript.time_to_first_token for transcript in transcripts),
            "inter_token_latency_p50": median(latencies),
            "inter_token_latency_p95": quantiles(latencies, n=20)[18],
            **asdict(_numbers(transcripts)),
        }

    def by_kind(self) -> dict[str, Numbers]:
        """Speed and speculation for each kind of prompt."""
        kinds = dict.fromkeys(task.kind for task, _ in self.answers)
        return {kind: _numbers([made for task, made in self.answers if task.kind == kind]) for kind in kinds}

    def recording(self) -> str:
        """The answers as JSON lines for the replay drafter."""
        return "".join(
            json.dumps({"prompt_token_ids": list(task.prompt_token_ids), "output_token_ids": transcript.token_ids})
            + "\n"
            for task, transcript in self.answers
        )


def _numbers(transcripts: Sequence[Transcript]) -> Numbers:
    tested = sum(transcript.speculation.tested_tokens for transcript in transcripts)
    accepted = sum(transcript.speculation.accepted_tokens for transcript in transcripts)
    steps = sum(transcript.speculation.steps for transcript in transcripts)
    committed = sum(transcript.speculation.committed_tokens for transcript in transcripts)
    return Numbers(
        tokens_per_second=median(made.decode_tokens / made.decode_seconds for made in transcripts),
        acceptance_rate=accepted / tested if tested else 0.0,
        tokens_per_step=committed / steps if steps else 0.0,
    )


async def ask(
    channel: grpc.aio.Channel,
    prompt_token_ids: Sequence[int],
    *,
    max_tokens: int,
    temperature: float,
    speculation: bool = True,
) -> Transcript:
    """One answer. End-of-sequence ids are ignored, so that every configuration does the same work."""
    request = pb.GatewayServiceGenerateRequest(
        token_ids=pb.TokenIds(ids=prompt_token_ids),
        max_tokens=max_tokens,
        sampling=SamplingParams(temperature=temperature),
        ignore_eos=True,
        speculation=SpeculationParams(disabled=not speculation),
    )
    transcript = Transcript()
    async for _ in stream(channel, request, transcript):
        pass
    return transcript


async def run_all(
    address: str,
    tasks: Sequence[Task],
    *,
    speculation: Sequence[bool],
    repeats: int,
    max_tokens: int,
    temperature: float,
) -> list[Result]:
    """Every task, one after another, `repeats` times, after one that warms up.

    Returns a result for each entry of `speculation`; they take turns, so that a slow moment of the machine hits all.
    """
    results = [Result() for _ in speculation]
    async with connect(address) as channel:
        for speculate in speculation:
            await ask(channel, tasks[0].prompt_token_ids, max_tokens=32, temperature=temperature, speculation=speculate)
        for _ in range(repeats):
            for task in tasks:
                for result, speculate in zip(results, speculation, strict=True):
                    transcript = await ask(
                        channel,
                        task.prompt_token_ids,
                        max_tokens=max_tokens,
                        temperature=temperature,
                        speculation=speculate,
                    )
                    result.answers.append((task, transcript))
    return results


def estimated_times(metrics_port: int) -> StepTimes:
    """The step times that a verify worker has measured, from its metrics."""
    exported = samples(metrics_port, "draftwire_verify_estimated_seconds")
    parts = {sample.labels["part"]: sample.value for sample in exported}
    return StepTimes(**{name: parts.get(name, 0.0) for name in StepTimes.__slots__})  # none where nothing speculates
