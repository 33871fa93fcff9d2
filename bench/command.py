"""`draftwire bench`: the split system against plain decoding, lock step and co-located speculation, in one run."""

import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, TextIO

from pydantic import BaseModel, Field
from rich.console import Console

from bench import theory
from bench.load import Result, Task, estimated_times, run_all
from bench.report import Row, machine, steps_table, table
from bench.theory import Theory
from bench.workloads import PROMPTS
from draftwire.cli.processes import split_cores
from draftwire.cli.stack import StackOptions, stack
from draftwire.errors import DraftwireError
from gateway.requests import ChatMessage
from gateway.tokenizer import load_tokenizer


class Bench(BaseModel):
    """Measure time to first token, inter-token latency, throughput and acceptance on this machine."""

    target: str = Field("embedded-target", description="local folder, hub id or embedded-target")
    draft: str = Field("embedded-draft", description="local folder, hub id or embedded-draft")
    drafter: Literal["model", "ngram", "hybrid"] = Field("hybrid", description="what guesses")
    dtype: Literal["auto", "bfloat16", "float32"] = Field("auto", description="arithmetic of the weights")
    temperature: float = Field(0.0, ge=0, le=100, description="0 = greedy")
    num_speculative_tokens: int = Field(5, ge=1, le=32, description="K")
    max_tokens: int = Field(128, ge=16, le=1024, description="new tokens for each prompt")
    prompts: int = Field(len(PROMPTS), ge=1, le=len(PROMPTS), description="how many of the prompts")
    repeats: int = Field(1, ge=1, le=100, description="how often each prompt is run")
    replay: list[Annotated[float, Field(ge=0, le=1)]] = Field(
        [0.5, 0.8], description="acceptances of the replay drafter (greedy only); repeatable"
    )
    json_output: bool = Field(False, alias="json", description="end with one JSON object on a line of its own")

    def cli_cmd(self) -> None:
        """Run the command; exit code 1 where a service could not start."""
        console = _console(sys.stderr)
        try:
            rows = asyncio.run(self._run(console))
        except DraftwireError as error:
            print(f"draftwire bench: {error}", file=sys.stderr)
            sys.exit(1)
        (console if self.json_output else _console(sys.stdout)).print(table(rows), steps_table(rows))
        if self.json_output:
            print(json.dumps({"machine": machine(), "rows": [row.summary() for row in rows]}))

    async def _run(self, console: Console) -> list[Row]:
        verify_cores, draft_cores = split_cores()
        mine, all_cores = len(verify_cores), len({*verify_cores, *draft_cores})
        tasks = [Task(prompt.kind, ids) for prompt, ids in zip(PROMPTS, self._encode(), strict=False)]
        options = StackOptions(
            target=self.target,
            draft=self.draft,
            drafter=self.drafter,
            dtype=self.dtype,
            num_speculative_tokens=self.num_speculative_tokens,
        )
        console.log("plain and streaming")
        (plain, streaming), predicted = await self._measure(options, tasks, [False, True])
        rows = [Row("plain", mine, plain), Row("streaming", all_cores, streaming, predicted)]
        console.log("lock step")
        (lock,), predicted = await self._measure(replace(options, schedule="lockstep"), tasks, [True])
        rows.append(Row("lock step", all_cores, lock, predicted))
        console.log("plain on all cores")
        (everything,), _ = await self._measure(replace(options, plain_cores="all"), tasks, [False])
        rows.append(Row("plain", all_cores, everything))
        console.log("co-located: draft and target in one process on all cores")
        from bench.colocated import run_colocated  # noqa: PLC0415  the one part that loads torch into this process

        together = await asyncio.to_thread(
            run_colocated, options, tasks, all_cores, self.repeats, self.max_tokens, self.temperature
        )
        rows.append(Row("co-located", all_cores, together))
        if self.temperature == 0:  # elsewhere no recording is what the target says next
            rows += await self._replay(console, options, tasks, plain)
        return rows

    async def _replay(self, console: Console, options: StackOptions, tasks: Sequence[Task], plain: Result) -> list[Row]:
        """The pipeline at set acceptances: the draft's real cost, a recorded continuation."""
        cores = len(set().union(*split_cores()))
        rows: list[Row] = []
        with tempfile.TemporaryDirectory() as folder:
            recording = Path(folder, "recording.jsonl")
            await asyncio.to_thread(recording.write_text, plain.recording())
            for acceptance in self.replay:
                replaying = replace(options, drafter="replay", replay_file=recording, acceptance=acceptance)
                modes = {"streaming": replaying, "lock step": replace(replaying, schedule="lockstep")}
                for mode, wanted in modes.items():
                    console.log(f"replay at acceptance {acceptance}: {mode}")
                    (result,), predicted = await self._measure(wanted, tasks, [True])
                    rows.append(Row(f"{mode}, replay A={acceptance:g}", cores, result, predicted))
        return rows

    async def _measure(
        self, options: StackOptions, tasks: Sequence[Task], speculation: Sequence[bool]
    ) -> tuple[list[Result], Theory]:
        """One start of the services; a result for each wanted kind of call, prompts interleaved."""
        async with stack(options) as running:
            results = await run_all(
                running.gateway.address,
                tasks,
                speculation=speculation,
                repeats=self.repeats,
                max_tokens=self.max_tokens,
                temperature=self.temperature,
            )
            times = estimated_times(running.verify.metrics_port)
        if not speculation[-1]:
            return results, Theory()
        of = theory.lock_step if options.schedule == "lockstep" else theory.streaming
        return results, of(results[-1], self.num_speculative_tokens, times)

    def _encode(self) -> list[list[int]]:
        tokenizer = load_tokenizer(self.target)
        return [list(tokenizer.encode_chat([ChatMessage("user", prompt.text)])) for prompt in PROMPTS[: self.prompts]]


def _console(file: TextIO) -> Console:
    """A console as wide as the tables where no terminal says how wide it is."""
    return Console(file=file, width=None if file.isatty() else 140)
