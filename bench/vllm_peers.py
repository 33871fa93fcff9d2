"""`python -m bench.vllm_peers`: vLLM plain, with its own drafts, and with remote ones, beside the native engine.

Every mode is a verify worker behind a gateway, with the same prompts, one caller and the same K, so that only what
decodes differs. What computes is pinned: the target to one core (or both), a remote draft to the other. vLLM's front
end and engine core are processes beside the one that computes, and go where there is room; where they take the core of
the draft they slow it down. So every row also says how many cores it kept busy while it answered, measured.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file

from bench.load import Result, Task, run_all
from bench.report import machine
from bench.workloads import PROMPTS
from distill.export import full_model
from distill.pretrained import load_tokenizer as load_tokenizer_of
from draftwire.cli.processes import ServiceProcess
from draftwire.cli.stack import samples
from draftwire.engine import trimmed
from draftwire.errors import ModelError
from draftwire.models import EMBEDDED_DRAFT, EMBEDDED_TARGET, resolve
from draftwire.ports import free_port
from draftwire.rpc.client import connect
from gateway.requests import ChatMessage
from gateway.tokenizer import load_tokenizer

#: The draft worker's share of the machine, and the target's.
DRAFT_CORE, TARGET_CORE = 1, 0

#: How long the gateway and the draft worker may take to be found once everything serves.
FIND_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Mode:
    """One row of the table.

    Attributes:
        flags: of the verify worker, beyond the common ones.
        environment: of the verify worker.
        remote: whether a draft worker runs.
        cores: what runs where.
        speculative: whether anybody drafts.
    """

    name: str
    cores: str
    flags: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    remote: bool = False
    speculative: bool = False


def modes(k: int, full_draft: str) -> list[Mode]:
    """What is compared; `full_draft` is the folder of the draft in its full form."""
    bound = {"VLLM_CPU_OMP_THREADS_BIND": str(TARGET_CORE)}
    both = {"VLLM_CPU_OMP_THREADS_BIND": f"{TARGET_CORE},{DRAFT_CORE}"}
    ngram = {"method": "ngram", "num_speculative_tokens": k, "prompt_lookup_min": 2, "prompt_lookup_max": 5}
    model = {"method": "draft_model", "model": full_draft, "num_speculative_tokens": k, "max_model_len": 1024}

    def vllm(speculative: Mapping[str, object] | None = None) -> dict[str, object]:
        arguments = {"block_size": 32} | ({"speculative_config": speculative} if speculative else {})
        return {"backend": "vllm", "vllm_args": json.dumps(arguments)}

    native = {"cpu_affinity": TARGET_CORE}
    native_both = {"cpu_affinity": (TARGET_CORE, DRAFT_CORE)}
    one, two = f"target {TARGET_CORE}", f"target {TARGET_CORE} and {DRAFT_CORE}"
    draft, others = f"draft {DRAFT_CORE}", "vLLM's others any"
    return [
        Mode("vLLM, plain", f"{one}, {others}", vllm(), bound),
        Mode("vLLM, plain, both cores", f"{two}, {others}", vllm(), both),
        Mode("vLLM, its n-gram", f"{one}, {others}", vllm(ngram), bound, speculative=True),
        Mode("vLLM, its draft model", f"{one} with the draft, {others}", vllm(model), bound, speculative=True),
        Mode("vLLM, remote drafts", f"{one}, {draft}, {others}", vllm(), bound, remote=True, speculative=True),
        Mode("native, plain", one, native),
        Mode("native, plain, both cores", two, native_both),
        Mode("native, remote drafts", f"{one}, {draft}", native, remote=True, speculative=True),
    ]


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a mode did.

    Attributes:
        busy: CPU seconds of the workers for each second of the answers, by worker.
        acceptance, tokens_per_step: None where nobody drafts.
    """

    mode: Mode
    tokens_per_second: float
    busy: Mapping[str, float]
    acceptance: float | None
    tokens_per_step: float | None


