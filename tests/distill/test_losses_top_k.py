"""The loss from storage: what it equals, what it bounds, and in which sense its gradient is right."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import naive_loss
from support.naive_loss import KINDS, store

from distill import cells
from distill.losses import DistillationLoss, vocab_map
from draftwire.errors import InvalidArgument

TEMPERATURES = (1.0, 1.5)
V = 9

kinds = pytest.mark.parametrize("kind", KINDS)
temperatures = pytest.mark.parametrize("temperature", TEMPERATURES)


def logits(*shape, seed, spread=2.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * spread


def gradient(function, student):
    """(value, gradient with respect to the student's logits)."""
    student = student.detach().clone().requires_grad_()
    value = function(student)
    value.backward()
    return value.detach(), student.grad


STUDENT, TEACHER = logits(6, V, seed=1), logits(6, V, seed=2)
LABELS = torch.tensor([3, -100, 0, 6, 8, 2])
DRAFT_VOCAB = torch.tensor([6, 2, 8, 0, 5], dtype=torch.int32)  # likeliest first, as trimmed drafts have it
ROWS = vocab_map(DRAFT_VOCAB, V)


def full_head(trimmed):
    """The logits of a trimmed head among all ids: -inf elsewhere."""
    full = torch.full((*trimmed.shape[:-1], V), -math.inf, dtype=trimmed.dtype)
    full[..., DRAFT_VOCAB.long()] = trimmed
    return full


def naive(student, teacher, temperature, alpha, kind):
    return naive_loss.loss(student[None], teacher[None], LABELS[None], temperature, alpha, kind)


def test_vocab_map_by_hand():
    """Ids 6, 2, 8, 0 and 5 are rows 0 to 4; the others have none."""
    assert ROWS.tolist() == [3, -1, 1, -1, -1, 4, 0, -1, 2]


@pytest.mark.parametrize("ids", [[0, 9], [-1, 2], [3, 4, 3]], ids=["too large", "negative", "twice"])
def test_a_bad_draft_vocab(ids):
    """Is refused by name."""
    with pytest.raises(InvalidArgument, match="^draft_vocab: "):
        vocab_map(torch.tensor(ids), V)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # Cells: stored token 0, stored token 1, tail. Teacher (1/2, 1/4, 1/4), student (1/4, 1/4, 2/4).
        ("forward_kl", 0.5 * math.log(2) + 0.25 * math.log(0.5)),
        ("reverse_kl", 0.25 * math.log(0.5) + 0.5 * math.log(2)),
        (
            "jensen_shannon",
            (0.5 * math.log(4 / 3) + 0.25 * math.log(2 / 3) + 0.25 * math.log(2 / 3) + 0.5 * math.log(4 / 3)) / 2,
        ),
        ("total_variation", 0.25),
    ],
)
def test_values_by_hand(kind, expected):
    """Two of four tokens are stored and the student is uniform; without the tail's cell each value would differ."""
    stored = torch.tensor([[0, 1]]), torch.tensor([[0.5, 0.25]]).log(), torch.tensor([0.25]).log()
    loss = DistillationLoss(temperature=1.0, alpha=0.6, kind=kind)
    value = loss.from_top_k(torch.zeros(1, 4), *stored, torch.tensor([3]))
    assert value == pytest.approx(0.6 * expected + 0.4 * math.log(4))


@kinds
@temperatures
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_the_full_vocabulary_limit(kind, temperature, dtype):
    """k = V: value and gradient of the formulas, which know nothing of cells."""
    loss = DistillationLoss(temperature, 0.7, kind)
    stored = store(TEACHER, V, temperature)
    value, grad = gradient(lambda z: loss.from_top_k(z, *stored, LABELS), STUDENT.to(dtype))
    expected = gradient(lambda z: naive(z, TEACHER, temperature, 0.7, kind), STUDENT)
    close = {"rtol": 1e-12, "atol": 1e-13} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(value.double(), expected[0], **close)
    torch.testing.assert_close(grad.double(), expected[1], **close)
    assert value.dtype == grad.dtype == dtype


