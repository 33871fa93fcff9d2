"""Tokenizers load without torch, from a folder as from the fake model's name; chat templates and their refusals."""

import json
import subprocess
import sys

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from draftwire.errors import ModelError
from draftwire.fake_model import FakeModel
from draftwire.models import target_folder
from gateway.requests import ChatMessage
from gateway.tokenizer import FakeTokenizer, load_tokenizer

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'robot' %}{{ raise_exception('no robots') }}{% endif %}"
    "<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

# Runs in a process of its own: this one may have torch already.
SCRIPT = """
import json, sys
from gateway.__main__ import main
from gateway.requests import ChatMessage
from gateway.tokenizer import load_tokenizer, without_torch
without_torch()
from draftwire.errors import InvalidArgument

def chat(tokenizer, role):
    try:
        return tokenizer.decode(tokenizer.encode_chat([ChatMessage(role, "hé")]))
    except InvalidArgument as error:
        return str(error)

for folder in sys.argv[1:]:
    tokenizer = load_tokenizer(folder)
    ids = tokenizer.encode("naïve 🎉<|end|>")
    print(json.dumps({
        "torch": any(name.partition(".")[0] == "torch" and module for name, module in sys.modules.items()),
        "text": tokenizer.decode(ids),
        "ends": ids[-1] in tokenizer.special_ids,
        "user": chat(tokenizer, "user"),
        "robot": chat(tokenizer, "robot"),
        "fingerprint": tokenizer.fingerprint,
    }))
"""


def write_tokenizer(folder, template: str | None = TEMPLATE, extra: str = "x") -> None:
    """A byte-level tokenizer with an end mark, as a hub's folder holds it."""
    vocab = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True), AddedToken(f"<|{extra}|>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": True}
    if template:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def load_in_own_process(*folders) -> list[dict]:
    """What SCRIPT prints for each folder."""
    command = [sys.executable, "-c", SCRIPT, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_folders_without_torch(tmp_path):
    """Text and chat go there and back, refused chats name the field, another token gives another fingerprint.

    And torch, which is installed where these tests run, stays out of the process.
    """
    for name in ("chat", "base", "other"):
        (tmp_path / name).mkdir()
    write_tokenizer(tmp_path / "chat")
    write_tokenizer(tmp_path / "base", template=None)
    write_tokenizer(tmp_path / "other", extra="y")
    chat, base, other = load_in_own_process(tmp_path / "chat", tmp_path / "base", tmp_path / "other")
    assert not chat["torch"]
    assert (chat["text"], chat["ends"]) == ("naïve 🎉<|end|>", True)
    assert chat["user"] == "<|user|>hé<|end|><|assistant|>"
    assert chat["robot"].startswith("chat: ")
    assert "no robots" in chat["robot"]
    assert base["user"] == "chat: the model has no chat template; send text or token_ids"
    assert chat["fingerprint"] == base["fingerprint"] != other["fingerprint"]


@pytest.mark.model
@pytest.mark.skipif(not target_folder().is_dir(), reason="the embedded target is not there (make models)")
def test_the_embedded_target():
    """The embedded target's folder: chat ends where the assistant begins."""
    (result,) = load_in_own_process(target_folder())
    assert not result["torch"]
    assert result["user"].endswith("<|im_start|>user\nhé<|im_end|>\n<|im_start|>assistant\n")


def test_fake_tokenizer_by_hand():
    """Ids below 256 are bytes, others are "<id>"; a conversation is "role: content" lines."""
    tokenizer = load_tokenizer("fake:vocab_size=300")
    assert tokenizer.encode("é") == [0xC3, 0xA9]
    assert tokenizer.decode([0xC3, 0xA9, 256, 299]) == "é<256><299>"
    chat = tokenizer.encode_chat([ChatMessage("user", "U")])
    assert bytes(chat) == b"user: U\nassistant: "
    assert tokenizer.fingerprint == "fake-300" == FakeTokenizer(FakeModel(vocab_size=300)).fingerprint


@pytest.mark.parametrize("name", ["fake:vocab=3", "fake:vocab_size=x"])
def test_bad_fake_names(name):
    """A field that fakes do not have, or no number, is named."""
    with pytest.raises(ModelError, match=name.partition(":")[2]):
        load_tokenizer(name)
