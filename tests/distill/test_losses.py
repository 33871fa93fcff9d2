"""The loss from logits: by hand, against the formulas written out, and what must not change it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import naive_loss
from support.naive_loss import KINDS

from distill.losses import DistillationLoss
from draftwire.errors import InvalidArgument

TEMPERATURES = (1.0, 1.5)

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


LABELS = torch.tensor([[3, -100, 0, 6], [-100, -100, 2, 2]])
STUDENT, TEACHER = logits(2, 4, 7, seed=1), logits(2, 4, 7, seed=2)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("forward_kl", 0.75 * math.log(1.5) + 0.25 * math.log(0.5)),
        ("reverse_kl", 0.5 * math.log(2 / 3) + 0.5 * math.log(2)),
        (
            "jensen_shannon",  # m = (5/8, 3/8)
            (0.75 * math.log(6 / 5) + 0.25 * math.log(2 / 3) + 0.5 * math.log(4 / 5) + 0.5 * math.log(4 / 3)) / 2,
        ),
        ("total_variation", 0.25),
    ],
)
def test_values_by_hand(kind, expected):
    """Teacher (3/4, 1/4), student (1/2, 1/2), label 0: the divergence, and a cross-entropy of log 2."""
    student, teacher, labels = torch.zeros(1, 1, 2), torch.tensor([[[math.log(3), 0.0]]]), torch.tensor([[0]])
    for alpha in (1.0, 0.25, 0.0):
        loss = DistillationLoss(temperature=1.0, alpha=alpha, kind=kind)
        assert loss(student, teacher, labels) == pytest.approx(alpha * expected + (1 - alpha) * math.log(2))


def test_the_size_of_the_loss_survives_a_high_temperature():
    """T^2 KL tends to half the variance of the logits' difference: (2, 0) against (0, 0) gives 1/2, not 0."""
    student, teacher, labels = torch.zeros(1, 1, 2).double(), torch.tensor([[[2.0, 0.0]]]).double(), torch.tensor([[0]])
    loss = DistillationLoss(temperature=1000.0, alpha=1.0)
    assert loss(student, teacher, labels) == pytest.approx(0.5, rel=1e-5)


@kinds
@temperatures
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_values_and_gradients_are_those_of_the_formulas(kind, temperature, dtype):
    """Some positions masked, one sequence more than the other."""
    loss = DistillationLoss(temperature, 0.7, kind)
    value, grad = gradient(lambda z: loss(z, TEACHER.to(dtype), LABELS), STUDENT.to(dtype))
    expected = gradient(lambda z: naive_loss.loss(z, TEACHER, LABELS, temperature, 0.7, kind), STUDENT)
    close = {"rtol": 1e-12, "atol": 1e-13} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(value.double(), expected[0], **close)
    torch.testing.assert_close(grad.double(), expected[1], **close)
    assert value.dtype == grad.dtype == dtype


@kinds
@temperatures
def test_gradcheck(kind, temperature):
    """The gradient is the derivative of the value."""
    loss = DistillationLoss(temperature, 0.7, kind)
    assert torch.autograd.gradcheck(lambda z: loss(z, TEACHER, LABELS), STUDENT.clone().requires_grad_())


@kinds
@given(
    batch=st.integers(1, 3), seq=st.integers(1, 4), vocab=st.integers(1, 5), seed=st.integers(0, 999), data=st.data()
)
def test_any_shape_and_mask(kind, batch, seq, vocab, seed, data):
    """The formulas' value; no gradient where masked; the same loss whatever the masked logits are, NaN included."""
    label = st.one_of(st.just(-100), st.integers(0, vocab - 1))
    row = st.lists(label, min_size=seq, max_size=seq)
    labels = torch.tensor(data.draw(st.lists(row, min_size=batch, max_size=batch)))
    student, teacher = logits(batch, seq, vocab, seed=seed), logits(batch, seq, vocab, seed=seed + 1)
    loss = DistillationLoss(1.5, 0.5, kind)
    expected = naive_loss.loss(student, teacher, labels, 1.5, 0.5, kind)
    student[labels == -100] = math.nan
    value, grad = gradient(lambda z: loss(z, teacher, labels), student)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)
    assert (grad[labels == -100] == 0).all()
    assert grad.isfinite().all()


