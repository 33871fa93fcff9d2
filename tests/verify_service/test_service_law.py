"""The law of what callers get from a verify worker with a draft worker, over real gRPC, is the target's.

Six tokens, one of which ends an answer; draft and target disagree about most of them, and the prompt repeats itself, so
that n-grams match. Short answers of many calls, and pairs of tokens in long answers, are compared with the target's law
by chi-square. Seeds are fixed and timing is not: it must not matter. Mutants, each a mistake that looks harmless, fail
the same test.
"""

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from itertools import product

import pytest
from prometheus_client import CollectorRegistry
from support.chain_engine import ChainEngine, random_delay
from support.pair import connected
from support.stats import P_VALUE_PASS, P_VALUE_REJECT, ToyChain, chi_square_p
from support.verify_worker import RunningWorker, output
from torch import Tensor

from draft_service.config import DraftConfig
from draft_service.drafters.base import Drafter
from draft_service.drafters.hybrid import HybridDrafter
from draft_service.drafters.model import ModelDrafter, draw_from_model
from draft_service.drafters.ngram import NgramDrafter
from draft_service.session import Session
from draft_service.worker import DraftWorker
from draftwire.rpc.client import connect
from draftwire.session import VerifierSession
from draftwire.types import WEIGHT_TOTAL, DraftToken, SamplingParams
from draftwire.v1.verify_service_pb2_grpc import VerifyServiceStub
from verify_service.config import VerifyConfig
from verify_service.worker import VerifyWorker

EOS = 5
#: The entries of a row that is used differ, so that no cut has to choose between equals.
TARGET = ToyChain(
    (
        (0.09, 0.40, 0.20, 0.12, 0.08, 0.11),
        (0.25, 0.05, 0.35, 0.15, 0.12, 0.08),
        (0.38, 0.12, 0.08, 0.22, 0.09, 0.11),
        (0.16, 0.13, 0.30, 0.10, 0.20, 0.11),
        (0.30, 0.20, 0.09, 0.25, 0.05, 0.11),
        (0.22, 0.18, 0.24, 0.14, 0.12, 0.10),
    ),
    eos=EOS,
)
DRAFT = ToyChain(
    (
        (0.05, 0.62, 0.05, 0.05, 0.08, 0.15),
        (0.10, 0.10, 0.60, 0.05, 0.10, 0.05),
        (0.15, 0.25, 0.15, 0.15, 0.25, 0.05),
        (0.30, 0.05, 0.30, 0.20, 0.10, 0.05),
        (0.05, 0.55, 0.20, 0.05, 0.05, 0.10),
        (0.20, 0.20, 0.20, 0.20, 0.10, 0.10),
    ),
    eos=EOS,
)
PROMPT = (0, 1, 2, 0, 1, 2, 0, 1, 2, 0)
K, SLOTS = 3, 24
SHORT, CALLS = 3, 1000
LONG = 240

DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "model": lambda: ModelDrafter(draft_engine()),
    "hybrid": lambda: HybridDrafter(ModelDrafter(draft_engine())),
    "ngram": lambda: NgramDrafter(draft_engine().info, max_sessions=SLOTS),
}


def draft_engine() -> ChainEngine:
    return ChainEngine(DRAFT, random_delay(0.001, seed=1), SLOTS)


@asynccontextmanager
async def service(make_drafter: Callable[[], Drafter] | None, schedule: str) -> AsyncIterator[RunningWorker]:
    """A verify worker with the target, and a draft worker if there is a drafter."""
    async with AsyncExitStack() as stack:
        common = {"port": 0, "metrics_port": 0, "max_num_seqs": SLOTS, "shutdown_grace": 0.5}
        drafts: tuple[str, ...] = ()
        if make_drafter:
            draft = DraftWorker(DraftConfig(**common), make_drafter, CollectorRegistry(), asyncio.Event())
            await draft.start()
            stack.push_async_callback(draft.drain)
            drafts = (f"127.0.0.1:{draft.port}",)
        config = VerifyConfig(**common, drafts=drafts, num_speculative_tokens=K, schedule=schedule)
        registry = CollectorRegistry()
        worker = VerifyWorker(
            config,
            lambda: ChainEngine(TARGET, random_delay(0.006, seed=2), SLOTS),
            registry,
            asyncio.Event(),
            fresh_seed=itertools.count(1).__next__,
        )
        await worker.start()
        stack.push_async_callback(worker.drain)
        channel = await stack.enter_async_context(connect(f"127.0.0.1:{worker.port}"))
        running = RunningWorker(worker, VerifyServiceStub(channel), registry)
        await connected(running, len(drafts))
        yield running


