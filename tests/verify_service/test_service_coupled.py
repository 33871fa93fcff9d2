"""In coupled mode the answer is a function of the target and the seed, over real gRPC and under random delays."""

import asyncio

from support.service_law import DRAFTERS, PROMPT, ROUNDS, service
from support.verify_worker import RunningWorker, output

from draftwire.types import SamplingParams


async def test_a_seed_fixes_the_answer() -> None:
    """The same seeds give the same tokens with model, n-gram, hybrid and no drafter, and with speculation declined."""
    seeds, sampling = range(32), SamplingParams(temperature=1.3, top_p=0.95)

    async def by_seed(target: RunningWorker, **fields) -> list[list[int]]:
        calls = (
            target.generate(PROMPT, max_tokens=24, ignore_eos=True, seed=seed, sampling=sampling, **fields)
            for seed in seeds
        )
        return [output(answer) for answer in await asyncio.gather(*calls)]

    async with service(None, "auto") as target:
        plain = await by_seed(target)
    assert len({tuple(tokens) for tokens in plain}) == len(seeds)
    for drafter, schedule in (("model", "auto"), ("model", "eager"), ("ngram", "eager"), ("hybrid", "lockstep")):
        async with service(DRAFTERS[drafter], schedule) as target:
            for _ in range(ROUNDS):  # one will do unless the machine is loaded
                assert await by_seed(target) == plain
                if target.metric("speculative_decoding_accepted_tokens_total"):
                    break
            assert target.metric("speculative_decoding_accepted_tokens_total"), "the drafts took part"
            if schedule == "auto":
                assert await by_seed(target, num_speculative_tokens=0) == plain
