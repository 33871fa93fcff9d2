"""Acceptance at each position, on models whose p and q can be computed by hand."""

import math

import pytest
import torch

from distill.scores import score
from distill.texts import TargetText, write_texts
from draft_service.drafters.hybrid import HybridDrafter
from draft_service.drafters.model import ModelDrafter
from draft_service.session import Session
from draftwire.engine.base import Chunk
from draftwire.engine.fake import FakeEngine
from draftwire.fake_model import FakeModel
from draftwire.sampling import target_probs
from draftwire.session import Open
from draftwire.types import WEIGHT_TOTAL, DraftToken, SamplingParams, VerificationMode

REPEATING = (1, 2, 3, 4, 9, 1, 2, 3, 4, 7, 1, 2, 3, 4, 7, 2)


def engine(**fields):
    return FakeEngine(FakeModel(**fields), num_slots=2)


def test_greedy_by_hand():
    """From 7 at position 0 the target counts up, but skips one at positions 5 and 10, which its draft never does."""
    target, draft = engine(drift=5), engine()
    [text] = write_texts(target, [("count", (7,))], temperature=0.0, max_tokens=12, seed=1)
    assert text.token_ids == (7, 8, 9, 10, 11, 13, 14, 15, 16, 17, 19, 20, 21)
    scores = score(text, target, draft, [0.0])["model", 0.0]
    assert scores.overlap.tolist() == scores.chance.tolist() == [1, 1, 1, 1, 0, 1, 1, 1, 1, 0, 1, 1]
    assert scores.proposed.all()


def test_overlap_of_a_truncated_q():
    """p is e^4 for token 8 and 1 for 511 others, q for 63 others: min(p, q) sums to (e^4 + 63) / (e^4 + 511)."""
    target, draft = engine(vocab_size=512, sharpness=4.0), engine(vocab_size=512, sharpness=4.0)
    scores = score(TargetText((7, 8), 1), target, draft, [1.0])["model", 1.0]
    peak = math.exp(4)
    assert scores.overlap == pytest.approx([(peak + 63) / (peak + 511)], abs=64 / WEIGHT_TOTAL)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize("drafter", ["model", "ngram", "hybrid"])
def test_chance_is_the_overlap_given_the_token(drafter, temperature):
    """Summed over every token that the target may write, p(x) times the chance at x is sum min(p, q)."""
    target, draft = engine(vocab_size=6, sharpness=1.0, drift=2), engine(vocab_size=6, sharpness=2.0)
    for before in ((1, 2, 3, 5, 1, 2, 3), (0, 3)):
        p = probabilities(target, before, temperature)
        chances = []
        for token in range(6):
            text = TargetText((*before, token), len(before), temperature=temperature)
            scores = score(text, target, draft, [temperature])[drafter, temperature]
            chances.append(scores.chance[0])
        assert sum(p[token] * chances[token] for token in range(6)) == pytest.approx(scores.overlap[0], abs=1e-6)


def test_chance_falls_back_where_the_text_is_no_sample():
    """A text sampled at temperature 1 says nothing about which guesses are accepted at 0.5."""
    target, draft = engine(vocab_size=6, sharpness=1.0), engine(vocab_size=6, sharpness=2.0)
    scores = score(TargetText((1, 2, 5, 3), 1, temperature=1.0), target, draft, [0.5, 1.0])
    assert (scores["model", 0.5].chance == scores["model", 0.5].overlap).all()
    assert (scores["model", 1.0].chance != scores["model", 1.0].overlap).any()


@pytest.mark.parametrize(("temperature", "begin"), [(0.0, 1), (0.0, 9), (1.0, 1), (1.0, 9)])
def test_hybrid_is_what_the_service_drafts(temperature, begin):
    """At every position: what the real drafter proposes for it, and how the target takes that."""
    target, draft = engine(vocab_size=12, sharpness=2.0, drift=3), engine(vocab_size=12, sharpness=1.0)
    scores = score(TargetText(REPEATING, begin), target, draft, [temperature])["hybrid", temperature]
    for position in range(begin, len(REPEATING)):
        guess = drafted(draft, REPEATING[:position], temperature)
        p = probabilities(target, REPEATING[:position], temperature)
        if guess.q is None:
            overlap = p[guess.token]
        else:
            overlap = sum(min(p[x], w / WEIGHT_TOTAL) for x, w in zip(guess.q.ids, guess.q.weights, strict=True))
        assert scores.overlap[position - begin] == pytest.approx(overlap, abs=1e-7)


def test_ngram_alone_needs_no_draft():
    """Where no n-gram matches nothing is proposed: 1 2 is new, after the second 1 comes the first one's 2."""
    scores = score(TargetText((1, 2, 1, 2), 1), engine(), None, [0.0])
    assert list(scores) == [("ngram", 0.0)]
    assert scores["ngram", 0.0].proposed.tolist() == [False, False, True]


def test_a_long_text_in_windows(monkeypatch):
    """The same numbers whether positions are judged all at once or three at a time, with small forwards."""
    text = TargetText(tuple(range(40)), 11, temperature=1.0)
    whole = score(text, engine(sharpness=3.0), engine(sharpness=2.0, drift=4), [1.0])["hybrid", 1.0]
    monkeypatch.setattr("distill.scores.WINDOW", 3)
    small = [FakeEngine(FakeModel(sharpness=s, drift=d), max_batched_tokens=4) for s, d in ((3.0, 0), (2.0, 4))]
    parts = score(text, *small, [1.0])["hybrid", 1.0]
    assert (whole.overlap == parts.overlap).all()
    assert (whole.chance == parts.chance).all()


def probabilities(target, before, temperature):
    """p behind these tokens."""
    slot, _ = target.acquire(before)
    logits = target.forward([Chunk(slot, 0, before, 1)])
    target.release(slot)
    return target_probs(logits, [SamplingParams(temperature=temperature)])[0].double().tolist()


def drafted(draft, before, temperature) -> DraftToken:
    """What the hybrid drafter proposes behind these tokens."""
    drafter, key = HybridDrafter(ModelDrafter(draft)), (0, 1)
    sampling = SamplingParams(temperature=temperature)
    session = Session(Open(1, before, sampling, VerificationMode.REJECTION, 3, 0, window=1), drafter.info)
    assert drafter.open(key, session)
    tokens: list[DraftToken] = []
    while not tokens:
        for result in drafter.step([(key, session)]) or []:
            tokens += result.tokens
    drafter.close(key)
    return tokens[0]


def test_write_texts_samples_by_the_seed():
    """Exactly as many tokens as asked for, each prompt its own randomness, the same again for the same seed."""
    target = engine(sharpness=2.0)
    prompts = [("a", (1, 2)), ("b", (1, 2)), ("c", (3,))]  # three prompts, two slots
    texts = write_texts(target, prompts, temperature=1.0, max_tokens=9, seed=1)
    assert [(text.kind, text.begin, len(text.token_ids)) for text in texts] == [
        ("a", 2, 11),
        ("b", 2, 11),
        ("c", 1, 10),
    ]
    assert texts[0].token_ids != texts[1].token_ids
    assert texts == write_texts(target, prompts, temperature=1.0, max_tokens=9, seed=1)
    assert texts != write_texts(target, prompts, temperature=1.0, max_tokens=9, seed=2)
    assert torch.is_inference_mode_enabled() is False
