"""The draft's side: what `draw` sends is valid, is what was drawn from, and depends on the row's own key."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from draftwire.errors import EngineError
from draftwire.sampling import DrawKey, draw, gumbel, target_probs
from draftwire.sampling.support import quantise
from draftwire.types import MAX_SUPPORT, WEIGHT_TOTAL, DraftToken, SamplingParams, VerificationMode

KEY = DrawKey(SamplingParams(), VerificationMode.REJECTION, seed=11, choice=0, position=5, path=0)
GREEDY = replace(KEY, sampling=SamplingParams(temperature=0.0))
COUPLED = replace(KEY, mode=VerificationMode.COUPLED)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=MAX_SUPPORT).filter(lambda probs: max(probs) > 1e-6))
def test_weights_are_integers_of_the_right_sum(probs):
    """Whatever the probabilities: weights sum to exactly 2**16, what is dropped is below 2**-16, errors are small."""
    probs = torch.tensor([sorted(probs, reverse=True)], dtype=torch.float64)
    weights, shares = quantise(probs)[0], (probs / probs.sum())[0]
    assert weights.dtype == torch.int64
    assert weights.sum() == WEIGHT_TOTAL
    assert weights.min() >= 0
    assert shares[weights == 0].sum() < len(shares) / WEIGHT_TOTAL
    # one each for all kept, rounding at both edges, and the share of what was dropped
    assert (weights / WEIGHT_TOTAL - shares).abs().max() <= (len(shares) + 2) / WEIGHT_TOTAL


@settings(deadline=None)
@given(st.integers(2, 300), st.floats(0.01, 20), st.integers(0, 2**32))
def test_supports_are_valid(vocab, spread, seed):
    """Ids are distinct and in range, weights >= 1 sum to 2**16, at most 64 entries, and the token is among the ids."""
    logits = torch.randn(4, vocab, generator=torch.Generator().manual_seed(seed)) * spread
    for proposal in draw(logits, [replace(KEY, seed=seed + i) for i in range(4)]):
        if proposal.q is None:
            assert 0 <= proposal.token < vocab
            continue
        assert len(set(proposal.q.ids)) == len(proposal.q.ids) == len(proposal.q.weights)
        assert 2 <= len(proposal.q.ids) <= MAX_SUPPORT
        assert all(0 <= i < vocab for i in proposal.q.ids)
        assert all(w >= 1 for w in proposal.q.weights)
        assert sum(proposal.q.weights) == WEIGHT_TOTAL
        assert proposal.token in proposal.q.ids


def test_the_support_is_the_processed_head():
    """The 64 likeliest tokens of a larger vocabulary, in proportion; top-k cuts it further."""
    logits = torch.randn(1, 5000, generator=torch.Generator().manual_seed(3)) * 4
    (proposal,) = draw(logits, [KEY])
    head = target_probs(logits, [KEY.sampling])[0].topk(MAX_SUPPORT)
    kept = dict(zip(proposal.q.ids, proposal.q.weights, strict=True))
    assert set(kept) <= set(head.indices.tolist())
    for token, p in zip(head.indices.tolist(), (head.values / head.values.sum()).tolist(), strict=True):
        assert abs(kept.get(token, 0) / WEIGHT_TOTAL - p) < 1.1e-3
    (cut,) = draw(logits, [replace(KEY, sampling=SamplingParams(top_k=3))])
    assert set(cut.q.ids) == set(head.indices[:3].tolist())


@pytest.mark.parametrize(
    "key",
    [
        GREEDY,
        replace(GREEDY, mode=VerificationMode.COUPLED),
        replace(KEY, sampling=SamplingParams(top_k=1)),
        replace(KEY, sampling=SamplingParams(temperature=0.05)),
    ],
    ids=["greedy", "greedy coupled", "top_k=1", "nothing but the head left"],
)
def test_a_support_of_one_is_a_point_mass(key):
    """Where a single token is left to draw, no weights are sent."""
    assert draw(torch.tensor([[0.0, 5.0, 1.0, 2.0]]), [key]) == [DraftToken(1)]


def test_draws_follow_the_weights():
    """Chi-square over positions: tokens come in proportion to the weights that are sent."""
    logits = torch.tensor([[0.0, 1.0, -1.0, 2.0, 0.5]]).expand(8000, 5)
    drawn = draw(logits, [replace(KEY, position=i) for i in range(8000)])
    seen, q = Counter(proposal.token for proposal in drawn), drawn[0].q
    expected = [w / WEIGHT_TOTAL * 8000 for w in q.weights]
    assert chisquare([seen[i] for i in q.ids], expected).pvalue > 1e-4


def test_the_key_decides_the_draw():
    """Another path, position, choice or seed is a fresh draw; the same key is the same draw."""
    logits = torch.zeros(1, 64)
    fields = ("path", "position", "choice", "seed")
    for field in fields:
        tokens = [draw(logits, [replace(KEY, **{field: i})])[0].token for i in range(50)]
        assert len(set(tokens)) > 20
    assert draw(logits, [KEY]) == draw(logits, [KEY])


def test_coupled_draws_ignore_the_path():
    """The shared noise belongs to the position: a redraw after a rejection gives the same token for the same q."""
    logits = torch.zeros(1, 64)
    assert draw(logits, [COUPLED]) == draw(logits, [replace(COUPLED, path=9)])


def test_coupled_draws_are_gumbel_max():
    """The race on E / p is argmax(log p + G) over the processed distribution, and its token is a point mass."""
    sampling = SamplingParams(temperature=0.8, top_k=20)
    logits = torch.randn(200, 50, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    keys = [replace(COUPLED, sampling=sampling, position=i) for i in range(200)]
    log_probs = target_probs(logits, [sampling] * 200).log()
    noise = torch.stack([gumbel(11, 0, i, torch.arange(50)) for i in range(200)])
    assert draw(logits, keys) == [DraftToken(token) for token in (log_probs + noise).argmax(dim=1).tolist()]


def test_rows_do_not_depend_on_the_batch():
    """Greedy, sparse and coupled rows mixed: each draws what it draws alone, in any order."""
    sampling = [SamplingParams(), SamplingParams(temperature=0.6, top_p=0.9), SamplingParams(min_p=0.1)]
    keys = [GREEDY, COUPLED] + [replace(KEY, sampling=s, seed=i) for i, s in enumerate(sampling)]
    logits = torch.randn(5, 701, generator=torch.Generator().manual_seed(2)) * 3
    alone = [draw(logits[i : i + 1], [keys[i]])[0] for i in range(5)]
    assert draw(logits, keys) == alone
    assert draw(logits.flip(0), keys[::-1]) == alone[::-1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_draws_the_cpus_tokens():
    """The same logits and keys on the two devices; float32 sums may move a weight by one."""
    keys = [replace(key, position=i) for i in range(20) for key in (GREEDY, COUPLED, KEY)]
    logits = torch.randn(60, 701, generator=torch.Generator().manual_seed(6)) * 3
    here, there = draw(logits, keys), draw(logits.cuda(), keys)
    assert [proposal.token for proposal in here] == [proposal.token for proposal in there]


def test_nothing_to_draw():
    """An empty batch is no error."""
    assert draw(torch.empty(0, 5), []) == []


@pytest.mark.parametrize("key", [KEY, GREEDY, COUPLED], ids=["sparse", "greedy", "coupled"])
def test_broken_logits_are_an_engine_error(key):
    """NaN never becomes a token."""
    with pytest.raises(EngineError):
        draw(torch.tensor([[0.0, torch.nan]]), [key])
