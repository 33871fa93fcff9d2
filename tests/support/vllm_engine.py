"""A vLLM engine on the embedded target, plain or with remote drafts, and draft workers for it."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import torch
from support.system import metric, until_metric
from transformers import AutoModelForCausalLM, AutoTokenizer

from draftwire.cli.processes import ServiceProcess
from draftwire.models import EMBEDDED_TARGET, resolve
from draftwire.ports import free_port
from draftwire.vllm_plugin.speculation import LIMIT_ARGUMENT

# Read by vLLM when it is imported or started: one thread, not bound to a core, and a small place for keys and values.
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

K = 4
PROPOSER = "draftwire.vllm_plugin.NullProposer"
SCHEDULER = "draftwire.vllm_plugin.RemoteDraftScheduler"

TEXTS = (
    "The capital of France is",
    "Once upon a time there was",
    "def add(a, b):",
    "List three colours:",
    "Water boils at",
    "1, 2, 3, 4, 5,",
    "import numpy as np",
    "To be or not to be",
    "The opposite of hot is",
    "SELECT name FROM users WHERE",
    "Dear Sir or Madam,",
    "Monday, Tuesday, Wednesday,",
    "for (int i = 0; i < n; i++) {",
    "Q: What is two plus two? A:",
    "The cat sat on the mat. The cat sat on the",
    "In the year 2000",
)
#: Of an answer; and of a long one.
TOKENS, MANY_TOKENS = 24, 72

#: In how many seconds of answers drafts must have come in time at least once; the first answers do on an idle machine.
PATIENCE = 120.0

#: How long vLLM's processes may take to end before they are killed.
SHUTDOWN_SECONDS = 20.0

#: Where draft workers are looked for; a test starts them there.
DRAFT_PORT, METRICS_PORT = free_port(), free_port()


def speculative(**fields: Any) -> dict[str, Any]:
    """The engine arguments that a user adds for remote drafts; `fields` as in PluginConfig.

    Lock step, because the default schedule may well find that on a busy machine drafts do not pay.
    """
    told = {
        "drafts": f"127.0.0.1:{DRAFT_PORT}",
        "metrics_port": METRICS_PORT,
        "schedule": "lockstep",
        "max_wait": 1,
    } | fields
    return {
        "scheduler_cls": SCHEDULER,
        "speculative_config": {"method": "custom_class", "model": PROPOSER, "num_speculative_tokens": K},
        "additional_config": {"draftwire": told},
    }


@dataclass(frozen=True)
class Plain:
    """Prompts, and plain vLLM's greedy answers to them of MANY_TOKENS tokens."""

    prompts: list[list[int]]
    answers: list[list[int]]


def plain_answers() -> Plain:
    """From an engine without the plug-in, which is gone afterwards."""
    from vllm import LLM  # noqa: PLC0415  reads the environment above

    tokenizer = AutoTokenizer.from_pretrained(resolve(EMBEDDED_TARGET))
    prompts = [tokenizer(text)["input_ids"] for text in TEXTS]
    llm = LLM(**arguments())
    try:
        answers = [answer.token_ids for answer in greedy(llm, prompts, MANY_TOKENS)]
    finally:
        llm.llm_engine.engine_core.shutdown()
    return Plain(prompts, answers)


def greedy(llm: Any, prompts: Sequence[Sequence[int]], max_tokens: int) -> list["Answered"]:
    """Greedy answers of a vLLM `LLM`, all at once."""
    inputs = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    outputs = llm.generate(inputs, _params(max_tokens=max_tokens), use_tqdm=False)
    return [Answered.of(output.outputs[0]) for output in outputs]


def arguments(**options: Any) -> dict[str, Any]:
    """Engine arguments that every test shares."""
    return {
        "model": resolve(EMBEDDED_TARGET),
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 256,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 128,
        "block_size": 32,
        "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
    } | options


@dataclass(frozen=True)
class Answered:
    """An answer's tokens, and vLLM's own count of what speculation did for it (None without speculation)."""

    token_ids: list[int]
    text: str
    speculation: Any

    @classmethod
    def of(cls, output: Any) -> Self:
        """From vLLM's CompletionOutput."""
        return cls(list(output.token_ids), output.text, output.spec_decode_metrics)

    @property
    def drafted(self) -> int:
        """Proposals in its steps."""
        return self.speculation.num_draft_tokens if self.speculation else 0

    @property
    def rejected(self) -> int:
        """First rejections: steps that accepted less than they were offered."""
        if self.speculation is None:
            return 0
        steps = zip(self.speculation.per_step_accepted, self.speculation.per_step_drafted, strict=True)
        return sum(accepted < drafted for accepted, drafted in steps)

    @property
    def accepted(self) -> int:
        """Proposals accepted."""
        return sum(self.speculation.per_step_accepted) if self.speculation else 0


