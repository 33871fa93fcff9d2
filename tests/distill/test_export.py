"""Export: the folders that a run becomes say what the student says, in draftwire's engine and in transformers."""

import json
import shutil

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from support.tiny_distillation import tiny_target, write_data
from transformers import AutoModelForCausalLM, AutoTokenizer

from distill import build
from distill.export import export
from distill.export_options import Export
from distill.tiny_target import write_tiny_target
from distill.train import train
from distill.train_options import Train
from draftwire.engine.base import Chunk
from draftwire.engine.load import load_engine
from draftwire.errors import Incompatible, InvalidArgument
from draftwire.vocab import vocab_fingerprint

TEXT = [10, 200, 31, 4, 65, 7, 90, 101, 33, 32, 5]


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return tiny_target(tmp_path_factory.mktemp("target"))


def run(folder, target, **student):
    """A short run; its folder."""
    data = write_data(folder / "data", target)
    values = {"draft_vocab": 100} if not student else {}
    train(
        Train(
            data=[data],
            output=folder / "run",
            target=target,
            batch_tokens=200,
            warmup_steps=1,
            learning_rate=1e-2,
            save_steps=2,
            **(values | student),
        )
    )
    return folder / "run"


@pytest.fixture(scope="module")
def trimmed_run(target, tmp_path_factory):
    return run(tmp_path_factory.mktemp("trimmed"), target)


@pytest.fixture(scope="module")
def plain_run(target, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    config = json.loads((build.Path(target) / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1, "tie_word_embeddings": True}))
    return run(folder, target, config=folder / "config.json")


@pytest.fixture(scope="module")
def exported(trimmed_run, tmp_path_factory):
    """Both folders of the trimmed student, with the card that lay in the run."""
    folder = tmp_path_factory.mktemp("exported")
    (trimmed_run / "README.md").write_text("# A card")
    (trimmed_run / "acceptance.png").write_bytes(b"a picture")
    export(Export(run=trimmed_run, trimmed=folder / "trimmed", full=folder / "full"))
    return folder


@pytest.fixture(scope="module")
def student(target, trimmed_run):
    """What was trained: the average of the last checkpoint, rounded to bfloat16."""
    weights = load_file(trimmed_run / "checkpoint-4" / "average.safetensors")
    student = build.from_target(target, [0, 1], weights.pop("draft_vocab"))
    student.load({name: tensor.bfloat16() for name, tensor in weights.items()}, "here")
    return student


@torch.inference_mode()
def student_rows(student):
    return student(torch.tensor([TEXT]), torch.arange(len(TEXT)))


def engine_rows(folder):
    engine = load_engine(str(folder), dtype="float32", num_slots=1, max_batched_tokens=64)
    slot, _ = engine.acquire(TEXT)
    return engine, engine.forward([Chunk(slot, 0, TEXT, len(TEXT))])


def assert_close(rows, expected):
    """Within the rounding of the folded head, which may also decide between choices that are as close."""
    torch.testing.assert_close(rows, expected, atol=0.05, rtol=0.02)
    chosen = expected.gather(1, rows.argmax(-1, keepdim=True))[:, 0]
    assert (expected.amax(-1) - chosen).max() < 0.05


def test_trimmed_says_what_the_student_says(exported, student):
    """Logits over draft_vocab within the rounding of the folded head, hence the same choices; -inf elsewhere."""
    engine, rows = engine_rows(exported / "trimmed")
    expected = student_rows(student)
    vocab = student.draft_vocab.long()
    assert_close(rows[:, vocab], expected)
    assert int(rows[0].isfinite().sum()) == len(vocab) == 100
    assert engine.info.vocab_size == 258


def test_full_says_what_the_student_says(exported, student):
    """In plain transformers, over draft_vocab; it also has logits for every other id."""
    model = AutoModelForCausalLM.from_pretrained(exported / "full", dtype=torch.float32)
    vocab = student.draft_vocab.long()
    with torch.inference_mode():
        rows = model(torch.tensor([TEXT])).logits[0]
    expected = student_rows(student)
    assert_close(rows[:, vocab], expected)
    assert rows.shape == (len(TEXT), 258)


