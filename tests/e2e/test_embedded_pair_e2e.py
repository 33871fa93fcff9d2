"""The real pair as real processes: speculation changes no token of a real model's output, and it helps.

Batch-invariant, float32: a prompt has one greedy answer, whatever is batched with it. The target is loaded once; each
test starts the kind of draft worker that it needs, at an address that the verify worker knows.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from support.system import System, metric, system, until_metric
from support.timing import in_some_try
from transformers import AutoModelForCausalLM, AutoTokenizer

from draftwire.cli.client import Transcript, stream
from draftwire.cli.processes import ServiceProcess
from draftwire.models import EMBEDDED_DRAFT, EMBEDDED_TARGET, resolve
from draftwire.ports import free_port
from draftwire.types import SpeculationStats
from draftwire.v1 import gateway_service_pb2 as pb

pytestmark = [pytest.mark.model, pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

QUESTIONS = (
    "Write a Python function that returns the largest number in a list.",
    "List four fruits and their colours.",
    "Repeat this sentence three times: The quick brown fox jumps over the lazy dog.",
)
NEW_TOKENS = 28
PLAIN = {"disabled": True}
SEEDED = {"temperature": 0.8, "seed": 11}  # coupled mode
EXACT = {"batch_invariant": True, "dtype": "float32", "max_model_len": 512, "max_num_seqs": 8}
PORT = free_port()  # of whichever draft worker runs; the verify worker finds it again


@dataclass
class Pair:
    """The system, with a draft worker that a test can exchange for another kind.

    Attributes:
        prompts: the questions as token ids of chats.
        plain, plain_seeded: the answers without speculation, greedy and SEEDED, all asked for at once.
    """

    made: System
    logs: Path
    prompts: list[list[int]]
    plain: list[list[int]] = field(default_factory=list)
    plain_seeded: list[list[int]] = field(default_factory=list)

    @asynccontextmanager
    async def draft(self, drafter: str) -> AsyncIterator[ServiceProcess]:
        """A draft worker of this kind, in use."""
        flags = {"draft": EMBEDDED_DRAFT, "drafter": drafter, "port": PORT, "metrics_port": 0, "threads": 1}
        flags |= {"shutdown_grace": 1, "max_model_len": 512, "dtype": "float32"}
        worker = ServiceProcess("draft worker", "draft_service", flags, self.logs / f"draft-{drafter}.log")
        await worker.start()
        try:
            await until_metric(self.made.verifiers[0], "draftwire_verify_draft_workers", 1)
            yield worker
        finally:
            await worker.stop(5.0)
            await until_metric(self.made.verifiers[0], "draftwire_verify_draft_workers", 0)

    async def answers(self, **fields) -> list[Transcript]:
        """Every prompt's answer, all of them at once."""
        return await asyncio.gather(
            *(self.made.generate(prompt, max_tokens=NEW_TOKENS, **fields) for prompt in self.prompts)
        )


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def pair(tmp_path_factory) -> AsyncIterator[Pair]:
    """The target behind a gateway; no draft worker yet."""
    logs = tmp_path_factory.mktemp("pair")
    tokenizer = AutoTokenizer.from_pretrained(resolve(EMBEDDED_TARGET))
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    prompts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"] for chat in chats]
    flags = EXACT | {"drafts": f"127.0.0.1:{PORT}", "num_speculative_tokens": 4}
    async with system(logs, target=EMBEDDED_TARGET, draft=None, verify_flags=flags) as made:
        running = Pair(made, logs, prompts)
        running.plain = [answer.token_ids for answer in await running.answers(speculation=PLAIN)]
        running.plain_seeded = [answer.token_ids for answer in await running.answers(**SEEDED, speculation=PLAIN)]
        yield running