async def measure(mode: Mode, tasks: Sequence[Task], options: argparse.Namespace, logs: Path) -> Numbers:
    """Start the services of one mode, run the prompts, stop."""
    ports = {"verify": free_port(), "draft": free_port()}
    common = {"dtype": options.dtype, "max_model_len": 1024, "max_num_seqs": 4, "metrics_port": 0, "shutdown_grace": 2}
    drafts = f"127.0.0.1:{ports['draft']}" if mode.remote else None
    k = options.num_speculative_tokens if mode.remote else 0
    verify_flags = {"target": EMBEDDED_TARGET, "port": ports["verify"], "drafts": drafts, "num_speculative_tokens": k}
    verify = ServiceProcess(
        "verify worker",
        "verify_service",
        {**common, **verify_flags, **mode.flags},
        logs / "verify.log",
        mode.environment,
    )
    services = [verify]
    if mode.remote:
        draft_flags = {"draft": EMBEDDED_DRAFT, "drafter": options.drafter, "cpu_affinity": DRAFT_CORE}
        draft_flags |= {**common, "port": ports["draft"]}
        services.append(ServiceProcess("draft worker", "draft_service", draft_flags, logs / "draft.log"))
    at = {"verify": f"127.0.0.1:{ports['verify']}", "model": EMBEDDED_TARGET, "port": 0, "metrics_port": 0}
    gateway = ServiceProcess("gateway", "gateway", at, logs / "gateway.log")
    try:
        await asyncio.gather(*(service.start() for service in services))
        await gateway.start()
        await until_found(gateway, verify, remote=mode.remote)
        before = {service.name: cpu_seconds(service.pid) for service in services}
        began = time.monotonic()
        results = await run_all(
            gateway.address,
            tasks,
            speculation=[True],
            repeats=1,
            max_tokens=options.max_tokens,
            temperature=options.temperature,
        )
        wall = time.monotonic() - began
        busy = {service.name: (cpu_seconds(service.pid) - before[service.name]) / wall for service in services}
        own = None if mode.remote else await asyncio.to_thread(vllm_counters, verify.metrics_port)
        return _numbers(mode, results[0], busy, own)
    finally:
        for service in (gateway, *services):
            await service.stop(20)


