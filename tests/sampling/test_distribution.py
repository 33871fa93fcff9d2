"""Logits to p: temperature, top-k, top-p, min-p, against a plain version that sorts everything."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire.errors import EngineError
from draftwire.sampling import target_probs
from draftwire.sampling.distribution import TOP_P_WIDTHS
from draftwire.types import SamplingParams


def plain_probs(logits, params):
    """One row in Python floats, straight from the definitions; `params.top_p` is never hit exactly."""
    if params.temperature == 0:
        return [float(i == logits.index(max(logits))) for i in range(len(logits))]
    scaled = [(x - max(logits)) / params.temperature for x in logits]
    kept = sorted(range(len(logits)), key=lambda i: -scaled[i])
    if params.top_k:
        kept = [i for i in kept if scaled[i] >= scaled[kept[min(params.top_k, len(kept)) - 1]]]
    if params.top_p < 1:
        total, mass, last = math.fsum(math.exp(scaled[i]) for i in kept), 0.0, None
        for last in kept:
            mass += math.exp(scaled[last]) / total
            if mass >= params.top_p:
                break
        kept = [i for i in kept if scaled[i] >= scaled[last]]
    if params.min_p:
        kept = [i for i in kept if scaled[i] >= math.log(params.min_p)]
    total, probs = math.fsum(math.exp(scaled[i]) for i in kept), [0.0] * len(logits)
    for i in kept:
        probs[i] = math.exp(scaled[i]) / total
    return probs


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.31, 1.0, 2.7]),
    top_k=st.sampled_from([0, 1, 2, 5, 100]),
    top_p=st.sampled_from([0.1234, 0.5678, 0.9123, 1.0]),
    min_p=st.sampled_from([0.0, 0.0123, 0.4567]),
)
ROWS = st.integers(1, 12).flatmap(
    lambda vocab: st.lists(
        st.tuples(st.lists(st.integers(-12, 12).map(lambda n: n / 3), min_size=vocab, max_size=vocab), PARAMS),
        min_size=1,
        max_size=6,
    )
)


@settings(deadline=None)
@given(ROWS)
def test_mixed_rows_match_the_plain_version(rows):
    """Any mix of parameters in one batch, ties included: the same support and the same numbers."""
    logits = torch.tensor([row for row, _ in rows], dtype=torch.float64)
    probs = target_probs(logits, [params for _, params in rows])
    for (row, params), got in zip(rows, probs.tolist(), strict=True):
        expected = plain_probs(row, params)
        assert [p > 0 for p in got] == [p > 0 for p in expected]
        assert got == pytest.approx(expected, abs=1e-13)


@pytest.mark.parametrize(
    ("spread", "least_kept"),
    [(4.0, 1), (0.5, TOP_P_WIDTHS[0]), (0.01, TOP_P_WIDTHS[1])],
    ids=["found among the first", "found among the second", "found among all"],
)
@pytest.mark.parametrize("top_k", [0, 2500])
def test_top_p_looks_as_far_as_it_must(spread, least_kept, top_k):
    """Flat distributions need more tokens than each of the widths holds, and are cut exactly all the same."""
    params = SamplingParams(top_p=0.8765, top_k=top_k)
    logits = torch.randn(3, 3000, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * spread
    probs = target_probs(logits, [params] * 3)
    for row, got in zip(logits.tolist(), probs, strict=True):
        expected = plain_probs(row, params)
        assert sum(p > 0 for p in expected) > least_kept
        assert torch.allclose(got, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_rows_are_bit_identical_whatever_shares_the_batch():
    """A row alone, in the batch and in the batch reversed: the same bits, at odd sizes, with one and two threads."""
    params = [
        SamplingParams(),
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.7, top_p=0.9),
        SamplingParams(top_k=40, min_p=0.01),
        SamplingParams(temperature=1.5, top_p=0.99, top_k=1000),
    ]
    threads = torch.get_num_threads()
    try:
        for vocab in (7, 513, 33001):
            logits = torch.randn(5, vocab, generator=torch.Generator().manual_seed(vocab))
            torch.set_num_threads(1)
            alone = torch.cat([target_probs(logits[i : i + 1], params[i : i + 1]) for i in range(5)])
            for count in (1, 2):
                torch.set_num_threads(count)
                assert torch.equal(alone, target_probs(logits, params))
                assert torch.equal(alone, target_probs(logits.flip(0), params[::-1]).flip(0))
                assert torch.equal(alone[2:3], target_probs(logits[2:3], params[2:3]))
    finally:
        torch.set_num_threads(threads)


def test_greedy_ties_go_to_the_lowest_id():
    """Equal maxima, as bf16 logits often have them."""
    logits = torch.tensor([[1.0, 3.0, 3.0, 3.0]], dtype=torch.bfloat16)
    assert target_probs(logits, [SamplingParams(temperature=0.0)]).tolist() == [[0.0, 1.0, 0.0, 0.0]]


def test_equally_likely_tokens_stay_together():
    """top-k 2 over three equal maxima keeps the three: nothing in the logits says which to drop."""
    logits = torch.tensor([[2.0, 0.0, 2.0, 2.0]])
    expected = [1 / 3, 0.0, 1 / 3, 1 / 3]
    assert target_probs(logits, [SamplingParams(top_k=2)])[0].tolist() == pytest.approx(expected)


def test_half_precision_logits_become_float32():
    """p is never below float32; float64 logits, used by the exact tests, stay float64."""
    for dtype, expected in [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ]:
        assert target_probs(torch.zeros(1, 4, dtype=dtype), [SamplingParams()]).dtype == expected


@pytest.mark.parametrize("temperature", [1e-45, 1e-3, 100.0])
def test_extreme_temperatures_give_a_distribution(temperature):
    """The smallest and largest temperatures neither overflow nor divide by zero."""
    probs = target_probs(torch.tensor([[1.0, 2.0, -torch.inf, 1e4]]), [SamplingParams(temperature=temperature)])
    assert probs.sum().item() == pytest.approx(1.0)
    assert probs.argmax().item() == 3
    assert probs[0, 2] == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits_are_an_engine_error(bad, temperature):
    """NaN and +inf are refused, and so is a row that excludes every token."""
    logits = torch.zeros(3, 4)
    logits[1, 2] = bad
    with pytest.raises(EngineError, match="NaN"):
        target_probs(logits, [SamplingParams(temperature=temperature)] * 3)
    with pytest.raises(EngineError, match="-inf"):
        target_probs(torch.full((1, 4), -math.inf), [SamplingParams(temperature=temperature)])


def test_logits_are_not_changed():
    """A pure function: float32 input is read, not overwritten."""
    logits = torch.randn(2, 9)
    before = logits.clone()
    target_probs(logits, [SamplingParams(temperature=0.5, top_k=3), SamplingParams(temperature=0.0)])
    assert torch.equal(logits, before)
