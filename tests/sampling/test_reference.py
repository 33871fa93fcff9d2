"""The textbook function's contract; its exact law is in test_exactness.py."""

from collections import Counter

import pytest
import torch
from scipy.stats import chisquare

from draftwire.errors import InvalidArgument
from draftwire.sampling import verify_draft_tokens

P = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.3, 0.3, 0.4]])
Q = torch.tensor([[0.2, 0.3, 0.5], [0.4, 0.4, 0.2]])

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]


@pytest.mark.parametrize("device", DEVICES)
def test_output_follows_the_target(device):
    """Chi-square over 2000 runs with drafts drawn from q: the first token has law p_0, the second p_1."""
    generator = torch.Generator().manual_seed(0)
    p, q = P.to(device), Q.to(device)
    first, second = Counter(), Counter()
    for drafted in torch.multinomial(Q, 2000, replacement=True, generator=generator).T.to(device):
        tokens, first_rejected = verify_draft_tokens(p, q, drafted, generator)
        assert tokens.device.type == device
        assert tokens.dtype == torch.int64
        assert len(tokens) == first_rejected + 1
        assert torch.equal(tokens[:first_rejected], drafted[:first_rejected])
        first[int(tokens[0])] += 1
        if len(tokens) > 1:
            second[int(tokens[1])] += 1
    for seen, law in ((first, P[0]), (second, P[1])):
        assert (
            chisquare([seen[t] for t in range(3)], (law.double() / law.double().sum() * seen.total()).tolist()).pvalue
            > 1e-4
        )


def test_sure_outcomes():
    """p = q accepts all and adds the bonus; a token that the target excludes is rejected and corrected."""
    sure = torch.eye(3)
    generator = torch.Generator().manual_seed(1)
    tokens, first_rejected = verify_draft_tokens(sure, sure[:2], torch.tensor([0, 1]), generator)
    assert (tokens.tolist(), first_rejected) == ([0, 1, 2], 2)
    tokens, first_rejected = verify_draft_tokens(sure, sure[[0, 2]], torch.tensor([0, 2]), generator)
    assert (tokens.tolist(), first_rejected) == ([0, 1], 1)


def test_no_draft_tokens():
    """K = 0 draws one token from p_0."""
    tokens, first_rejected = verify_draft_tokens(
        torch.eye(3)[1:2], torch.empty(0, 3), torch.empty(0, dtype=torch.int64), torch.Generator()
    )
    assert (tokens.tolist(), first_rejected) == ([1], 0)


def test_the_generator_is_the_only_randomness():
    """The same generator state gives the same tokens, and the global generator is not touched."""
    state = torch.get_rng_state()
    runs = [verify_draft_tokens(P, Q, torch.tensor([2, 0]), torch.Generator().manual_seed(3)) for _ in range(2)]
    assert torch.equal(runs[0][0], runs[1][0])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("draft_tokens", (P, torch.tensor([[0.0, 0.5, 0.5], [0.4, 0.4, 0.2]]), torch.tensor([0, 1]))),
        ("draft_tokens", (P, Q, torch.tensor([0, 3]))),
        ("draft_tokens", (P, Q, torch.tensor([-1, 0]))),
        ("draft_tokens", (P, Q, torch.tensor([0.0, 1.0]))),
        ("draft_tokens", (P, Q, torch.tensor([[0, 1]]))),
        ("target_probs", (P[:2], Q, torch.tensor([0, 1]))),
        ("draft_probs", (P, Q[:, :2], torch.tensor([0, 1]))),
        ("target_probs", (P * torch.nan, Q, torch.tensor([0, 1]))),
        ("target_probs", (torch.zeros(3, 3), Q, torch.tensor([0, 1]))),
        ("draft_probs", (P, Q - 0.3, torch.tensor([0, 1]))),
    ],
)
def test_bad_arguments_name_the_field(field, arguments):
    """q(x) = 0, ids out of range, wrong shapes and entries that are no probabilities."""
    with pytest.raises(InvalidArgument) as raised:
        verify_draft_tokens(*arguments, torch.Generator())
    assert raised.value.field == field
