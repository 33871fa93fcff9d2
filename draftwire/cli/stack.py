"""The three services on this machine: one draft worker, one verify worker, the gateway."""

import asyncio
import signal
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from draftwire.cli.processes import ServiceProcess, split_cores
from draftwire.config import EngineConfig
from draftwire.errors import Incompatible, InvalidArgument, Unavailable
from draftwire.ports import free_port
from draftwire.rpc.client import connect

Progress = Callable[[str], None]

GATEWAY_PORT, VERIFY_PORT, DRAFT_PORT = 50051, 50052, 50053

#: How long the gateway may take to find a verify worker that serves already, and that one its draft worker.
CONNECT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class StackOptions:
    """What to start; names as the services' flags.

    Attributes:
        port: the gateway's gRPC port; 0 = any free one. All others are free ones too, unless it is GATEWAY_PORT.
        logs: folder for the services' logs; None = a temporary one.
        plain_cores: for comparisons: no draft worker, and the verify worker gets "verify"'s share or "all" cores.
    """

    target: str = "embedded-target"
    draft: str = "embedded-draft"
    drafter: Literal["model", "ngram", "hybrid", "replay"] = "hybrid"
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    device: str = "cpu"
    num_speculative_tokens: int = 5
    schedule: Literal["auto", "eager", "lockstep"] = "auto"
    batch_invariant: bool = False
    max_model_len: int | None = 2048
    max_num_seqs: int = 16
    port: int = 0
    logs: Path | None = None
    plain_cores: Literal["verify", "all"] | None = None
    replay_file: Path | None = None
    acceptance: float | None = None


@dataclass(slots=True)
class Stack:
    """The running services; draft is None where nothing speculates."""

    gateway: ServiceProcess
    verify: ServiceProcess
    draft: ServiceProcess | None

    @property
    def services(self) -> list[ServiceProcess]:
        """In the order in which they stop: callers first."""
        return [self.gateway, self.verify, *([self.draft] if self.draft else [])]


@asynccontextmanager
async def stack(options: StackOptions, progress: Progress = lambda _: None) -> AsyncIterator[Stack]:
    """Start the services, and stop them in order: the gateway finishes its calls while the pools still serve them."""
    with tempfile.TemporaryDirectory(prefix="draftwire-") as temporary:
        running = _describe(options, options.logs or Path(temporary))
        try:
            await _start(running, progress)
            yield running
        finally:
            try:
                for service in running.services:
                    await service.stop()
            finally:  # a second Ctrl-C interrupts the drain; nothing may stay behind
                for service in running.services:
                    service.signal(signal.SIGKILL)


async def _start(running: Stack, progress: Progress) -> None:
    """All at once, because loading models takes longest; ready when they have found each other."""

    async def start(service: ServiceProcess) -> None:
        await service.start()
        progress(f"{service.name} on {service.address}")

    progress("loading the models")
    starting = [asyncio.create_task(start(service)) for service in running.services]
    try:
        await asyncio.gather(*starting)
    finally:  # where one cannot start, none may come up behind our back
        for task in starting:
            task.cancel()
        await asyncio.wait(starting)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await _gateway_serves(running.gateway)
            if running.draft:
                await _draft_is_used(running.verify, running.draft)
    except TimeoutError:
        words = running.verify.last_words()
        raise Unavailable(f"the services did not find each other within {CONNECT_SECONDS:g} s: {words}") from None
    except OSError as error:
        raise Unavailable(f"{running.verify.name}: {error}: {running.verify.last_words()}") from None


async def _gateway_serves(gateway: ServiceProcess) -> None:
    """It does once it can use the verify worker."""
    async with connect(gateway.address) as channel:
        async for reply in health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()):
            if reply.status == health_pb2.HealthCheckResponse.SERVING:
                return


async def _draft_is_used(verify: ServiceProcess, draft: ServiceProcess) -> None:
    """Answers would come without it, too, only slower. Raises Incompatible, with the reason, where it is refused."""
    while not await asyncio.to_thread(samples, verify.metrics_port, "draftwire_verify_draft_workers"):
        if refusal := verify.logged(f"draft worker {draft.address} refused: "):
            raise Incompatible(refusal)
        await asyncio.sleep(0.05)


def samples(metrics_port: int, name: str) -> list[Sample]:
    """The samples of a metric, as a service of this machine exports it now, that are not zero."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=5) as reply:
        families = text_string_to_metric_families(reply.read().decode())
    return [sample for family in families for sample in family.samples if sample.name == name and sample.value]


def _new_log(folder: Path, name: str) -> Path:
    """Where a service of this run logs to; the last run's log stays beside it as NAME.log.1."""
    log = folder / f"{name}.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if log.exists():
            log.replace(folder / f"{name}.log.1")
    except OSError as error:
        raise InvalidArgument("--log-dir", f"cannot be used: {error}") from None
    return log


def _describe(options: StackOptions, logs: Path) -> Stack:
    verify_cores, draft_cores = split_cores()
    if options.plain_cores == "all":
        verify_cores = sorted({*verify_cores, *draft_cores})
    usual = options.port == GATEWAY_PORT
    draft_port, verify_port = (DRAFT_PORT, VERIFY_PORT) if usual else (free_port(), free_port())
    free = {} if usual else {"metrics_port": 0}
    common = {name: getattr(options, name) for name in ("dtype", "device", "max_model_len", "max_num_seqs")}
    usually = EngineConfig.model_fields["max_num_batched_tokens"].default
    common["max_num_batched_tokens"] = max(usually, options.max_num_seqs)  # every session decodes in every step
    draft = ServiceProcess(
        "draft worker",
        "draft_service",
        {
            "port": draft_port,
            "draft": options.draft,
            "drafter": options.drafter,
            "cpu_affinity": draft_cores,
            "replay_file": options.replay_file,
            "acceptance": options.acceptance,
            **common,
            **free,
        },
        _new_log(logs, "draft"),
    )
    verify = ServiceProcess(
        "verify worker",
        "verify_service",
        {
            "port": verify_port,
            "drafts": None if options.plain_cores else f"127.0.0.1:{draft_port}",
            "target": options.target,
            "num_speculative_tokens": options.num_speculative_tokens,
            "schedule": options.schedule,
            "batch_invariant": options.batch_invariant,
            "cpu_affinity": verify_cores,
            **common,
            **free,
        },
        _new_log(logs, "verify"),
    )
    gateway = ServiceProcess(
        "gateway",
        "gateway",
        {
            "port": options.port,
            "verify": f"127.0.0.1:{verify_port}",
            "model": options.target,
            **free,
        },
        _new_log(logs, "gateway"),
    )
    return Stack(gateway, verify, None if options.plain_cores else draft)


async def until_one_ends(running: Stack) -> ServiceProcess:
    """Wait until a service ends by itself; which one."""
    waits = {asyncio.create_task(service.wait()): service for service in running.services}
    done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    return waits[done.pop()]
