"""Which generations take part in the next step, and with which tokens. No torch, no clock: time is an argument.

Continuous batching: a step takes every generation that is there. While all of them wait for proposals the step is put
off until the first has what it waits for (its m) or has waited long enough (its tau); once one goes, the others ride
along with what has come, because they would wait out that step for nothing. Prompts are prefilled in pieces beside the
others' decoding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from draftwire.engine.base import Chunk
from draftwire.types import DraftToken
from verify_service.generation import Answer, DraftLink, Generation

#: Share of a step's tokens that prefills may always use, so that many decoding sessions can't starve a new one.
PREFILL_SHARE = 0.25

#: A session whose draft let it wait this often for nothing waits no more until the draft speaks again.
MAX_FRUITLESS_WAITS = 2


@dataclass(frozen=True, slots=True)
class Work:
    """A generation's part of a step.

    Attributes:
        generation: whose.
        chunk: what the engine runs; its last len(proposals) tokens are guesses.
        proposals: what is tested; empty = plain decoding, or an inner piece of a prefill if chunk.num_logits is 0.
        link: the generation's draft session when the step began, whose proposals they are; it may be lost meanwhile.
    """

    generation: Generation
    chunk: Chunk
    proposals: tuple[DraftToken, ...]
    link: DraftLink | None


def patience(generation: Answer, now: float) -> float:
    """Seconds that the generation would still wait for proposals; 0 = ready."""
    link = generation.link
    if link is None or link.fruitless_waits >= MAX_FRUITLESS_WAITS or link.session.pending_count >= wanted(generation):
        return 0.0
    return max(0.0, generation.ready_since + generation.plan.max_wait - now)


def waited_in_vain(generation: Answer, now: float) -> bool:
    """Whether it has waited its tau and not a single proposal has come."""
    link = generation.link
    if link is None or link.session.pending_count or not wanted(generation):
        return False
    return now >= generation.ready_since + generation.plan.max_wait


def wanted(generation: Answer) -> int:
    """How many proposals the generation waits for: its m, as far as it may test them and its draft may send them.

    0 if the draft said that it has no further guess before the next commit.
    """
    link = generation.link
    if generation.missing > 1 or link is None or link.idle == link.session.number:
        return 0
    return min(generation.plan.min_proposals, testable(generation), link.session.window)


def testable(generation: Answer) -> int:
    """How many proposals the generation may test now: its K, and never past the end of the answer."""
    left = generation.limit - len(generation.tokens)
    return max(0, min(generation.plan.num_speculative_tokens, left - 1))


def schedule(generations: Sequence[Generation], now: float, budget: int) -> tuple[list[Work], float | None]:
    """Choose the next step's work.

    Args:
        generations: those with a slot and a caller that keeps up, oldest first.
        now: seconds.
        budget: most tokens in the step.

    Returns (work, wait): no work means to look again in `wait` seconds (None = when something arrives).
    """
    if not generations:
        return [], None
    wait = min(patience(generation, now) for generation in generations)
    if wait > 0:
        return [], wait
    decoding = [g for g in generations if g.missing == 1]
    prefilling = [g for g in generations if g.missing > 1]
    spare = max(1, min(int(budget * PREFILL_SHARE), budget - len(decoding)))  # beside a token for everyone
    reserved = min(sum(g.missing for g in prefilling), spare)
    work, used = _decode(decoding, budget - reserved)
    for generation in prefilling:
        if used >= budget:
            break
        piece = _prefill(generation, budget - used)
        used += len(piece.chunk.token_ids)
        work.append(piece)
    return work, 0.0


def _decode(generations: Sequence[Generation], budget: int) -> tuple[list[Work], int]:
    """One token for everyone first, then proposals while the budget lasts; where it does not do, they take turns."""
    generations = sorted(generations, key=lambda generation: generation.ready_since)
    spare = budget - len(generations)
    work: list[Work] = []
    used = 0
    for generation in generations[:budget]:
        link = generation.link
        count = max(0, min(testable(generation), spare))
        proposals = link.session.pending(count) if link else ()
        spare -= len(proposals)
        used += 1 + len(proposals)
        tokens = (generation.tokens[-1], *(guess.token for guess in proposals))
        assert generation.slot is not None
        chunk = Chunk(generation.slot, generation.computed, tokens, len(tokens))
        work.append(Work(generation, chunk, proposals, link))
    return work, used


def _prefill(generation: Generation, budget: int) -> Work:
    """The next piece of a prompt; its last token's logits are wanted if it is the last piece."""
    piece = generation.tokens[generation.computed : generation.computed + budget]
    complete = len(piece) == generation.missing
    assert generation.slot is not None
    return Work(generation, Chunk(generation.slot, generation.computed, piece, int(complete)), (), generation.link)
