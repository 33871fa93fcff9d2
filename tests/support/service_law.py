"""A verify worker and a draft worker whose output has a known law, over real gRPC, and the tests of that law.

Six tokens, one of which ends an answer; draft and target disagree about most of them, and the prompt repeats itself, so
that n-grams match. Seeds are fixed and timing is not: it must not matter.
"""

import asyncio
import itertools
import math
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import product
from typing import TypeVar

from prometheus_client import CollectorRegistry
from support.chain_engine import ChainEngine, random_delay
from support.pair import connected
from support.stats import P_VALUE_PASS, P_VALUE_REJECT, ToyChain, chi_square_p
from support.verify_worker import RunningWorker, output

from draft_service.config import DraftConfig
from draft_service.drafters.base import Drafter
from draft_service.drafters.hybrid import HybridDrafter
from draft_service.drafters.model import ModelDrafter
from draft_service.drafters.ngram import NgramDrafter
from draft_service.worker import DraftWorker
from draftwire.rpc.client import connect
from draftwire.types import SamplingParams
from draftwire.v1.verify_service_pb2_grpc import VerifyServiceStub
from verify_service.config import VerifyConfig
from verify_service.worker import VerifyWorker

T = TypeVar("T", Counter[tuple[int, ...]], list[list[int]])

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
K, SLOTS = 3, 16
SHORT, CALLS = 3, 500
LONG = 160
#: Proposals that must at least be tested for a law to mean something; beyond that their number depends on the machine.
TESTED = 80
#: Rounds of answers in which so many must have been; one will do unless the machine is loaded.
ROUNDS = 30
#: Rounds of answers in a second sample, at least.
SECOND_ROUNDS = 4
#: Tokens of an answer in which a bias shows beyond doubt, and the rounds of them that chance is given.
BIASED_LONG, BIASED_ROUNDS = 320, 4

DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "model": lambda: ModelDrafter(draft_engine()),
    "hybrid": lambda: HybridDrafter(ModelDrafter(draft_engine())),
    "ngram": lambda: NgramDrafter(draft_engine().info, max_sessions=SLOTS),
}


def draft_engine() -> ChainEngine:
    return ChainEngine(DRAFT, random_delay(0.001, seed=1), SLOTS)


@contextmanager
def nimble_threads() -> Iterator[None]:
    """Two engines and an event loop share the interpreter; let it change hands more often than every 5 ms."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


@asynccontextmanager
async def service(make_drafter: Callable[[], Drafter] | None, schedule: str) -> AsyncIterator[RunningWorker]:
    """A verify worker with the target, and a draft worker if there is a drafter."""
    async with AsyncExitStack() as stack:
        stack.enter_context(nimble_threads())
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
            lambda: ChainEngine(TARGET, random_delay(0.02, seed=2), SLOTS),
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


async def long_answers(target: RunningWorker, length: int = LONG, **fields) -> list[list[int]]:
    """One long answer for every slot, all at once; nothing ends them early."""
    calls = (target.generate(PROMPT, max_tokens=length, ignore_eos=True, **fields) for _ in range(SLOTS))
    return [output(answer) for answer in await asyncio.gather(*calls)]


async def follows_the_law(
    target: RunningWorker, answers: Callable[[], Awaitable[T]], p_value: Callable[[T], float]
) -> bool:
    """Whether the p value of the answers, or else of a second and larger sample, is above P_VALUE_PASS.

    The machine's timing decides which random numbers are used, so a right service fails a sample now and then, but
    hardly two; one that is wrong fails the second all the more.
    """
    if p_value(await answers_with_drafts(target, answers)) > P_VALUE_PASS:
        return True
    seen = await answers_with_drafts(target, answers)
    for _ in range(SECOND_ROUNDS - 1):
        seen += await answers()
    return p_value(seen) > P_VALUE_PASS


async def answers_with_drafts(target: RunningWorker, answers: Callable[[], Awaitable[T]]) -> T:
    """What `answers` gives, added up over rounds until TESTED proposals have been tested; fails after ROUNDS.

    Where no step waits for drafts it depends on the machine's load how many come in time.
    """
    before = judged(target)
    seen = await answers()
    for _ in range(ROUNDS - 1):
        if judged(target) - before > TESTED:
            break
        seen += await answers()
    assert judged(target) - before > TESTED, "the drafts took part"
    return seen


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


async def breaks_the_law(target: RunningWorker) -> bool:
    """Whether the p value of long answers falls below P_VALUE_REJECT within a few rounds of them."""
    texts: list[list[int]] = []
    for _ in range(BIASED_ROUNDS):
        texts += await long_answers(target, BIASED_LONG)
        if p_value_of_pairs(texts) < P_VALUE_REJECT:
            return True
    return False


def judged(target: RunningWorker) -> float:
    """Proposals that were tested."""
    return sum(target.metric(f"speculative_decoding_{outcome}_tokens_total") for outcome in ("accepted", "rejected"))
