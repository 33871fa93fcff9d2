"""What is kept of a distribution, against float64, and the law of the token that is drawn."""

import pytest
import torch

from distill import rows
from distill.rows import MIN_LOGMASS, teacher_rows

V, K = 50, 6
TEMPERATURES = (1.0, 1.5, 0.7)


def some_logits(count=20, scale=3.0):
    """Random rows, and a hidden state and a head whose product they are."""
    generator = torch.Generator().manual_seed(0)
    head, hidden = torch.randn(V, 16, generator=generator), torch.randn(count, 16, generator=generator) * scale / 4
    return hidden @ head.T, hidden, head


def kept(logits, hidden, head, samplings=0.0, uniforms=0.0, top_k=K):
    """teacher_rows with the same sampling everywhere."""
    count = len(logits)
    return teacher_rows(
        logits,
        hidden,
        head,
        top_k=top_k,
        temperatures=TEMPERATURES,
        samplings=[samplings] * count,
        uniforms=uniforms if isinstance(uniforms, list) else [uniforms] * count,
    )


def test_values_against_float64():
    """Ids by falling probability, their log-probabilities at temperature 1, the others' mass at each temperature."""
    logits, hidden, head = some_logits()
    found = kept(logits, hidden, head)
    probs = logits.double().softmax(-1)
    top = probs.topk(K)
    assert torch.equal(found.top_ids, top.indices.int())
    torch.testing.assert_close(found.top_logprobs.double(), top.values.log(), atol=1e-2, rtol=1e-3)  # float16
    for column, temperature in enumerate(TEMPERATURES):
        scaled = (logits.double() / temperature).softmax(-1)
        outside = scaled.scatter(1, top.indices, 0).sum(-1)
        torch.testing.assert_close(found.tail_logmass[:, column].double(), outside.log(), atol=1e-5, rtol=1e-5)
    assert torch.equal(found.tokens, top.indices[:, 0])


def test_a_row_does_not_depend_on_the_batch():
    """Rows are treated some at a time; 20 of them, of which the last 4 stand alone, agree with one by one."""
    logits, hidden, head = some_logits()
    assert len(logits) % rows._CPU_ROWS != 0
    together = kept(logits, hidden, head, 1.0, 0.6)
    for i in range(len(logits)):
        alone = kept(logits[i : i + 1], hidden[i : i + 1], head, 1.0, 0.6)
        assert torch.equal(alone.tokens[0], together.tokens[i])
        torch.testing.assert_close(alone.tail_logmass[0], together.tail_logmass[i])


def test_a_tiny_tail_keeps_its_digits():
    """One id at 0, the others at -30: their mass is 49 e^-30 = 4.6e-12, which 1 - p would round to nothing."""
    logits = torch.full((1, V), -30.0)
    logits[0, 7] = 0.0
    found = kept(logits, torch.zeros(1, 16), torch.zeros(V, 16), top_k=1)
    assert found.top_ids.tolist() == [[7]]
    assert found.tail_logmass[0, 0].item() == pytest.approx(-30 + torch.tensor(49.0).log().item(), abs=1e-4)


def test_nothing_outside():
    """With every id kept, the tail is empty: a number that a loss can use, not -inf."""
    logits, hidden, head = some_logits(2)
    found = kept(logits, hidden, head, top_k=V)
    assert torch.equal(found.tail_logmass, torch.full((2, 3), MIN_LOGMASS))
    assert found.top_logprobs.double().exp().sum(-1) == pytest.approx(1, abs=2e-3)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.3])
def test_the_law_of_the_token(temperature):
    """With u on a grid of 4,000, every id comes in proportion to p, up to one grid point at each end of its stretch.

    p is the whole distribution at that temperature: ids outside the kept ones are drawn, too.
    """
    logits, hidden, head = some_logits(1)
    count = 4000
    grid = [(i + 0.5) / count for i in range(count)]
    found = kept(logits.expand(count, V), hidden.expand(count, 16), head, temperature, grid)
    drawn = found.tokens.bincount(minlength=V).double()
    expected = (logits[0].double() / temperature).softmax(-1) * count
    assert (drawn - expected).abs().max() <= 1.01
    outside = drawn.scatter(0, found.top_ids[0].long(), 0)
    assert (outside > 0).sum() > 5


def test_the_ends_of_the_unit_interval():
    """u = 0 is the likeliest id, u just below 1 the last id that has probability."""
    logits, hidden, head = some_logits(1)
    logits[0, 40:] = -torch.inf
    last = kept(logits, hidden, head, 1.0, 1 - 2**-53).tokens.item()
    assert kept(logits, hidden, head, 1.0, 0.0).tokens.item() == logits.argmax()
    assert last == max(set(range(40)) - set(kept(logits, hidden, head).top_ids[0].tolist()))


def test_ties_of_a_bfloat16_head_are_broken_in_float32():
    """Logits 32 and 32.0625 are one number in bfloat16; the hidden state and the head tell them apart."""
    head = torch.zeros(V, 16)
    head[3, 0], head[9, :2] = 32.0, torch.tensor([32.0, 0.0625])
    hidden = torch.zeros(1, 16)
    hidden[0, :2] = 1.0
    logits = (hidden @ head.T).bfloat16()
    assert logits[0, 3] == logits[0, 9]
    found = kept(logits, hidden.bfloat16(), head.bfloat16())
    assert found.top_ids[0, :2].tolist() == [9, 3]
    assert found.tokens.tolist() == [9]
    gap = found.top_logprobs[0, 0] - found.top_logprobs[0, 1]
    assert gap.item() == pytest.approx(0.0625, abs=1e-3)