@kinds
@temperatures
def test_the_full_vocabulary_limit_of_a_trimmed_head(kind, temperature):
    """k = V, five of nine ids in the head, labels outside it: the full loss with -inf for the other four."""
    loss = DistillationLoss(temperature, 0.7, kind)
    trimmed = STUDENT[:, :5]
    value, grad = gradient(lambda z: loss.from_top_k(z, *store(TEACHER, V, temperature), LABELS, ROWS), trimmed)
    for full in (loss, lambda z, x, y: naive_loss.loss(z[None], x[None], y[None], temperature, 0.7, kind)):
        expected = gradient(lambda z, full=full: full(full_head(z), TEACHER, LABELS), trimmed)
        torch.testing.assert_close(value, expected[0])
        torch.testing.assert_close(grad, expected[1])


@kinds
@temperatures
@pytest.mark.parametrize("trimmed", [False, True], ids=["full head", "trimmed head"])
def test_the_tail_has_the_students_shape(kind, temperature, trimmed):
    """k = 3: value and gradient of the full loss against the teacher whose tail is spread as the student's is."""
    top_ids, top_logprobs, tail_logmass = store(TEACHER, 3, temperature)
    student = STUDENT[:, :5] if trimmed else STUDENT
    complete = full_head(student) if trimmed else student
    stored = torch.zeros(6, V, dtype=torch.bool).scatter(1, top_ids, True)
    inside = (TEACHER / temperature).log_softmax(-1)
    spread = (complete / temperature).masked_fill(stored, -math.inf).log_softmax(-1) + tail_logmass[:, None]
    teacher = torch.where(stored, inside, spread) * temperature

    loss = DistillationLoss(temperature, 0.7, kind)
    rows = ROWS if trimmed else None
    value, grad = gradient(lambda z: loss.from_top_k(z, top_ids, top_logprobs, tail_logmass, LABELS, rows), student)
    expected = gradient(lambda z: naive(full_head(z) if trimmed else z, teacher, temperature, 0.7, kind), student)
    torch.testing.assert_close(value, expected[0])
    torch.testing.assert_close(grad, expected[1])


@temperatures
def test_stored_tokens_get_the_whole_forward_kls_gradient(temperature):
    """With a full head, each stored logit is pulled as the true teacher pulls it; the rest is right in sum."""
    stored = store(TEACHER, 3, temperature)
    loss = DistillationLoss(temperature, 1.0)
    _, grad = gradient(lambda z: loss.from_top_k(z, *stored, LABELS), STUDENT)
    _, whole = gradient(lambda z: loss(z, TEACHER, LABELS), STUDENT)
    torch.testing.assert_close(grad.gather(1, stored[0]), whole.gather(1, stored[0]))
    assert (grad - whole).abs().max() > 0.01  # the tail differs
    torch.testing.assert_close(grad.sum(1), whole.sum(1))


@kinds
@given(st.integers(0, 999), st.sampled_from(TEMPERATURES), st.floats(0.1, 6))
def test_more_stored_tokens_come_closer_from_below(kind, seed, temperature, spread):
    """Each k bounds the loss over the whole vocabulary from below, and no less tightly than k - 1."""
    student, teacher = logits(4, V, seed=seed, spread=spread), logits(4, V, seed=seed + 1, spread=spread)
    labels = torch.tensor([1, 2, 3, -100])
    loss = DistillationLoss(temperature, 1.0, kind)
    values = [float(loss.from_top_k(student, *store(teacher, k, temperature), labels)) for k in range(1, V + 1)]
    values.append(float(loss(student, teacher, labels)))
    assert values[0] >= -1e-12
    assert all(low <= high + 1e-9 for low, high in itertools.pairwise(values))


@kinds
@temperatures
@pytest.mark.parametrize("k", [1, 3, V])
def test_gradcheck(kind, temperature, k):
    """The gradient is the derivative of the value, with a trimmed head and with a full one."""
    stored = store(TEACHER, k, temperature)
    loss = DistillationLoss(temperature, 0.7, kind)
    for head, rows in ((V, None), (5, ROWS)):
        student = STUDENT[:, :head].clone().requires_grad_()
        assert torch.autograd.gradcheck(lambda z, rows=rows: loss.from_top_k(z, *stored, LABELS, rows), student)


