"""The services as real processes on this machine, for end-to-end tests."""

import asyncio
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families
from support.timing import PATIENCE

from draftwire.cli.client import Transcript, stream
from draftwire.cli.processes import ServiceProcess
from draftwire.ports import free_port
from draftwire.rpc.client import connect
from draftwire.v1 import gateway_service_pb2 as pb
from draftwire.v1.sampling_pb2 import SamplingParams


@dataclass
class System:
    """What a test holds."""

    gateway: ServiceProcess
    verifiers: list[ServiceProcess]
    drafters: list[ServiceProcess]
    channel: grpc.aio.Channel = field(init=False)

    async def generate(self, prompt: Sequence[int], on_text=None, timeout=PATIENCE, **fields: Any) -> Transcript:
        """One answer through the gateway; `on_text(transcript)` is awaited at every event."""
        sampling = SamplingParams(temperature=fields.pop("temperature", 0.0))
        request = pb.GatewayServiceGenerateRequest(
            token_ids=pb.TokenIds(ids=prompt), sampling=sampling, **({"ignore_eos": True} | fields)
        )
        transcript = Transcript()
        async with asyncio.timeout(timeout):
            async for _ in stream(self.channel, request, transcript):
                if on_text:
                    await on_text(transcript)
        return transcript


async def metric(service: ServiceProcess, name: str, **labels: str) -> float:
    """A sample's value from the service's /metrics; 0 if it has none yet."""

    def fetch() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{service.metrics_port}/metrics", timeout=PATIENCE) as reply:
            return reply.read().decode()

    families = text_string_to_metric_families(await asyncio.to_thread(fetch))
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


async def until_metric(
    service: ServiceProcess, name: str, value: float, seconds: float = PATIENCE, **labels: str
) -> None:
    """Wait until a sample has this value."""
    async with asyncio.timeout(seconds):
        while await metric(service, name, **labels) != value:
            await asyncio.sleep(0.02)


@asynccontextmanager
async def system(
    logs: Path,
    *,
    target: str,
    draft: str | None,
    verifiers: int = 1,
    drafters: int = 1,
    verify_flags: dict[str, Any] | None = None,
    draft_flags: dict[str, Any] | None = None,
    gateway_flags: dict[str, Any] | None = None,
) -> AsyncIterator[System]:
    """Start draft workers, verify workers and a gateway; stop them at the end."""
    draft_ports = [free_port() for _ in range(drafters if draft else 0)]
    verify_ports = [free_port() for _ in range(verifiers)]
    common = {"metrics_port": 0, "shutdown_grace": 1, "threads": 1}
    made = System(
        gateway=ServiceProcess(
            "gateway",
            "gateway",
            {
                "model": target,
                "verify": [f"127.0.0.1:{port}" for port in verify_ports],
                **{"port": 0, "metrics_port": 0, "shutdown_grace": 1},
                **(gateway_flags or {}),
            },
            logs / "gateway.log",
        ),
        verifiers=[
            ServiceProcess(
                "verify worker",
                "verify_service",
                {
                    "target": target,
                    "drafts": [f"127.0.0.1:{port}" for port in draft_ports],
                    **{"port": port, **common},
                    **(verify_flags or {}),
                },
                logs / f"verify-{port}.log",
            )
            for port in verify_ports
        ],
        drafters=[
            ServiceProcess(
                "draft worker",
                "draft_service",
                {"draft": draft, "port": port, **common, **(draft_flags or {})},
                logs / f"draft-{port}.log",
            )
            for port in draft_ports
        ],
    )
    services = [made.gateway, *made.verifiers, *made.drafters]
    async with AsyncExitStack() as exits:
        for service in reversed(services):
            exits.push_async_callback(service.stop, 5.0)
        await asyncio.gather(*(service.start() for service in services))
        for verifier in made.verifiers:
            await until_metric(verifier, "draftwire_verify_draft_workers", len(draft_ports))
        made.channel = await exits.enter_async_context(connect(made.gateway.address))
        await _until_serving(made.channel)
        yield made


async def _until_serving(channel: grpc.aio.Channel) -> None:
    async with asyncio.timeout(PATIENCE):
        async for reply in health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()):
            if reply.status == health_pb2.HealthCheckResponse.SERVING:
                return