async def test_greedy_equals_generate(pair: Pair) -> None:
    """The tokens are those of generate; a difference is a near tie (< 1e-3 in logits), counted and printed."""

    def compare() -> int:
        model = AutoModelForCausalLM.from_pretrained(resolve(EMBEDDED_TARGET), dtype=torch.float32)
        model.generation_config.eos_token_id = None
        ties = 0
        for prompt, answer in zip(pair.prompts, pair.plain, strict=True):
            ids = torch.tensor([prompt])
            options = {"do_sample": False, "max_new_tokens": NEW_TOKENS, "attention_mask": torch.ones_like(ids)}
            theirs = model.generate(ids, **options)[0, len(prompt) :].tolist()
            first = next((i for i, (a, b) in enumerate(zip(theirs, answer, strict=True)) if a != b), None)
            if first is not None:
                ties += 1
                with torch.inference_mode():
                    logits = model(torch.tensor([prompt + answer[:first]])).logits[0, -1]
                assert logits[theirs[first]] - logits[answer[first]] < 1e-3
        return ties

    ties = await asyncio.to_thread(compare)
    print(f"near ties at which the output differs from generate's: {ties} of {len(QUESTIONS)} prompts")
    assert ties <= 1


@pytest.mark.parametrize("drafter", ["hybrid", "ngram", "model"])
async def test_speculation_changes_no_token(pair: Pair, drafter: str) -> None:
    """Greedy and seeded answers are those without speculation; of the model's guesses over a fifth is accepted."""
    async with pair.draft(drafter):
        greedy = await pair.answers()
        alone = await pair.made.generate(pair.prompts[0], max_tokens=NEW_TOKENS)
        seeded = await pair.answers(**SEEDED)
    assert [answer.token_ids for answer in greedy] == pair.plain
    assert alone.token_ids == pair.plain[0]
    assert [answer.token_ids for answer in seeded] == pair.plain_seeded
    assert pair.plain_seeded != pair.plain
    for kind, answers in (("greedy", greedy), ("seeded", seeded)):
        tested = sum(answer.speculation.tested_tokens for answer in answers)
        accepted = sum(answer.speculation.accepted_tokens for answer in answers)
        print(f"{drafter}, {kind}: {accepted} of {tested} tested proposals accepted")
        assert tested
        if kind == "greedy" and drafter != "ngram":
            assert accepted / tested > 0.2


async def test_killed_draft_worker(pair: Pair) -> None:
    """kill -9 of the draft worker in mid stream: the greedy output does not change."""

    async def speculation() -> SpeculationStats:
        """Of an answer that saw the worker die, which it does unless it is over before we get to that."""
        async with pair.draft("model") as worker:
            killed = None

            async def kill_once(transcript: Transcript) -> None:
                nonlocal killed
                if killed is None and len(transcript.token_ids) >= 8:
                    killed = asyncio.create_task(worker.kill())

            answer = await pair.made.generate(pair.prompts[0], kill_once, max_tokens=NEW_TOKENS)
            await killed
        assert answer.token_ids == pair.plain[0]
        return answer.speculation

    await in_some_try(speculation, lambda found: found.tested_tokens and found.reassignments == 1)
    assert await metric(pair.made.verifiers[0], "draftwire_verify_draft_workers") == 0


async def test_a_chats_text_is_its_tokens(pair: Pair) -> None:
    """A chat through the gateway: the same tokens as for its token ids, and the text is their decoding."""
    tokenizer = AutoTokenizer.from_pretrained(resolve(EMBEDDED_TARGET))
    for question, plain in zip(QUESTIONS, pair.plain, strict=True):
        chat = pb.ChatMessages(messages=[pb.ChatMessage(role="user", content=question)])
        request = pb.GatewayServiceGenerateRequest(chat=chat, max_tokens=NEW_TOKENS, sampling={"temperature": 0.0})
        transcript = Transcript()
        pieces = [piece async for piece in stream(pair.made.channel, request, transcript)]
        assert transcript.token_ids == plain[: len(transcript.token_ids)]
        assert len(transcript.token_ids) == NEW_TOKENS or transcript.reason == "stop"
        assert transcript.text == "".join(pieces) == tokenizer.decode(transcript.token_ids, skip_special_tokens=True)
        assert len(transcript.text) > NEW_TOKENS / 2
