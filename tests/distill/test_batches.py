"""Batches: a batch by hand, what is cut off, and how examples are dealt out over a run."""

import itertools
from collections import Counter

import pytest
import torch
from accelerate import skip_first_batches
from accelerate.data_loader import prepare_data_loader
from hypothesis import given
from hypothesis import strategies as st
from support.naive_loss import store
from torch.utils.data import DataLoader

from distill.batches import Collator, TokenBudgetBatches, example_sizes
from distill.data import Example
from distill.losses import DistillationLoss
from draftwire.errors import InvalidArgument

TEMPERATURES = (1.0, 1.5)


def example(tokens, supervised, first=0.0):
    """With rows of the teacher that count up from `first`."""
    rows = torch.arange(sum(supervised)).float() + first
    return Example(
        token_ids=torch.tensor(tokens),
        supervised=torch.tensor(supervised).bool(),
        top_ids=torch.stack([rows + 100, rows + 200], dim=1).long(),
        top_logprobs=torch.stack([-rows - 1, -rows - 2], dim=1),
        tail_logmass=torch.stack([-rows - 10, -rows - 20], dim=1),
        kind="chat",
        temperature=0.0,
    )


SHORT = example([5, 6, 7], [0, 0, 1])
LONG = example([1, 2, 3, 4, 8], [0, 1, 1, 0, 1], first=30.0)


def test_a_batch_by_hand():
    """Right padding; each supervised token is predicted one output before it; the teacher's rows in the same order."""
    batch = Collator(TEMPERATURES, 1.5, max_length=16, pad_id=9)([SHORT, LONG])
    assert {name: tensor.tolist() for name, tensor in batch.items()} == {
        "input_ids": [[5, 6, 7, 9, 9], [1, 2, 3, 4, 8]],
        "attention_mask": [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]],
        "positions": [1, 5, 6, 8],  # token 7 is predicted at 6; 2, 3 and 8 at 1, 2 and 4 of the second row
        "labels": [7, 2, 3, 8],
        "top_ids": [[100, 200], [130, 230], [131, 231], [132, 232]],
        "top_logprobs": [[-1, -2], [-31, -32], [-32, -33], [-33, -34]],
        "tail_logmass": [-20, -50, -51, -52],  # the second of the two temperatures
    }
    for name in ("input_ids", "attention_mask", "positions", "labels", "top_ids"):
        assert batch[name].dtype == torch.int64
    assert batch["top_logprobs"].dtype == batch["tail_logmass"].dtype == torch.float32


def test_the_beginning_is_kept():
    """At most three tokens: the long one loses its last supervised token together with the teacher's row for it."""
    batch = Collator(TEMPERATURES, 1.0, max_length=3)([LONG, SHORT])
    assert batch["input_ids"].tolist() == [[1, 2, 3], [5, 6, 7]]
    assert batch["labels"].tolist() == [2, 3, 7]
    assert batch["top_ids"].tolist() == [[130, 230], [131, 231], [100, 200]]
    assert batch["tail_logmass"].tolist() == [-40, -41, -10]
    assert example_sizes([LONG, SHORT], 3) == [(3, 2), (3, 1)]
    assert example_sizes([LONG, SHORT], 2) == [(2, 1), (2, 0)]


def test_nothing_left_to_supervise():
    """A batch whose supervised tokens were all cut off is empty but has its shape."""
    batch = Collator(TEMPERATURES, 1.0, max_length=2)([SHORT])
    assert batch["positions"].shape == batch["labels"].shape == batch["tail_logmass"].shape == (0,)
    assert batch["top_ids"].shape == (0, 2)


@pytest.mark.parametrize(
    ("field", "settings"), [("temperature", {"temperature": 0.7}), ("max_length", {"max_length": 1})]
)
def test_bad_settings_are_named(field, settings):
    """A temperature that the data lacks, a length that leaves nothing to predict."""
    with pytest.raises(InvalidArgument, match=f"^{field}: "):
        Collator(TEMPERATURES, **{"temperature": 1.0, "max_length": 8} | settings)


def test_a_supervised_first_token():
    """Would be predicted by the sequence before it: refused."""
    with pytest.raises(InvalidArgument, match="^supervised: "):
        Collator(TEMPERATURES, 1.0, 8)([SHORT, example([1, 2], [1, 1])])


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_loss_of_a_batch_is_the_loss_of_its_sequences(temperature):
    """From Example through the collator: the loss over [batch, seq, V] logits with everything else masked."""
    vocab, lengths = 11, (4, 6)
    noise = torch.Generator().manual_seed(5)
    student = torch.randn(2, 6, vocab, generator=noise, dtype=torch.float64)
    teacher = torch.randn(2, 6, vocab, generator=noise, dtype=torch.float64)
    tokens = torch.randint(vocab, (2, 6), generator=noise)
    supervised = torch.tensor([[0, 0, 1, 1, 0, 0], [0, 1, 0, 1, 1, 1]]).bool()

    examples = []
    for row, length in enumerate(lengths):
        at = supervised[row].nonzero()[:, 0] - 1  # where the supervised tokens are predicted
        top_ids, top_logprobs, _ = store(teacher[row, at], vocab - 1, 1.0)
        tails = [store(teacher[row, at], vocab - 1, t)[2] for t in TEMPERATURES]
        kept = tokens[row, :length], supervised[row, :length]
        examples.append(Example(*kept, top_ids, top_logprobs, torch.stack(tails, dim=1), "chat", 1.0))
    batch = Collator(TEMPERATURES, temperature, max_length=8)(examples)

    loss = DistillationLoss(temperature)
    stored = [batch[name] for name in ("top_ids", "top_logprobs", "tail_logmass", "labels")]
    value = loss.from_top_k(student.flatten(0, 1)[batch["positions"]], *stored)
    labels = torch.full((2, 6), -100)
    labels[:, :-1] = torch.where(supervised[:, 1:], tokens[:, 1:], -100)
    torch.testing.assert_close(value, loss(student, teacher, labels))  # with k = V - 1 nothing is lost


