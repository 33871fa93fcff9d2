"""The student: what it computes, what it learns, and the ways to build it."""

import json

import pytest
import torch
from safetensors.torch import save_file
from support.tiny_distillation import HIDDEN, tiny_target
from transformers import AutoModelForCausalLM, LlamaConfig

from distill import build
from distill.student import Student
from draftwire.errors import Incompatible, InvalidArgument, ModelError

VOCAB = torch.tensor([5, 2, 200])
IDS = torch.tensor([[1, 2, 3, 4], [9, 8, 7, 0]])


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return tiny_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def original(target):
    """The target itself, in float32."""
    return AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()


def test_a_student_of_all_layers_is_the_target(target, original):
    """Every layer, the norm as it was, an adapter that does nothing: the target's own logits of draft_vocab."""
    student = build.from_target(target, range(4), VOCAB)
    with torch.inference_mode():
        student.causal.model.norm.weight.mul_(4)
        logits = student(IDS, torch.tensor([0, 5, 6]))
        expected = original(IDS).logits.flatten(0, 1)[[0, 5, 6]][:, VOCAB]
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_layers_in_their_order(target, original):
    """Layers 2 and 0, and a final norm that is scaled down to a quarter."""
    student = build.from_target(target, [2, 0], VOCAB)
    layers = student.causal.model.layers
    for mine, theirs in ((0, 2), (1, 0)):
        expected = original.model.layers[theirs].mlp.up_proj.weight
        assert torch.equal(layers[mine].mlp.up_proj.weight, expected)
    assert student.causal.config.num_hidden_layers == len(layers) == 2
    assert torch.equal(student.causal.model.norm.weight, original.model.norm.weight / 4)


def test_padding_is_not_seen(target):
    """What stands to the right of a position, padding or more text, changes nothing."""
    student = build.from_target(target, [0, 1], VOCAB)
    with torch.inference_mode():
        short = student(IDS[:1, :2], torch.tensor([0, 1]))
        padded = student(IDS, torch.tensor([0, 1]))
    torch.testing.assert_close(short, padded, atol=1e-5, rtol=1e-5)


def test_what_is_learnt(target):
    """The layers, the final norm and the adapter, by the names of a trimmed draft; the target's matrices stay."""
    student = build.from_target(target, [1], VOCAB)
    before = student.causal.get_input_embeddings().weight.clone()
    student(IDS, torch.arange(8)).logsumexp(-1).sum().backward()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    optimizer.step()
    names = set(student.learnt())
    assert {name for name in names if ".layers." not in name} == {"model.norm.weight", "adapter.weight"}
    assert {name.split(".")[2] for name in names if ".layers." in name} == {"0"}
    assert all(parameter.grad is not None for parameter in student.learnt().values())
    assert torch.equal(student.causal.get_input_embeddings().weight, before)
    assert not any("embed" in name or "lm_head" in name for name in student.state_dict())


def test_frozen_matrices_keep_their_type(target):
    """bfloat16 as the target stores them, while everything that is learnt is float32."""
    student = build.from_target(target, [0], VOCAB)
    assert student.causal.get_input_embeddings().weight.dtype == torch.bfloat16
    assert {parameter.dtype for parameter in student.learnt().values()} == {torch.float32}


@pytest.mark.parametrize("layers", [[4], [-1, 0]])
def test_layers_that_the_target_lacks(target, layers):
    with pytest.raises(InvalidArgument, match="--layers: must be 0 to 3"):
        build.from_target(target, layers, VOCAB)


@pytest.mark.parametrize("tie", [True, False])
def test_from_scratch(target, tmp_path, tie):
    """A plain student has its own head over all ids; tied weights are learnt once."""
    student = build.from_config(config_file(tmp_path, tie_word_embeddings=tie), target)
    assert student.draft_vocab is None
    assert student(IDS, torch.tensor([3])).shape == (1, 300)
    assert ("lm_head.weight" in student.learnt()) is not tie


def test_from_scratch_with_too_few_ids(target, tmp_path):
    with pytest.raises(InvalidArgument, match="--config: .*vocab_size must be at least 258"):
        build.from_config(config_file(tmp_path, vocab_size=257), target)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"model_type": "no-such-model"}'])
def test_what_is_no_configuration(target, tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InvalidArgument, match="--config"):
        build.from_config(tmp_path / "config.json", target)


def test_a_configuration_that_draft_service_cannot_run(target, tmp_path):
    file = config_file(tmp_path)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"attn_logit_softcapping": 30.0}))
    with pytest.raises(ModelError, match="soft-capped"):
        build.from_config(file, target)


def test_go_on_from_a_model(target, original):
    """The target's own folder as a student: its logits."""
    student = build.from_model(target, target)
    with torch.inference_mode():
        expected = original(IDS).logits.flatten(0, 1)[:2]
        torch.testing.assert_close(student(IDS, torch.tensor([0, 1])), expected, atol=1e-4, rtol=1e-4)


def test_go_on_from_a_trimmed_draft(target, tmp_path):
    """Weights and draft_vocab come from the draft, and nothing is scaled again."""
    old = build.from_target(target, [3], VOCAB)
    folder = trimmed(tmp_path, old, target)
    student = build.from_model(folder, target)
    assert student.draft_vocab.tolist() == VOCAB.tolist()
    assert all(torch.equal(p, old.learnt()[name]) for name, p in student.learnt().items())


def test_a_model_of_another_vocabulary(target, tmp_path):
    """A draft whose fingerprint differs is refused by the option's name."""
    folder = trimmed(tmp_path, build.from_target(target, [3], VOCAB), target, vocab_fingerprint="0" * 64)
    with pytest.raises(Incompatible, match="--init: .* has another vocabulary"):
        build.from_model(folder, target)


@pytest.mark.parametrize("change", ["missing", "shape"])
def test_weights_that_do_not_fit(target, tmp_path, change):
    old = build.from_target(target, [3], VOCAB)
    weights = {name: p.detach() for name, p in old.learnt().items()}
    if change == "missing":
        del weights["model.norm.weight"]
    else:
        weights["model.norm.weight"] = torch.ones(HIDDEN + 1)
    with pytest.raises(ModelError, match=r"here: the weights do not fit the student: model\.norm\.weight"):
        old.load(weights, "here")


def trimmed(folder, student: Student, target, **changes) -> str:
    """Save a student of one layer as a trimmed draft."""
    config = {
        "model_type": "draftwire_trimmed_draft",
        "base_model": target,
        "num_hidden_layers": 1,
        "vocab_fingerprint": build.vocab_fingerprint(build.load_tokenizer(target)),
    }
    (folder / "config.json").write_text(json.dumps(config | changes))
    weights = {name: p.detach() for name, p in student.learnt().items()}
    save_file(weights | {"draft_vocab": student.draft_vocab}, folder / "model.safetensors")
    return str(folder)


def config_file(folder, **changes):
    """A tiny Llama over 300 ids."""
    shape = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    shape |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
    config = LlamaConfig(**(shape | {"architectures": ["LlamaForCausalLM"]} | changes))
    config.save_pretrained(folder)
    return folder / "config.json"
