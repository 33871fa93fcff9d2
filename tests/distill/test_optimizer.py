"""Muon and AdamW as one optimizer: which weights each learns, and what a first step makes of them.

After one step without weight decay an update of AdamW is the learning rate times the gradient's sign, and one of Muon a
nearly orthogonal matrix: the learning rate times 0.2 sqrt(max(rows, columns)), times singular values near 1.
"""

import pytest
import torch
from support.tiny_distillation import tiny_target
from support.tiny_training import options, same, state
from transformers import LlamaConfig, LlamaForCausalLM

from distill import build
from distill.optimizer import MuonWithAdamW
from distill.student import Student
from distill.train import train

RATE = 0.01
IDS = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8]])


def plain(*, tied: bool, layers: int = 1) -> Student:
    """A student with tables of its own over 50 tokens."""
    torch.manual_seed(0)
    shape = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": layers}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    return Student(LlamaForCausalLM(LlamaConfig(**shape, **heads, tie_word_embeddings=tied)))


@pytest.fixture(params=["trimmed", "plain", "tied"])
def student(request, tmp_path):
    if request.param == "trimmed":
        return build.from_target(tiny_target(tmp_path / "target"), [0, 1], torch.tensor([5, 2, 200]))
    return plain(tied=request.param == "tied")


def make(student: Student) -> MuonWithAdamW:
    return MuonWithAdamW(student, learning_rate=RATE, weight_decay=0.0, betas=(0.9, 0.95))


def step(student: Student, optimizer: MuonWithAdamW) -> dict[str, torch.Tensor]:
    """Each weight's update by one step on a random loss."""
    optimizer.zero_grad()
    logits = student(IDS, torch.arange(8))
    (logits * torch.randn(logits.shape, generator=torch.Generator().manual_seed(0))).sum().backward()
    before = {name: parameter.detach().clone() for name, parameter in student.learnt().items()}
    optimizer.step()
    return {name: parameter.detach() - before[name] for name, parameter in student.learnt().items()}


def test_a_first_step(student):
    updates = step(student, make(student))
    for name, update in updates.items():
        if name.endswith(("_proj.weight", "adapter.weight")):
            scale = RATE * 0.2 * max(update.shape) ** 0.5
            rank = torch.linalg.matrix_rank(student.get_parameter(_path(student, name)).grad)
            values = torch.linalg.svdvals(update)[:rank] / scale
            assert 0.2 < values.min() <= values.max() < 1.4, name
        else:
            assert name.endswith(("norm.weight", "embed_tokens.weight", "lm_head.weight")), name
            gradient = student.get_parameter(_path(student, name)).grad
            large = gradient.abs() > 1e-3
            assert large.any(), name
            torch.testing.assert_close(update[large], -RATE * gradient[large].sign(), atol=1e-4, rtol=0)


def _path(student: Student, name: str) -> str:
    return name if name.startswith("adapter") else f"causal.{name}"


def test_a_schedule_reaches_both(student):
    """Also after the optimizer was loaded from a checkpoint: with a rate of 0 nothing moves."""
    optimizer = make(student)
    step(student, optimizer)
    again = make(student)
    again.load_state_dict(optimizer.state_dict())
    for one in (optimizer, again):
        for group in one.param_groups:
            group["lr"] = 0.0
        assert not any(update.any() for update in step(student, one).values())


def test_weight_decay_is_for_matrices():
    student = plain(tied=False)
    before = {name: parameter.detach().clone() for name, parameter in student.learnt().items()}
    optimizer = MuonWithAdamW(student, learning_rate=RATE, weight_decay=0.5, betas=(0.9, 0.95))
    for parameter in student.learnt().values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in student.learnt().items():
        kept = 1.0 if parameter.ndim == 1 else 1 - RATE * 0.5
        torch.testing.assert_close(parameter.detach(), kept * before[name], msg=name)


def test_another_students_checkpoint(student):
    other = plain(tied=False, layers=3)
    with pytest.raises(ValueError, match="parameter group"):
        make(student).load_state_dict(make(other).state_dict())


def test_adamw_alone(folder, finished, tmp_path):
    """--optimizer adamw trains other weights, with other moments."""
    train(options(folder, tmp_path / "run", optimizer="adamw"))
    mine, theirs = state(tmp_path / "run", 6), state(finished, 6)
    assert not same(mine, theirs)
    assert any(name.startswith("exp_avg_sq") and tensor.ndim == 2 for name, tensor in mine.items())
    assert not any(name.startswith("exp_avg_sq") and tensor.ndim == 2 for name, tensor in theirs.items())