@kinds
@given(st.integers(1, 5), st.integers(1, V), st.integers(0, 999), st.booleans(), st.data())
def test_any_shape_and_mask(kind, n, k, seed, trimmed, data):
    """Finite, no gradient where masked, and what is masked may be anything; [1, n, R] is the same as [n, R]."""
    labels = torch.tensor(data.draw(st.lists(st.sampled_from([-100, 0, 1, 6]), min_size=n, max_size=n)))
    student = logits(n, 5 if trimmed else V, seed=seed)
    stored = store(logits(n, V, seed=seed + 1), k, 1.5)
    rows = ROWS if trimmed else None
    loss = DistillationLoss(1.5, 0.5, kind)
    plain = loss.from_top_k(student, *stored, labels, rows)
    student[labels == -100] = math.nan
    value, grad = gradient(lambda z: loss.from_top_k(z, *stored, labels, rows), student)
    assert value == plain
    assert value.isfinite()
    assert (grad[labels == -100] == 0).all()
    assert grad.isfinite().all()
    assert value == (loss.from_top_k(student[None], *(t[None] for t in stored), labels[None], rows))
    if (labels == -100).all():
        assert value == 0


def test_a_stored_token_that_the_head_lacks_asks_for_nothing_else():
    """The teacher says id 1 with 0.9, which the head lacks: the student is asked for the rest in its proportions."""
    stored = torch.tensor([[1, 6]]), torch.tensor([[0.9, 0.08]]).log(), torch.tensor([0.02]).log()
    wanted = torch.tensor([[0.8, 0.05, 0.05, 0.05, 0.05]]).log()  # id 6 is row 0; the tail's 0.2 lies on four others
    loss = DistillationLoss(1.0, 1.0)
    value, grad = gradient(lambda z: loss.from_top_k(z, *stored, torch.tensor([6]), ROWS), wanted)
    assert value == pytest.approx(0, abs=1e-6)
    assert grad.abs().max() < 1e-6


def test_labels_that_the_head_lacks_are_counted_out():
    """The cross-entropy is a mean over the labels in the head: log 5 for a uniform student, none at all otherwise."""
    student, stored = torch.zeros(2, 5), store(TEACHER[:2], 3, 1.0)
    loss = DistillationLoss(1.0, 0.0)
    assert loss.from_top_k(student, *stored, torch.tensor([6, 1]), ROWS) == pytest.approx(math.log(5))
    assert loss.from_top_k(student, *stored, torch.tensor([3, 1]), ROWS) == 0


@kinds
def test_ids_beyond_a_smaller_head(kind):
    """Without a map, ids that the head has no row for (a padded vocabulary) are ids that it lacks."""
    stored, loss = store(TEACHER, 4, 1.5), DistillationLoss(kind=kind)
    value = loss.from_top_k(STUDENT[:, :6], *stored, LABELS)
    torch.testing.assert_close(value, loss.from_top_k(STUDENT[:, :6], *stored, LABELS, vocab_map(torch.arange(6), V)))
    cut = STUDENT.clone()
    cut[:, 6:] = -math.inf
    torch.testing.assert_close(value, loss.from_top_k(cut, *stored, LABELS))