async def until_found(gateway: ServiceProcess, verify: ServiceProcess, *, remote: bool) -> None:
    """Wait until the gateway has found the verify worker, and that its draft worker."""
    async with asyncio.timeout(FIND_SECONDS):
        async with connect(gateway.address) as channel:
            async for reply in health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()):
                if reply.status == health_pb2.HealthCheckResponse.SERVING:
                    break
        name = "draftwire_verify_draft_workers"
        while remote and not await asyncio.to_thread(samples, verify.metrics_port, name):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def cpu_seconds(pid: int) -> float:
    """What a process and all below it have used so far."""
    parent = psutil.Process(pid)
    times = [process.cpu_times() for process in (parent, *parent.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


def _numbers(mode: Mode, result: Result, busy: Mapping[str, float], own: Mapping[str, float] | None) -> Numbers:
    summary = result.summary()
    if not mode.speculative:
        return Numbers(mode, summary["tokens_per_second"], busy, None, None)
    acceptance, tokens_per_step = summary["acceptance_rate"], summary["tokens_per_step"]
    if own is not None:
        # vLLM counts no first rejections; where every step drafts K they are the steps less the K-th tokens accepted.
        tested = own["accepted"] + own["steps"] - own["all_accepted"]
        acceptance = own["accepted"] / tested if tested else 0.0
        tokens_per_step = own["generated"] / (own["generated"] - own["accepted"])
    return Numbers(mode, summary["tokens_per_second"], busy, acceptance, tokens_per_step)


def vllm_counters(port: int) -> dict[str, float]:
    """vLLM's own counts of its own drafts; zeros where it has none."""

    def total(name: str) -> float:
        return float(sum(sample.value for sample in samples(port, f"vllm:{name}_total")))

    by_position = [
        (int(sample.labels["position"]), sample.value)
        for sample in samples(port, "vllm:spec_decode_num_accepted_tokens_per_pos_total")
    ]
    return {
        "steps": total("spec_decode_num_drafts"),
        "accepted": total("spec_decode_num_accepted_tokens"),
        "all_accepted": max(by_position, default=(0, 0.0))[1],
        "generated": total("generation_tokens"),
    }


def write_full_draft(draft: str, folder: Path) -> Path:
    """A trimmed draft in the form that vLLM loads. Raises ModelError if it is none, or does not fit its base."""
    source = resolve(draft)
    described = trimmed.read_config(source)
    if described is None:
        raise ModelError(f"{draft}: is no trimmed draft; an ordinary model needs no export")
    full_model(described["base_model"], load_file(Path(source) / "model.safetensors")).save_pretrained(folder)
    load_tokenizer_of(described["base_model"]).save_pretrained(folder)
    return folder


def table(rows: Sequence[Numbers]) -> Table:
    """For people."""
    made = Table(title="one caller; cores: what runs where; busy: cores in use while answering, measured")
    for name in ("mode", "cores", "busy", "tokens/s", "acceptance", "tokens/step"):
        made.add_column(name)
    for row in rows:
        busy = ", ".join(f"{name.removesuffix(' worker')} {cores:.2f}" for name, cores in row.busy.items())
        acceptance = "" if row.acceptance is None else f"{row.acceptance:.3f}"
        tokens_per_step = "" if row.tokens_per_step is None else f"{row.tokens_per_step:.2f}"
        figures = (f"{row.tokens_per_second:.2f}", acceptance, tokens_per_step)
        made.add_row(row.mode.name, row.mode.cores, busy, *figures)
    return made


async def run(options: argparse.Namespace) -> None:
    """Every mode that was asked for, one after another."""
    tokenizer = load_tokenizer(EMBEDDED_TARGET)
    chosen = PROMPTS[:: max(1, len(PROMPTS) // options.prompts)][: options.prompts]
    tasks = [Task(one.kind, tokenizer.encode_chat([ChatMessage("user", one.text)])) for one in chosen]
    console = Console(file=sys.stderr, width=120)
    rows: list[Numbers] = []
    with tempfile.TemporaryDirectory(prefix="draftwire-") as temporary:
        folder = Path(temporary)
        full = await asyncio.to_thread(write_full_draft, EMBEDDED_DRAFT, folder / "full-draft")
        for mode in modes(options.num_speculative_tokens, str(full)):
            if not options.only or any(word in mode.name for word in options.only):
                rows.append(await measure(mode, tasks, options, options.logs or folder))
                console.print(f"{mode.name}: {rows[-1].tokens_per_second:.2f} tokens/s")
    console.print(table(rows))
    if options.json:
        listed = [{"mode": row.mode.name, "cores": row.mode.cores} | _figures(row) for row in rows]
        print(json.dumps({"machine": machine(), "options": _shown(options), "rows": listed}))


def _figures(row: Numbers) -> dict[str, Any]:
    return {
        "tokens_per_second": row.tokens_per_second,
        "busy_cores": dict(row.busy),
        "acceptance_rate": row.acceptance,
        "tokens_per_step": row.tokens_per_step,
    }


def _shown(options: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name, value in vars(options).items() if name not in ("logs", "json", "only")}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.vllm_peers", description=__doc__)
    parser.add_argument(
        "--prompts", type=int, default=5, help="how many of the benchmark's prompts, spread over its kinds"
    )
    parser.add_argument("--max-tokens", type=int, default=96, help="new tokens for each")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--num-speculative-tokens", type=int, default=4, help="K")
    parser.add_argument("--drafter", choices=("model", "hybrid"), default="model", help="of the remote draft worker")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--only", nargs="*", help="modes whose names contain one of these words")
    parser.add_argument("--logs", type=Path, help="folder for the services' logs")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on stdout")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