def test_full_is_a_model_of_its_own(exported, target):
    """Llama by name, untied, bfloat16, with the target's tokenizer, template and end token; draftwire loads it too."""
    config = json.loads((exported / "full" / "config.json").read_text())
    assert (config["architectures"], config["num_hidden_layers"]) == (["LlamaForCausalLM"], 2)
    assert (config["tie_word_embeddings"], config["dtype"]) == (False, "bfloat16")
    tensors = load_file(exported / "full" / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert torch.equal(
        tensors["model.embed_tokens.weight"], AutoModelForCausalLM.from_pretrained(target).model.embed_tokens.weight
    )
    mine, theirs = AutoTokenizer.from_pretrained(exported / "full"), AutoTokenizer.from_pretrained(target)
    assert vocab_fingerprint(mine) == vocab_fingerprint(theirs)
    assert mine.chat_template == theirs.chat_template
    engine, rows = engine_rows(exported / "full")
    assert engine.info.eos_token_ids == (theirs.eos_token_id,)
    assert rows.isfinite().all()


def test_files(exported):
    """Weights are bfloat16, everybody may read them, and the card goes along."""
    weights = load_file(exported / "trimmed" / "model.safetensors")
    assert {tensor.dtype for name, tensor in weights.items() if name != "draft_vocab"} == {torch.bfloat16}
    assert (exported / "trimmed" / "model.safetensors").stat().st_mode & 0o777 == 0o644
    for kind in ("trimmed", "full"):
        assert (exported / kind / "README.md").read_text() == "# A card"
        assert (exported / kind / "acceptance.png").read_bytes() == b"a picture"
    assert {file.name for file in exported.iterdir()} == {"trimmed", "full"}  # nothing unfinished


def test_a_checkpoint_by_name(trimmed_run, exported, tmp_path):
    """An earlier checkpoint of the run is another draft."""
    export(Export(run=trimmed_run / "checkpoint-2", trimmed=tmp_path / "two"))
    early, late = (load_file(folder / "model.safetensors") for folder in (tmp_path / "two", exported / "trimmed"))
    assert not torch.equal(early["adapter.weight"], late["adapter.weight"])


def test_a_card_of_its_own(plain_run, target, tmp_path):
    """Where the run has none, the export says what is known: steps, tokens, loss."""
    export(Export(run=plain_run, full=tmp_path / "full"))
    card = (tmp_path / "full" / "README.md").read_text()
    assert card.startswith(f"# A draft for {target}\n")
    assert "4 steps of about 200 tokens" in card


def test_an_export_can_be_trained_further(target, exported, tmp_path):
    """--init with a trimmed draft: it begins with the draft's choices and ends elsewhere."""
    folder = run(tmp_path, target, init=str(exported / "trimmed"))
    weights = load_file(folder / "checkpoint-4" / "average.safetensors")
    old = load_file(exported / "trimmed" / "model.safetensors")
    assert torch.equal(weights["draft_vocab"], old["draft_vocab"])
    assert not torch.equal(weights["adapter.weight"].bfloat16(), old["adapter.weight"])
    export(Export(run=folder, trimmed=exported / "trimmed"))  # an older export is replaced
    assert torch.equal(
        load_file(exported / "trimmed" / "model.safetensors")["adapter.weight"], weights["adapter.weight"].bfloat16()
    )


def test_a_plain_student(plain_run, target, tmp_path):
    """A folder for transformers with the student's choices; tied weights stay tied."""
    export(Export(run=plain_run, full=tmp_path / "full"))
    weights = load_file(plain_run / "checkpoint-4" / "average.safetensors")
    student = build.from_config(plain_run / "config.json", target)
    student.load({name: tensor.bfloat16() for name, tensor in weights.items()}, "here")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "full", dtype=torch.float32)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    with torch.inference_mode():
        torch.testing.assert_close(model(torch.tensor([TEXT])).logits[0], student_rows(student))
    assert engine_rows(tmp_path / "full")[0].info.eos_token_ids == (AutoTokenizer.from_pretrained(target).eos_token_id,)


def test_a_plain_student_cannot_be_trimmed(plain_run, tmp_path):
    with pytest.raises(InvalidArgument, match="--trimmed: the student has a head of its own; use --full"):
        export(Export(run=plain_run, trimmed=tmp_path / "trimmed"))


def test_a_folder_of_something_else(trimmed_run, tmp_path):
    """What is not a model is never written over."""
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(InvalidArgument, match="--full: .* is not empty and holds no model"):
        export(Export(run=trimmed_run, full=tmp_path))
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]


def test_no_run(trimmed_run, tmp_path):
    with pytest.raises(InvalidArgument, match="--run: .* is no training run"):
        export(Export(run=tmp_path, full=tmp_path / "full"))
    shutil.copy(trimmed_run / "settings.json", tmp_path)
    with pytest.raises(InvalidArgument, match="--run: .* is no training run with a checkpoint"):
        export(Export(run=tmp_path, full=tmp_path / "full"))


@pytest.fixture
def moved(target, trimmed_run, tmp_path):
    """A run whose target lies in a folder of its own, which a test may change."""
    moved = tmp_path / "run"
    shutil.copytree(target, tmp_path / "target")
    shutil.copytree(trimmed_run, moved)
    settings = json.loads((moved / "settings.json").read_text())
    (moved / "settings.json").write_text(json.dumps(settings | {"target": str(tmp_path / "target")}))
    return moved


def test_the_target_has_another_vocabulary_now(moved, tmp_path):
    """Two ids have changed places: no export, of either kind."""
    file = tmp_path / "target" / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    file.write_text(json.dumps(tokenizer))
    for kind in ("trimmed", "full"):
        with pytest.raises(Incompatible, match="--run: .* has another vocabulary .* than --target"):
            export(Export(run=moved, **{kind: tmp_path / kind}))
        assert not (tmp_path / kind).exists()


def test_the_target_has_other_weights_now(moved, tmp_path):
    """A full folder would be made of both: refused. A run that does not know its target's weights is believed."""
    write_tiny_target(tmp_path / "target", seed=1)
    with pytest.raises(Incompatible, match="--run: learnt from a target of other weights"):
        export(Export(run=moved, full=tmp_path / "full"))
    settings = json.loads((moved / "settings.json").read_text())
    del settings["target_fingerprint"]
    (moved / "settings.json").write_text(json.dumps(settings))
    export(Export(run=moved, full=tmp_path / "full"))


def test_one_folder_for_both(trimmed_run, tmp_path):
    with pytest.raises(ValidationError, match="--trimmed, --full: name two folders"):
        Export(run=trimmed_run, trimmed=tmp_path / "x", full=tmp_path / "y" / ".." / "x")


def test_nowhere_to_go(trimmed_run):
    with pytest.raises(ValidationError, match="--trimmed, --full: name at least one folder"):
        Export(run=trimmed_run)