@kinds
@temperatures
def test_a_confident_student(kind, temperature):
    """float32: the student leaves 1e-17 to the tail, the teacher 0.2. The loss of the formulas, not of 1 - 1 = 0."""
    student = torch.zeros(1, V, dtype=torch.float64)
    student[0, :2] = 40 * temperature
    teacher = torch.full((1, V), 0.2 / 7, dtype=torch.float64)
    teacher[0, :2] = 0.4
    teacher = teacher.log() * temperature
    stored, label = store(teacher, 2, temperature), torch.tensor([0])
    loss = DistillationLoss(temperature, 1.0, kind)
    value, grad = gradient(lambda z: loss.from_top_k(z, *stored, label), student.float())
    expected = gradient(lambda z: naive_loss.loss(z[None], teacher[None], label[None], temperature, 1.0, kind), student)
    torch.testing.assert_close(value.double(), expected[0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(grad.double(), expected[1], rtol=1e-4, atol=1e-5)


@kinds
def test_a_student_without_a_tail(kind):
    """-inf at every token that is not stored: the same as a head that has the stored tokens only."""
    top_ids, *rest = store(TEACHER[:1], 3, 1.5)
    loss, label = DistillationLoss(kind=kind), top_ids[0, :1]
    few = STUDENT[:1].gather(1, top_ids)
    full = torch.full((1, V), -math.inf, dtype=torch.float64).scatter(1, top_ids, few)
    value, grad = gradient(lambda z: loss.from_top_k(z, top_ids, *rest, label), full)
    expected = gradient(lambda z: loss.from_top_k(z, top_ids, *rest, label, vocab_map(top_ids[0], V)), few)
    torch.testing.assert_close(value, expected[0])
    torch.testing.assert_close(grad, torch.zeros_like(full).scatter(1, top_ids, expected[1]))


@kinds
def test_a_certain_teacher(kind):
    """All its mass on one stored token, the others and the tail at -inf: finite, and the pull is towards the token."""
    stored = torch.tensor([[2, 0]]), torch.tensor([[0.0, -math.inf]]), torch.tensor([-math.inf])
    value, grad = gradient(
        lambda z: DistillationLoss(kind=kind).from_top_k(z, *stored, torch.tensor([2])), torch.zeros(1, 4)
    )
    assert value.isfinite()
    assert grad.isfinite().all()
    assert grad[0, 2] < 0 < grad[0, 0]
    assert grad[0, 1] > 0


@kinds
@pytest.mark.parametrize("rows", [None, ROWS], ids=["full head", "trimmed head"])
def test_bfloat16_is_computed_in_float32(kind, rows):
    """The loss of the rounded logits; the gradient comes back as bfloat16. Huge logits and -inf included."""
    loss = DistillationLoss(kind=kind)
    student = STUDENT[:, : V if rows is None else 5].bfloat16()
    student[0, 0], student[2, 1], student[3, 2] = 3e4, -3e4, -math.inf
    stored = store(TEACHER, 4, 1.5)
    value, grad = gradient(lambda z: loss.from_top_k(z, *stored, LABELS, rows), student)
    expected = gradient(lambda z: loss.from_top_k(z, *stored, LABELS, rows), student.float())
    assert value == expected[0]
    assert value.isfinite()
    assert grad.dtype == torch.bfloat16
    assert grad.isfinite().all()
    torch.testing.assert_close(grad.float(), expected[1], rtol=2**-8, atol=1e-9)


@kinds
@temperatures
def test_blocks_are_not_seen(kind, temperature, monkeypatch):
    """Two rows at a time, or all at once: the same loss and gradient."""
    loss, stored = DistillationLoss(temperature, 0.7, kind), store(TEACHER, 3, temperature)
    whole = gradient(lambda z: loss.from_top_k(z, *stored, LABELS), STUDENT)
    monkeypatch.setattr(cells, "_BLOCK_CPU", 2 * (V + 1))
    blocks = gradient(lambda z: loss.from_top_k(z, *stored, LABELS), STUDENT)
    torch.testing.assert_close(blocks, whole)


def test_no_rows():
    """A batch without a supervised token: zero, and a gradient to go on with."""
    empty = torch.empty(0, V)
    stored = torch.empty(0, 3).long(), torch.empty(0, 3), torch.empty(0)
    value, grad = gradient(lambda z: DistillationLoss().from_top_k(z, *stored, torch.empty(0).long()), empty)
    assert value == 0
    assert grad.shape == (0, V)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("top_ids", {"top_ids": torch.zeros(5, 3).long()}),
        ("top_ids", {"top_ids": torch.zeros(6).long()}),
        ("top_logprobs", {"top_logprobs": torch.zeros(6, 2)}),
        ("tail_logmass", {"tail_logmass": torch.zeros(6, 2)}),  # all temperatures instead of the loss's
        ("labels", {"labels": torch.zeros(5).long()}),
        ("labels", {"labels": torch.full((6,), -1)}),
    ],
)
def test_tensors_that_do_not_fit(field, change):
    """No broadcasting, no silent wrap-around; the error says which tensor."""
    stored = dict(zip(("top_ids", "top_logprobs", "tail_logmass"), store(TEACHER, 3, 1.5), strict=True))
    arguments = {"student_logits": STUDENT, **stored, "labels": LABELS} | change
    with pytest.raises(InvalidArgument, match=f"^{field}: "):
        DistillationLoss().from_top_k(**arguments)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@kinds
def test_a_gpu_gives_the_cpus_loss(kind):
    """In float64, with a trimmed head."""
    loss, stored = DistillationLoss(kind=kind), store(TEACHER, 4, 1.5)
    here = gradient(lambda z: loss.from_top_k(z, *stored, LABELS, ROWS), STUDENT[:, :5])
    arguments = [t.cuda() for t in (*stored, LABELS, ROWS)]
    there = gradient(lambda z: loss.from_top_k(z, *arguments), STUDENT[:, :5].cuda())
    torch.testing.assert_close([t.cpu() for t in there], list(here))