async def short_answers(target: RunningWorker) -> Counter[tuple[int, ...]]:
    """How often each short answer came in CALLS calls."""
    room = asyncio.Semaphore(SLOTS)

    async def call() -> tuple[int, ...]:
        async with room:
            return tuple(output(await target.generate(PROMPT, max_tokens=SHORT)))

    return Counter(await asyncio.gather(*(call() for _ in range(CALLS))))


async def long_answers(target: RunningWorker, **fields) -> list[list[int]]:
    """One long answer for every slot, all at once; nothing ends them early."""
    calls = (target.generate(PROMPT, max_tokens=LONG, ignore_eos=True, **fields) for _ in range(SLOTS))
    return [output(answer) for answer in await asyncio.gather(*calls)]


def cut(row: Sequence[float], sampling: SamplingParams) -> tuple[float, ...]:
    """The row after temperature, top-k, top-p and min-p, by plain arithmetic; the entries of a row must differ."""
    hot = [p ** (1 / sampling.temperature) for p in row]
    kept = sorted(range(len(row)), key=lambda token: -hot[token])[: sampling.top_k or len(row)]
    total, reached, nucleus = math.fsum(hot[token] for token in kept), 0.0, []
    for token in kept:
        if reached < sampling.top_p * total:
            nucleus.append(token)
        reached += hot[token]
    nucleus = [token for token in nucleus if hot[token] >= sampling.min_p * hot[kept[0]]]
    total = math.fsum(hot[token] for token in nucleus)
    return tuple(hot[token] / total if token in nucleus else 0.0 for token in range(len(row)))


def p_value_of_pairs(texts: Sequence[Sequence[int]], sampling: SamplingParams = SamplingParams()) -> float:
    """Chi-square of the pairs that long answers consist of, each given the token before it.

    How often each token stands before a pair is taken from the texts, which makes the test a little too lenient.
    """
    rows = [cut(row, sampling) for row in TARGET.rows]
    seen = Counter(
        tuple(text[i : i + 3]) for text in ([PROMPT[-1], *text] for text in texts) for i in range(0, len(text) - 2, 2)
    )
    begun = Counter(pair[0] for pair in seen.elements())
    law = {
        (a, b, c): begun[a] / seen.total() * rows[a][b] * rows[b][c] for a, b, c in product(range(len(rows)), repeat=3)
    }
    return chi_square_p(seen, law)


def tested(target: RunningWorker) -> float:
    """Proposals that were tested."""
    return sum(target.metric(f"speculative_decoding_{outcome}_tokens_total") for outcome in ("accepted", "rejected"))


@pytest.mark.parametrize(("drafter", "schedule"), [("model", "auto"), ("hybrid", "lockstep"), ("ngram", "eager")])
async def test_short_answers_have_the_targets_law(drafter: str, schedule: str) -> None:
    """Whole answers, ended by their last token or by their length: chi-square does not reject."""
    async with service(DRAFTERS[drafter], schedule) as target:
        seen = await short_answers(target)
        assert tested(target) > CALLS / 8, "the drafts took part"
    assert chi_square_p(seen, TARGET.answer_law(PROMPT[-1], SHORT)) > P_VALUE_PASS


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
        texts = await long_answers(target, sampling=sampling)
        assert tested(target) > SLOTS * LONG / 8, "the drafts took part"
    assert p_value_of_pairs(texts, sampling) > P_VALUE_PASS


# Mutants.


