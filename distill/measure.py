"""Step times of a pair on this machine, measured by the services themselves while they serve a few prompts.

A step costs more in a service than in a bare engine: drawing, verifying, messages, and a draft that shares memory with
its target. The verify worker keeps account of exactly the times that its policy and bench.predict reckon with.
"""

import asyncio
from collections.abc import Sequence
from statistics import median

from bench.load import Task, estimated_times, run_all
from distill.forecast import Times
from draftwire.cli.stack import StackOptions, stack
from verify_service.policy import StepTimes

#: Tokens for each prompt: the verify worker's estimates go by its last 50 steps or so.
TOKENS = 64


def measure(options: StackOptions, prompts: Sequence[tuple[str, tuple[int, ...]]], temperature: float) -> Times:
    """Start the services, answer each prompt of (kind, token ids) plainly and with speculation, and stop them.

    Every time is the median over the prompts. Raises DraftwireError where a service could not start.
    """
    return asyncio.run(_measure(options, [Task(kind, token_ids) for kind, token_ids in prompts], temperature))


async def _measure(options: StackOptions, tasks: Sequence[Task], temperature: float) -> Times:
    plain: list[float] = []
    found: list[StepTimes] = []
    async with stack(options) as running:
        for task in tasks:
            answers, _ = await run_all(
                running.gateway.address,
                [task],
                speculation=[False, True],
                repeats=1,
                max_tokens=TOKENS,
                temperature=temperature,
            )
            plain += (answer.decode_seconds / answer.decode_tokens for _, answer in answers.answers)
            found.append(estimated_times(running.verify.metrics_port))
    middle = {part: median(getattr(times, part) for times in found) for part in StepTimes.__slots__}
    return Times(median(plain), StepTimes(**middle))
