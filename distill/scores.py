"""How often the target would accept a drafter's guess, position by position, along a text of the target.

A guess is tested only if everything drafted before it was accepted, so what stands before a tested position is always
the target's own output. Running both models over a finished text therefore gives the very p and q that the services
would have there, all positions at once: q cut and rounded by the code that draws (draftwire.sampling), n-grams by the
drafters' own index (draft_service.drafters).

With p and q at a position, a guess is accepted with probability sum_x min(p(x), q(x)) (Leviathan et al., arXiv
2211.17192): `overlap`. Given that the position ended up with the token x of the text, it was an accepted guess with
probability min(1, q(x)/p(x)), independently at each position: `chance`. Its mean over texts is the overlap; along one
text it is what tells how long runs are, because easy tokens come in clusters.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distill.texts import TargetText, prefill
from draft_service.drafters import hybrid, ngram
from draft_service.drafters.ngram import NgramIndex
from draftwire.engine.base import Chunk, Engine
from draftwire.sampling import draft_weights, target_probs
from draftwire.types import WEIGHT_TOTAL, SamplingParams

DrafterName = Literal["model", "ngram", "hybrid"]

#: Positions judged at once: two tensors of so many rows of the vocabulary at a time.
WINDOW = 256


@dataclass(frozen=True)
class Scores:
    """One drafter on one text at one temperature; an entry for each of its n output positions.

    Attributes:
        overlap: [n] float64, chance that the target accepts what the drafter draws there; 0 where it has no guess.
        chance: [n] float64, the same given the text's token. Where the text is not a sample at this temperature, so
            that its tokens say nothing about acceptance, it is the overlap.
        proposed: [n] bool, the drafter has a guess.
        free: share of its guesses that are looked up and cost no step of the draft model.
    """

    overlap: NDArray[np.float64]
    chance: NDArray[np.float64]
    proposed: NDArray[np.bool_]
    free: float = 0.0


def score(
    text: TargetText, target: Engine, draft: Engine | None, temperatures: Sequence[float]
) -> dict[tuple[DrafterName, float], Scores]:
    """Every drafter that can be had, at every temperature; without a draft model that is the n-gram drafter alone.

    Takes a slot of each engine and gives it back. The text must fit both.
    """
    guesses = {
        "ngram": ngram_guesses(text, ngram.SIZES),
        "hybrid": ngram_guesses(text, hybrid.SIZES),
    }
    parts: dict[tuple[DrafterName, float], list[Scores]] = {}
    for first, target_logits, draft_logits in _windows(text, target, draft):
        tokens = torch.tensor(text.token_ids[first : first + len(target_logits)], device=target_logits.device)
        own = slice(first - text.begin, first - text.begin + len(tokens))
        for temperature in temperatures:
            sampling = [SamplingParams(temperature=temperature)] * len(tokens)
            p = target_probs(target_logits, sampling)
            sampled = temperature == text.temperature
            parts.setdefault(("ngram", temperature), []).append(_point_mass(p, guesses["ngram"][own], tokens, sampled))
            if draft_logits is not None:
                model = _drawn(p, draft_logits.to(p.device), sampling, tokens, sampled)
                lookup = _point_mass(p, guesses["hybrid"][own], tokens, sampled)
                parts.setdefault(("model", temperature), []).append(model)
                parts.setdefault(("hybrid", temperature), []).append(_either(lookup, model))
    found = sum(guess >= 0 for guess in guesses["hybrid"]) / max(1, len(guesses["hybrid"]))
    free = {"ngram": 1.0, "model": 0.0, "hybrid": found}
    return {key: _join(scores, free[key[0]]) for key, scores in parts.items()}


def ngram_guesses(text: TargetText, sizes: Sequence[int]) -> list[int]:
    """What an n-gram drafter guesses for each output position, -1 = nothing."""
    index = NgramIndex(sizes)
    guesses: list[int] = []
    for position, token in enumerate(text.token_ids):
        if position >= text.begin:
            guess = index.guess()
            guesses.append(-1 if guess is None else guess)
        index.append(token)
    return guesses


def _windows(text: TargetText, target: Engine, draft: Engine | None) -> Iterator[tuple[int, Tensor, Tensor | None]]:
    """(position of the first, target's logits [w, V], draft's logits [w, V]) for all output positions in turn."""
    engines = [target, draft] if draft else [target]
    slots = [prefill(engine, text.token_ids, text.begin - 1) for engine in engines]
    width = min(WINDOW, *(engine.max_batched_tokens for engine in engines))
    try:
        for first in range(text.begin, len(text.token_ids), width):
            chunk = text.token_ids[first - 1 : min(first + width, len(text.token_ids)) - 1]
            logits = [
                engine.forward([Chunk(slot, first - 1, chunk, len(chunk))])
                for engine, slot in zip(engines, slots, strict=True)
            ]
            yield first, logits[0], logits[1] if draft else None
    finally:
        for engine, slot in zip(engines, slots, strict=True):
            engine.release(slot)


def _point_mass(p: Tensor, guesses: Sequence[int], tokens: Tensor, sampled: bool) -> Scores:
    """For p [w, V]: guesses that are certain."""
    guess = torch.tensor(guesses, device=p.device)
    proposed = guess >= 0
    overlap = p.gather(1, guess.clamp(min=0)[:, None])[:, 0].double() * proposed
    chance = (guess == tokens).double() if sampled else overlap
    return _scores(overlap, chance, proposed)


def _drawn(
    p: Tensor, draft_logits: Tensor, sampling: Sequence[SamplingParams], tokens: Tensor, sampled: bool
) -> Scores:
    """For p [w, V]: guesses drawn from the draft model's q."""
    if not sampling[0].temperature:
        return _point_mass(p, draft_logits.argmax(dim=-1).tolist(), tokens, sampled)
    ids, weights = draft_weights(draft_logits, sampling)
    q = weights.double() / WEIGHT_TOTAL
    overlap = torch.minimum(p.gather(1, ids).double(), q).sum(dim=1)
    q_token = (q * (ids == tokens[:, None])).sum(dim=1)
    p_token = p.gather(1, tokens[:, None])[:, 0].double()
    ratio = torch.where(p_token > 0, q_token / p_token, overlap)  # 0 only by rounding: it was drawn
    chance = ratio.clamp(max=1.0) if sampled else overlap
    return _scores(overlap, chance, torch.ones_like(tokens, dtype=torch.bool))


def _scores(overlap: Tensor, chance: Tensor, proposed: Tensor) -> Scores:
    return Scores(overlap.cpu().numpy(), chance.cpu().numpy(), proposed.cpu().numpy())


def _either(lookup: Scores, model: Scores) -> Scores:
    """The lookup where it has a guess, else the model: chosen before anything is drawn."""
    where = lookup.proposed
    return Scores(
        np.where(where, lookup.overlap, model.overlap),
        np.where(where, lookup.chance, model.chance),
        where | model.proposed,
    )


def _join(parts: Sequence[Scores], free: float) -> Scores:
    overlap, chance = (np.concatenate([getattr(part, name) for part in parts]) for name in ("overlap", "chance"))
    return Scores(overlap, chance, np.concatenate([part.proposed for part in parts]), free)