def certain_where_likely(logits: Tensor, sessions: Sequence[Session]) -> list[DraftToken]:
    """Draws from the model and calls the token certain where it is the model's favourite."""
    drawn = draw_from_model(logits, sessions)
    favourites = logits.argmax(dim=-1).tolist()
    return [DraftToken(d.token) if d.token == favourite else d for d, favourite in zip(drawn, favourites, strict=True)]


def drawn_again_where_unlikely(logits: Tensor, sessions: Sequence[Session]) -> list[DraftToken]:
    """Takes the model's favourite where the drawn token is unlikely, and says the same q."""
    drawn = draw_from_model(logits, sessions)
    favourites = logits.argmax(dim=-1).tolist()
    return [
        replace(d, token=favourite) if d.q and weight(d) < WEIGHT_TOTAL / 10 else d
        for d, favourite in zip(drawn, favourites, strict=True)
    ]


def weight(guess: DraftToken) -> int:
    """Of the guess in its own q."""
    return guess.q.weights[guess.q.ids.index(guess.token)] if guess.q else WEIGHT_TOTAL


@pytest.mark.parametrize("draw", [certain_where_likely, drawn_again_where_unlikely])
async def test_a_dishonest_draft_is_caught(draw) -> None:
    """A draft whose q is not what it drew from, by the token's value: chi-square rejects."""
    async with service(lambda: ModelDrafter(draft_engine(), draw=draw), "lockstep") as target:
        assert p_value_of_pairs(await long_answers(target)) < P_VALUE_REJECT


@pytest.mark.parametrize("schedule", ["eager", "lockstep"])
async def test_a_gate_on_confidence_is_caught(monkeypatch: pytest.MonkeyPatch, schedule: str) -> None:
    """A verify side that tests only guesses of which the draft was sure: chi-square rejects."""
    pending = VerifierSession.pending

    def only_sure(session: VerifierSession, limit: int) -> tuple[DraftToken, ...]:
        return tuple(itertools.takewhile(lambda guess: weight(guess) > WEIGHT_TOTAL / 2, pending(session, limit)))

    monkeypatch.setattr(VerifierSession, "pending", only_sure)
    async with service(DRAFTERS["model"], schedule) as target:
        assert p_value_of_pairs(await long_answers(target)) < P_VALUE_REJECT


async def test_a_dropped_guess_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verify side that does not test a guess which would end the answer: chi-square rejects."""
    pending = VerifierSession.pending

    def never_the_end(session: VerifierSession, limit: int) -> tuple[DraftToken, ...]:
        return tuple(itertools.takewhile(lambda guess: guess.token != EOS, pending(session, limit)))

    monkeypatch.setattr(VerifierSession, "pending", never_the_end)
    async with service(DRAFTERS["model"], "lockstep") as target:
        assert p_value_of_pairs(await long_answers(target)) < P_VALUE_REJECT


# Coupled mode.


async def test_a_seed_fixes_the_answer() -> None:
    """The same seeds give the same tokens with model, n-gram, hybrid and no drafter, and with speculation declined."""
    seeds, sampling = range(60), SamplingParams(temperature=1.3, top_p=0.95)

    async def by_seed(target: RunningWorker, **fields) -> list[list[int]]:
        calls = (
            target.generate(PROMPT, max_tokens=24, ignore_eos=True, seed=seed, sampling=sampling, **fields)
            for seed in seeds
        )
        return [output(answer) for answer in await asyncio.gather(*calls)]

    async with service(None, "auto") as target:
        plain = await by_seed(target)
    assert len({tuple(tokens) for tokens in plain}) > len(seeds) - 2
    for drafter, schedule in (("model", "auto"), ("model", "eager"), ("ngram", "eager"), ("hybrid", "lockstep")):
        async with service(DRAFTERS[drafter], schedule) as target:
            assert await by_seed(target) == plain
            assert target.metric("speculative_decoding_accepted_tokens_total") > len(seeds)
            if schedule == "auto":
                assert await by_seed(target, num_speculative_tokens=0) == plain
