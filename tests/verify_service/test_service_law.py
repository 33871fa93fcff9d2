"""The law of what callers get from a verify worker with a draft worker, over real gRPC, is the target's."""

import pytest
from support.service_law import (
    DRAFTERS,
    PROMPT,
    SHORT,
    TARGET,
    follows_the_law,
    long_answers,
    p_value_of_pairs,
    service,
    short_answers,
)
from support.stats import chi_square_p

from draftwire.types import SamplingParams


@pytest.mark.parametrize(("drafter", "schedule"), [("model", "auto"), ("hybrid", "lockstep"), ("ngram", "eager")])
async def test_short_answers_have_the_targets_law(drafter: str, schedule: str) -> None:
    """Whole answers, ended by their last token or by their length: chi-square does not reject."""
    law = TARGET.answer_law(PROMPT[-1], SHORT)
    async with service(DRAFTERS[drafter], schedule) as target:
        assert await follows_the_law(target, lambda: short_answers(target), lambda seen: chi_square_p(seen, law))


@pytest.mark.parametrize(
    ("drafter", "schedule", "sampling"),
    [
        ("model", "auto", SamplingParams()),
        ("model", "eager", SamplingParams(top_p=0.82)),
        ("model", "lockstep", SamplingParams(temperature=0.7, min_p=0.35)),
        ("hybrid", "auto", SamplingParams(temperature=1.4, top_p=0.9)),
        ("hybrid", "eager", SamplingParams()),
        ("hybrid", "lockstep", SamplingParams(top_k=3)),
        ("ngram", "auto", SamplingParams(min_p=0.25)),
        ("ngram", "lockstep", SamplingParams()),
    ],
)
async def test_long_answers_have_the_targets_law(drafter: str, schedule: str, sampling: SamplingParams) -> None:
    """Whatever drafts, whenever steps start, however the distribution is cut: chi-square does not reject."""
    async with service(DRAFTERS[drafter], schedule) as target:
        assert await follows_the_law(
            target,
            lambda: long_answers(target, sampling=sampling),
            lambda texts: p_value_of_pairs(texts, sampling),
        )
