"""`draftwire demo`: the whole system on the embedded pair, an answer as it streams, and what speculation gains here."""

import asyncio
import json
import sys
from dataclasses import replace

from pydantic import BaseModel, Field
from rich.console import Console

from bench.load import Result, Task, run_all
from bench.workloads import PROMPTS
from draftwire.cli.client import Transcript, stream
from draftwire.cli.stack import StackOptions, stack
from draftwire.errors import DraftwireError
from draftwire.rpc.client import connect
from draftwire.v1 import gateway_service_pb2 as pb
from draftwire.v1.sampling_pb2 import SamplingParams
from gateway.requests import ChatMessage
from gateway.tokenizer import load_tokenizer

#: Which of the benchmark's prompts the demo runs: a copy, code, a question, a list.
CHOSEN = (0, 2, 4, 6)


class Demo(BaseModel):
    """Stream an answer through the three services, then compare with plain decoding; the last line is JSON."""

    max_tokens: int = Field(96, ge=16, le=1024, description="new tokens for each prompt")
    repeats: int = Field(1, ge=1, le=100, description="how often each prompt is run")

    def cli_cmd(self) -> None:
        """Run the demo; exit code 1 where a service could not start."""
        try:
            print(json.dumps(asyncio.run(self._run(Console(stderr=True)))))
        except DraftwireError as error:
            print(f"draftwire demo: {error}", file=sys.stderr)
            sys.exit(1)

    async def _run(self, console: Console) -> dict[str, object]:
        options = StackOptions()
        tokenizer = load_tokenizer(options.target)
        chosen = [PROMPTS[index] for index in CHOSEN]
        tasks = [Task(prompt.kind, tokenizer.encode_chat([ChatMessage("user", prompt.text)])) for prompt in chosen]
        async with stack(options, console.log) as running:
            await _show_an_answer(running.gateway.address, chosen[2].text, console)
            console.log(f"{len(tasks)} prompts, {self.max_tokens} tokens each: plain decoding and speculation in turn")
            plain, split = await self._measure(running.gateway.address, tasks, [False, True])
        console.log("the same prompts, plain decoding on all cores")
        async with stack(replace(options, plain_cores="all")) as running:
            (everything,) = await self._measure(running.gateway.address, tasks, [False])
        return summary(plain, everything, split)

    async def _measure(self, address: str, tasks: list[Task], speculation: list[bool]) -> list[Result]:
        return await run_all(
            address,
            tasks,
            speculation=speculation,
            repeats=self.repeats,
            max_tokens=self.max_tokens,
            temperature=0.0,
        )


def summary(plain: Result, everything: Result, split: Result) -> dict[str, object]:
    """The demo's last line. Speeds are medians over the prompts, decoding only."""
    plain_speed, all_speed, split_speed = (
        result.summary()["tokens_per_second"] for result in (plain, everything, split)
    )
    numbers = split.summary()
    return {
        "plain_tokens_per_second": round(plain_speed, 2),
        "plain_all_cores_tokens_per_second": round(all_speed, 2),
        "split_tokens_per_second": round(split_speed, 2),
        "speedup": round(split_speed / plain_speed, 3),
        "speedup_equal_cores": round(split_speed / all_speed, 3),
        "acceptance_rate": round(numbers["acceptance_rate"], 4),
        "tokens_per_step": round(numbers["tokens_per_step"], 3),
        "by_kind": {
            kind: {
                "speedup": round(of_split.tokens_per_second / plain.by_kind()[kind].tokens_per_second, 3),
                "tokens_per_step": round(of_split.tokens_per_step, 3),
            }
            for kind, of_split in split.by_kind().items()
        },
    }


async def _show_an_answer(address: str, question: str, console: Console) -> None:
    """Stream one answer to the terminal."""
    request = pb.GatewayServiceGenerateRequest(max_tokens=128, sampling=SamplingParams(temperature=0.0))
    request.chat.messages.add(role="user", content=question)
    console.print(f"\n[bold]{question}[/bold]")
    transcript = Transcript()
    async with connect(address) as channel:
        async for text in stream(channel, request, transcript):
            console.print(text, end="", highlight=False, markup=False, soft_wrap=True)
    stats = transcript.speculation
    console.print(
        f"\n[dim]{stats.committed_tokens} tokens in {stats.steps} target steps; "
        f"{stats.accepted_tokens} of {stats.tested_tokens} tested proposals accepted[/dim]\n"
    )
