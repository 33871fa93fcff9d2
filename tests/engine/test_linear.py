"""Packed linear layers: only where float16 loses nothing, and then the same numbers."""

import pytest
import torch
from torch import nn

from draftwire.engine.linear import PackedLinear, pack_linears


def layer(weight, bias=True):
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias)
    linear.weight = nn.Parameter(weight, requires_grad=False)
    return nn.Sequential(linear).requires_grad_(False)


@pytest.fixture
def bfloat16_values():
    return (torch.randn(48, 32, generator=torch.Generator().manual_seed(1)) * 0.02).bfloat16().float()


@pytest.mark.parametrize("rows", [1, 2, 6, 7, 33])
@pytest.mark.parametrize("bias", [False, True])
def test_equal_to_the_float32_layer(bfloat16_values, rows, bias):
    """Weights that came from bfloat16 give what torch's own float32 layer gives, up to float32 rounding."""
    plain = layer(bfloat16_values, bias)
    x = torch.randn(1, rows, 32, generator=torch.Generator().manual_seed(rows))
    expected = plain(x)
    assert pack_linears(plain) == 1
    assert isinstance(plain[0], PackedLinear)
    torch.testing.assert_close(plain(x), expected, atol=1e-6, rtol=1e-5)


def test_one_thread_and_many_agree(bfloat16_values):
    """The function for one thread and the one for several give the same bits."""
    threads = torch.get_num_threads()
    x = torch.randn(6, 32, generator=torch.Generator().manual_seed(6))
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            model = layer(bfloat16_values, bias=False)
            pack_linears(model)
            results.append(model(x))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*results)


@pytest.mark.parametrize(
    "change",
    [
        lambda weight: weight + 1e-5 * torch.rand_like(weight),  # more digits than float16 has
        lambda weight: weight.index_fill(0, torch.tensor([3]), 1e5),  # beyond float16's range
        lambda weight: weight.bfloat16(),  # arithmetic in bfloat16 was asked for
    ],
    ids=["digits", "range", "dtype"],
)
def test_left_alone(bfloat16_values, change):
    """A layer whose weights float16 would round, or that is not float32, stays as it is."""
    model = layer(change(bfloat16_values))
    assert pack_linears(model) == 0
    assert type(model[0]) is nn.Linear
