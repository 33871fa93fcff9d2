"""Counter-based randomness: the same bits everywhere, and bits that are good enough."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from draftwire.sampling import Purpose, gumbel, randomness, uniform
from draftwire.sampling.randomness import _mix, _mix_in_place, _signed, coupled_key, exponential

WORD = st.integers(0, 2**64 - 1)


def test_the_hash_is_splitmix64():
    """The first outputs of SplitMix64 seeded with 0, as its authors publish them."""
    gamma = 0x9E3779B97F4A7C15
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [_mix(step * gamma % 2**64) for step in range(3)] == published


@settings(deadline=None)
@given(st.lists(WORD, min_size=1, max_size=40))
def test_tensors_and_integers_give_the_same_bits(words):
    """int64 arithmetic that wraps is the 64-bit hash, for every word."""
    mixed = torch.tensor([_signed(word) for word in words])
    _mix_in_place(mixed, torch.empty_like(mixed))
    assert mixed.tolist() == [_signed(_mix(word)) for word in words]


@settings(deadline=None)
@given(WORD, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**31))
def test_gumbel_is_what_plain_arithmetic_gives(seed, choice, position, token):
    """The noise of one id, recomputed with Python's integers and math.log."""
    u = ((_mix((coupled_key(seed, choice, position) ^ token) % 2**64) >> 11) | 1) * 2.0**-53
    expected = -math.log(-math.log(u))
    noise = gumbel(seed, choice, position, torch.tensor([[token]]))
    assert noise.shape == (1, 1)
    assert noise.item() == pytest.approx(expected, rel=1e-12)


def test_noise_is_finite_at_both_ends(monkeypatch):
    """Hashes of all zeros and of all ones still give a u strictly inside (0, 1), so noise that is finite."""
    monkeypatch.setattr(randomness, "_mix_in_place", lambda words, scratch: None)
    ends = torch.tensor([0, -1])
    assert exponential(0, ends).tolist() == pytest.approx([53 * math.log(2), 2.0**-53])
    assert torch.isfinite(-torch.log(exponential(0, ends))).all()


def test_uniforms_are_uniform_and_independent_of_their_neighbours():
    """Kolmogorov-Smirnov over positions, seeds, choices and salts, and no correlation between neighbours."""
    series = {
        "positions": [uniform(1, 0, i, Purpose.ACCEPT) for i in range(4000)],
        "seeds": [uniform(i, 0, 5, Purpose.ACCEPT) for i in range(4000)],
        "choices": [uniform(1, i, 5, Purpose.DRAFT) for i in range(4000)],
        "salts": [uniform(1, 0, 5, Purpose.DRAFT, i) for i in range(4000)],
    }
    for name, numbers in series.items():
        assert kstest(numbers, "uniform").pvalue > 1e-4, name
        pairs = torch.tensor([numbers[:-1], numbers[1:]])
        assert abs(torch.corrcoef(pairs)[0, 1].item()) < 0.06, name
        assert min(numbers) >= 0
        assert max(numbers) < 1


def test_every_part_of_the_key_matters():
    """Changing any one word changes the number; the same key repeats it."""
    keys = [
        (1, 2, 3, Purpose.ACCEPT, 0),
        (2, 2, 3, Purpose.ACCEPT, 0),
        (1, 3, 3, Purpose.ACCEPT, 0),
        (1, 2, 4, Purpose.ACCEPT, 0),
        (1, 2, 3, Purpose.CORRECTION, 0),
        (1, 2, 3, Purpose.DRAFT, 0),
        (1, 2, 3, Purpose.DRAFT, 1),
    ]
    assert len({uniform(*key) for key in keys}) == len(keys)
    assert uniform(*keys[0]) == uniform(*keys[0])


def test_gumbel_noise_has_the_standard_law():
    """Over token ids and over positions, exp(-exp(-G)) is uniform."""
    over_ids = gumbel(3, 0, 9, torch.arange(5000))
    over_positions = torch.cat([gumbel(3, 0, i, torch.tensor([17])) for i in range(5000)])
    for noise in (over_ids, over_positions):
        assert kstest(torch.exp(-torch.exp(-noise)).numpy(), "uniform").pvalue > 1e-4