class Engine:
    """An AsyncLLM and what tests ask of it."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm
        self._asked = 0

    async def answer(self, prompt: Sequence[int], *, limit: int | None = None, **sampling: Any) -> Answered:
        """One answer; `limit` is the caller's own K."""
        (done,) = await self._answers(prompt, _params(limit, **sampling))
        return Answered.of(done)

    async def draw(self, prompt: Sequence[int], count: int, **sampling: Any) -> list[list[int]]:
        """The tokens of `count` answers to one prompt, all of them at once."""
        return [list(part.token_ids) for part in await self._answers(prompt, _params(n=count, **sampling))]

    async def stream(self, prompt: Sequence[int], **sampling: Any) -> AsyncIterator[list[int]]:
        """The tokens of one answer as they come."""
        async with aclosing(self._outputs(prompt, _params(delta=True, **sampling))) as outputs:
            async for output in outputs:
                yield list(output.outputs[0].token_ids)

    async def answers(self, prompts: Sequence[Sequence[int]], **options: Any) -> list[Answered]:
        """An answer to each prompt, all of them at once."""
        return await asyncio.gather(*(self.answer(prompt, **options) for prompt in prompts))

    async def _answers(self, prompt: Sequence[int], params: Any) -> Any:
        (output,) = [output async for output in self._outputs(prompt, params)]
        return output.outputs

    def _outputs(self, prompt: Sequence[int], params: Any) -> Any:
        self._asked += 1
        return self.llm.generate({"prompt_token_ids": list(prompt)}, params, f"test-{self._asked}")

    def counter(self, name: str) -> float:
        """One of vLLM's own metrics."""
        from vllm.v1.metrics.reader import get_metrics_snapshot  # noqa: PLC0415

        return sum(metric.value for metric in get_metrics_snapshot() if metric.name == name)


def _params(limit: int | None = None, *, delta: bool = False, **sampling: Any) -> Any:
    """Sampling parameters, greedy and without an early end where they don't say otherwise."""
    from vllm import SamplingParams  # noqa: PLC0415  reads the environment above
    from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

    return SamplingParams(
        **({"temperature": 0, "ignore_eos": True} | sampling),
        extra_args={} if limit is None else {LIMIT_ARGUMENT: limit},
        output_kind=RequestOutputKind.DELTA if delta else RequestOutputKind.FINAL_ONLY,
    )


@asynccontextmanager
async def engine(**options: Any) -> AsyncIterator[Engine]:
    """An engine in processes of its own, until the block ends."""
    from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415
    from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415

    detail = {"per_request_spec_decode_metrics": "detailed"} if "speculative_config" in options else {}
    made = Engine(AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments(**options), **detail)))
    try:
        yield made
    finally:
        made.llm.shutdown(timeout=SHUTDOWN_SECONDS)
        made.llm = None  # vLLM shuts it down again when it is deleted, which is too late once Python ends


def assert_same(prompts: Sequence[list[int]], answers: Sequence[Answered], expected: Sequence[list[int]]) -> None:
    """The answers begin as the expected ones; a first difference is at a near tie (< 1e-3 in logits), and shown."""
    ties = 0
    for prompt, answer, tokens in zip(prompts, answers, expected, strict=True):
        pairs = enumerate(zip(answer.token_ids, tokens, strict=False))
        first = next((i for i, (ours, theirs) in pairs if ours != theirs), None)
        if first is not None:
            ties += 1
            logits = logits_after(prompt + tokens[:first])[-1]
            assert abs(logits[answer.token_ids[first]] - logits[tokens[first]]) < 1e-3
    print(f"answers that differ, at a near tie: {ties} of {len(answers)}")
    assert ties <= len(answers) // 8


async def accepted(answers: Callable[[], Awaitable[list[Answered]]]) -> list[Answered]:
    """The first round of `answers()` in which drafts were accepted; fails after PATIENCE.

    Where the machine is busy a step may have waited its longest before its proposals came.
    """
    async with asyncio.timeout(PATIENCE):
        while True:
            made = await answers()
            if any(answer.accepted for answer in made):
                return made


@cache
def reference() -> Any:
    """The target in transformers."""
    return AutoModelForCausalLM.from_pretrained(resolve(EMBEDDED_TARGET), dtype=torch.float32)


def logits_after(token_ids: list[int]) -> torch.Tensor:  # [len(token_ids), V]
    """The target's logits at every position."""
    with torch.inference_mode():
        return reference()(torch.tensor([token_ids])).logits[0]


@asynccontextmanager
async def draft_worker(logs: Path, draft: str, flags: Mapping[str, Any] = {}) -> AsyncIterator[ServiceProcess]:
    """A draft worker at the address that the engine looks at, in use."""
    fixed = {"draft": draft, "drafter": "model", "dtype": "float32", "threads": 1, "max_model_len": 256}
    fixed |= {"port": DRAFT_PORT, "metrics_port": 0, "shutdown_grace": 1}
    worker = ServiceProcess("draft worker", "draft_service", fixed | flags, logs / f"{draft}.log")
    await worker.start()
    try:
        await workers(1)
        yield worker
    finally:
        await worker.stop(5.0)
        await workers(0)


async def workers(count: int) -> None:
    """Wait until the engine is connected to so many draft workers."""
    await until_metric(PLUGIN, "draftwire_verify_draft_workers", count, PATIENCE)


async def plugin_metric(name: str, **labels: str) -> float:
    """A sample of the plug-in's own metrics."""
    return await metric(PLUGIN, name, **labels)


#: Stands in for a service whose metrics are read.
PLUGIN: Any = SimpleNamespace(metrics_port=METRICS_PORT)