@kinds
def test_length_and_batch_do_not_scale_the_loss(kind):
    """The same tokens twice over, as longer sequences, as a larger batch or as one long sequence; padding on top."""
    loss = DistillationLoss(kind=kind)
    once = loss(STUDENT, TEACHER, LABELS)
    longer = [torch.cat([t, t], dim=1) for t in (STUDENT, TEACHER, LABELS)]
    larger = [torch.cat([t, t], dim=0) for t in (STUDENT, TEACHER, LABELS)]
    flat = [t.flatten(0, 1)[None] for t in (STUDENT, TEACHER, LABELS)]
    padded = [torch.cat([STUDENT] * 2, 1), torch.cat([TEACHER] * 2, 1), torch.cat([LABELS, LABELS * 0 - 100], 1)]
    for arguments in (longer, larger, flat, padded):
        torch.testing.assert_close(loss(*arguments), once)


@kinds
def test_all_masked_is_zero(kind):
    """Zero, and a gradient of zero: not NaN."""
    value, grad = gradient(lambda z: DistillationLoss(kind=kind)(z, TEACHER, torch.full((2, 4), -100)), STUDENT)
    assert value == 0
    assert (grad == 0).all()


@kinds
@temperatures
def test_a_perfect_student_rests(kind, temperature):
    """No divergence and no pull where the student is the teacher, up to a shift of the logits; else a divergence."""
    loss = DistillationLoss(temperature, 1.0, kind)
    value, grad = gradient(lambda z: loss(z, TEACHER, LABELS), TEACHER + 3.0)
    assert abs(value) < 1e-12
    if kind != "total_variation":  # has a kink there
        assert grad.abs().max() < 1e-12
    assert loss(STUDENT, TEACHER, LABELS) > 0.01


def test_the_teacher_is_not_trained():
    """No gradient reaches it."""
    teacher = TEACHER.clone().requires_grad_()
    DistillationLoss()(STUDENT.clone().requires_grad_(), teacher, LABELS).backward()
    assert teacher.grad is None


@kinds
def test_bfloat16_is_computed_in_float32(kind):
    """The loss of the rounded logits, not a rounded loss; the gradient comes back as bfloat16."""
    loss = DistillationLoss(kind=kind)
    student, teacher = STUDENT.bfloat16(), TEACHER.bfloat16()
    value, grad = gradient(lambda z: loss(z, teacher, LABELS), student)
    expected = gradient(lambda z: loss(z, teacher.float(), LABELS), student.float())
    assert value == expected[0]
    assert grad.dtype == torch.bfloat16
    torch.testing.assert_close(grad.float(), expected[1], rtol=2**-8, atol=1e-9)


@kinds
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_huge_logits(kind, dtype):
    """Logits of +-30,000: everything stays finite, and the pull is towards the teacher's token."""
    student = torch.tensor([[[3e4, -3e4, 0.0]]], dtype=dtype)
    teacher = torch.tensor([[[-3e4, 3e4, 0.0]]], dtype=dtype)
    value, grad = gradient(lambda z: DistillationLoss(kind=kind)(z, teacher, torch.tensor([[1]])), student)
    assert value.isfinite()
    assert value > 1
    assert grad.isfinite().all()
    assert grad[0, 0, 1] < 0 < grad[0, 0, 0]  # the cross-entropy's part


@kinds
@temperatures
def test_a_student_that_lacks_tokens(kind, temperature):
    """-inf at three tokens, one of them a label: the formulas' value and gradient, nothing pulls at the three."""
    student = STUDENT.clone()
    student[..., [0, 4, 5]] = -math.inf
    loss = DistillationLoss(temperature, 0.7, kind)
    value, grad = gradient(lambda z: loss(z, TEACHER, LABELS), student)
    expected = gradient(lambda z: naive_loss.loss(z, TEACHER, LABELS, temperature, 0.7, kind), student)
    torch.testing.assert_close(value, expected[0])
    torch.testing.assert_close(grad, expected[1])
    assert (grad[..., [0, 4, 5]] == 0).all()