def sizes_of(number, seed=0):
    """Lengths of 20 to 419, of which a part is supervised."""
    noise = torch.Generator().manual_seed(seed)
    lengths = torch.randint(20, 420, (number,), generator=noise)
    return [(int(length), int(length * 0.7)) for length in lengths]


SIZES = sizes_of(700)


def supervised_in(batch, sizes=SIZES):
    return sum(sizes[index][1] for index in batch)


def test_a_pass_has_every_example_once():
    """In each of three passes, in another order; one batch at most is far from full."""
    batches = list(TokenBudgetBatches(SIZES, tokens=1200, padded=6000, passes=3, seed=4))
    assert Counter(index for batch in batches for index in batch) == Counter(dict.fromkeys(range(700), 3))
    few = [batch for batch in batches if supervised_in(batch) < 1200 - 0.7 * 420]
    assert len(few) <= 3
    third = len(batches) // 3
    orders = {tuple(index for batch in batches[start : start + third] for index in batch) for start in (0, third)}
    assert len(orders) == 2


def test_batches_are_of_like_length_and_in_no_order():
    """Less than an eighth is padding; long batches come as often early as late."""
    batches = list(TokenBudgetBatches(SIZES, tokens=1200, padded=6000))
    longest = [max(SIZES[index][0] for index in batch) for batch in batches]
    padded = sum(len(batch) * length for batch, length in zip(batches, longest, strict=True))
    assert padded < sum(length for length, _ in SIZES) / (1 - 1 / 8)
    ascending = sum(one <= two for one, two in itertools.pairwise(longest))
    assert 0.3 < ascending / len(longest) < 0.7


def test_the_seed_decides_the_batches():
    """Same arguments, same batches, whenever they are asked for; another seed, others."""
    first, again, other = (TokenBudgetBatches(SIZES, 1200, 6000, passes=2, seed=seed) for seed in (1, 1, 2))
    assert list(first) == list(first) == list(again) != list(other)
    assert len(first) == len(list(first))


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)).map(lambda s: (s[0], min(s[0] - 1, s[1])))),
    st.integers(1, 120),
    st.integers(1, 120),
    st.integers(1, 3),
)
def test_the_limits_hold(sizes, tokens, padded, passes):
    """Whatever the sizes: both limits hold for batches of more than one; nothing without a supervised token is used."""
    useful = {index for index, (_, supervised) in enumerate(sizes) if supervised}
    if not useful:
        with pytest.raises(InvalidArgument, match="^data: "):
            TokenBudgetBatches(sizes, tokens, padded, passes)
        return
    batches = list(TokenBudgetBatches(sizes, tokens, padded, passes))
    assert Counter(index for batch in batches for index in batch) == Counter(dict.fromkeys(useful, passes))
    for batch in batches:
        assert batch
        if len(batch) > 1:
            assert supervised_in(batch, sizes) <= tokens
            assert len(batch) * max(sizes[index][0] for index in batch) <= padded


@pytest.mark.parametrize("field", ["tokens", "padded", "passes"])
def test_numbers_below_one(field):
    """Are refused by name."""
    with pytest.raises(InvalidArgument, match=f"^{field}: "):
        TokenBudgetBatches(SIZES, **{"tokens": 10, "padded": 10, "passes": 1} | {field: 0})


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_processes_share_a_run_and_resume_it(processes):
    """As accelerate deals batches out for the Trainer: none twice, but to fill up the last round; skipping is exact."""
    batches = TokenBudgetBatches(SIZES, 1200, 6000, passes=2)
    shares = []
    for process in range(processes):
        loader = DataLoader(range(len(SIZES)), batch_sampler=batches, collate_fn=list)
        prepared = prepare_data_loader(loader, num_processes=processes, process_index=process)
        share = list(prepared)
        assert len(share) == len(prepared) == -(-len(batches) // processes)
        assert list(skip_first_batches(prepared, 7)) == share[7:]
        shares.append(share)
    dealt = [batch for turn in zip(*shares, strict=True) for batch in turn]
    assert dealt[: len(batches)] == list(batches)
    assert dealt[len(batches) :] == list(batches)[: len(dealt) - len(batches)]
