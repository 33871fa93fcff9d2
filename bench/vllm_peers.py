"""`python -m bench.vllm_peers`: vLLM plain, with its own drafts, and with remote ones, beside the native engine.

Every mode is a verify worker behind a gateway, with the same prompts, one caller and the same K, so that only what
decodes differs. On a small machine mind what each mode keeps busy: vLLM's engine core spins on a core of its own beside
the worker that computes, and a remote draft has to share it.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file

from bench.load import Result, Task, run_all
from bench.report import machine
from bench.workloads import PROMPTS
from distill.build import load_tokenizer as load_tokenizer_of
from distill.export import full_model
from draftwire.cli.processes import ServiceProcess, free_port
from draftwire.engine import trimmed
from draftwire.errors import ModelError
from draftwire.models import EMBEDDED_DRAFT, EMBEDDED_TARGET, resolve
from gateway.requests import ChatMessage
from gateway.tokenizer import load_tokenizer

#: The draft worker's share of the machine, and the target's.
DRAFT_CORE, TARGET_CORE = 1, 0


@dataclass(frozen=True, slots=True)
class Mode:
    """One row of the table.

    Attributes:
        flags: of the verify worker, beyond the common ones.
        environment: of the verify worker.
        remote: whether a draft worker runs.
        cores: what is kept busy.
    """

    name: str
    cores: str
    flags: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    remote: bool = False


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
    return [
        Mode("vLLM, plain", "1 + engine core", vllm(), bound),
        Mode("vLLM, plain, both cores", "2, shared with engine core", vllm(), both),
        Mode("vLLM, its n-gram", "1 + engine core", vllm(ngram), bound),
        Mode("vLLM, its draft model", "1 + engine core", vllm(model), bound),
        Mode("vLLM, remote drafts", "1 + engine core and draft", vllm(), bound, remote=True),
        Mode("native, plain", "1", native),
        Mode("native, remote drafts", "1 + draft", native, remote=True),
    ]


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a mode did."""

    mode: Mode
    tokens_per_second: float
    acceptance: float
    tokens_per_step: float


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
        await asyncio.sleep(3)  # for the gateway and the draft worker to be found
        results = await run_all(
            gateway.address,
            tasks,
            speculation=[True],
            repeats=1,
            max_tokens=options.max_tokens,
            temperature=options.temperature,
        )
        own = None if mode.remote else await asyncio.to_thread(vllm_counters, verify.metrics_port)
        return _numbers(mode, results[0], own)
    finally:
        for service in (gateway, *services):
            await service.stop(20)


def _numbers(mode: Mode, result: Result, own: Mapping[str, float] | None) -> Numbers:
    summary = result.summary()
    acceptance, tokens_per_step = summary["acceptance_rate"], summary["tokens_per_step"]
    if own and own["drafted"]:
        # vLLM counts no first rejections; where every step drafts K they are the steps less the K-th tokens accepted.
        acceptance = own["accepted"] / (own["accepted"] + own["steps"] - own["all_accepted"])
        tokens_per_step = own["generated"] / (own["generated"] - own["accepted"])
    return Numbers(mode, summary["tokens_per_second"], acceptance, tokens_per_step)


def vllm_counters(port: int) -> dict[str, float]:
    """vLLM's own counts of its own drafts; zeros where it has none."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
        families = text_string_to_metric_families(reply.read().decode())
    samples = [sample for family in families for sample in family.samples]

    def total(name: str) -> float:
        return sum(sample.value for sample in samples if sample.name == f"vllm:{name}_total")

    by_position = [
        (int(sample.labels["position"]), sample.value)
        for sample in samples
        if sample.name == "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    ]
    return {
        "steps": total("spec_decode_num_drafts"),
        "drafted": total("spec_decode_num_draft_tokens"),
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
    made = Table(title="one caller; cores: what computes")
    for name in ("mode", "cores", "tokens/s", "acceptance", "tokens/step"):
        made.add_column(name)
    for row in rows:
        figures = (f"{row.tokens_per_second:.2f}", f"{row.acceptance:.3f}", f"{row.tokens_per_step:.2f}")
        made.add_row(row.mode.name, row.mode.cores, *figures)
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