def test_what_cannot_be_said_is_left_out():
    """p = (1/2, 1/4, 1/4), the student lacks the first: half of KL((1/2, 1/2) || (3/4, 1/4)), and no cross-entropy."""
    teacher = torch.tensor([[[0.5, 0.25, 0.25]]]).log()
    student = torch.tensor([[[-math.inf, math.log(3), 0.0]]])
    by_hand = 0.5 * (0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25))
    assert DistillationLoss(1.0, 1.0)(student, teacher, torch.tensor([[0]])) == pytest.approx(by_hand)
    assert DistillationLoss(1.0, 0.0)(student, teacher, torch.tensor([[0]])) == 0
    both = DistillationLoss(1.0, 0.0)(student.repeat(1, 2, 1), teacher.repeat(1, 2, 1), torch.tensor([[0, 1]]))
    assert both == pytest.approx(-math.log(0.75))  # a mean over one label, not over two


@kinds
@temperatures
def test_a_teacher_that_excludes_tokens(kind, temperature):
    """-inf at two tokens: the formulas' value and gradient, and what the student says there is pushed down."""
    teacher = TEACHER.clone()
    teacher[..., [1, 4]] = -math.inf
    loss = DistillationLoss(temperature, 1.0, kind)
    value, grad = gradient(lambda z: loss(z, teacher, LABELS), STUDENT)
    expected = gradient(lambda z: naive_loss.loss(z, teacher, LABELS, temperature, 1.0, kind), STUDENT)
    torch.testing.assert_close(value, expected[0])
    torch.testing.assert_close(grad, expected[1])
    assert (grad[LABELS != -100][:, [1, 4]].sum(-1) > 0).all()


@kinds
def test_both_exclude_the_same(kind):
    """Two trimmed heads alike: the loss over the tokens they have."""
    student, teacher = STUDENT.clone(), TEACHER.clone()
    student[..., 5], teacher[..., 5] = -math.inf, -math.inf
    others = [0, 1, 2, 3, 4, 6]
    labels = torch.tensor([[3, -100, 0, 5], [-100, -100, 2, 2]])  # as numbered among the others
    value, grad = gradient(lambda z: DistillationLoss(kind=kind)(z, teacher, LABELS), student)
    expected = gradient(lambda z: DistillationLoss(kind=kind)(z, TEACHER[..., others], labels), STUDENT[..., others])
    torch.testing.assert_close(value, expected[0])
    torch.testing.assert_close(grad[..., others], expected[1])
    assert (grad[..., 5] == 0).all()


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("temperature", {"temperature": 0.0}),
        ("temperature", {"temperature": math.inf}),
        ("temperature", {"temperature": math.nan}),
        ("alpha", {"alpha": 1.5}),
        ("alpha", {"alpha": -0.1}),
        ("kind", {"kind": "kl"}),
        ("ignore_index", {"ignore_index": 0}),
    ],
)
def test_bad_settings_are_named(field, settings):
    """The error says which one."""
    with pytest.raises(InvalidArgument, match=f"^{field}: "):
        DistillationLoss(**settings)


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("teacher_logits", (STUDENT, TEACHER[..., :6], LABELS)),
        ("teacher_logits", (STUDENT, TEACHER[:1], LABELS)),
        ("labels", (STUDENT, TEACHER, LABELS[:, 1:])),
        ("labels", (STUDENT, TEACHER, LABELS - 1)),  # -101, and a label of -1
    ],
    ids=["another vocabulary", "another batch", "shifted labels", "a negative label"],
)
def test_tensors_that_do_not_fit(field, arguments):
    """No broadcasting, no silent wrap-around."""
    with pytest.raises(InvalidArgument, match=f"^{field}: "):
        DistillationLoss()(*arguments)
