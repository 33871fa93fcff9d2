"""The vocabulary fingerprint, and that the gateway can have it without torch."""

import subprocess
import sys

import pytest
import tiny_models
from transformers import AutoTokenizer

from draftwire.vocab import vocab_fingerprint


class Vocabulary:
    """As much of a tokenizer as the fingerprint looks at."""

    def __init__(self, tokens):
        self.tokens = tokens

    def __len__(self):
        return len(self.tokens)

    def convert_ids_to_tokens(self, ids):
        return [self.tokens[i] for i in ids]


def test_equal_maps_are_equal():
    """The same tokens under the same ids give the same 64 hex digits."""
    assert vocab_fingerprint(Vocabulary(["a", "ß"])) == vocab_fingerprint(Vocabulary(["a", "ß"]))
    assert len(vocab_fingerprint(Vocabulary(["a"]))) == 64


@pytest.mark.parametrize("other", [["b", "a"], ["a"], ["a", "b", "c"], ["ab", ""], ["", "ab"], ["a", None]])
def test_different_maps_differ(other):
    """Order, number and borders of the tokens all count."""
    assert vocab_fingerprint(Vocabulary(other)) != vocab_fingerprint(Vocabulary(["a", "b"]))


def test_a_real_tokenizer(tmp_path):
    """A saved tokenizer has the same fingerprint each time it is loaded, and another one with one token more."""
    prints = []
    for name, tokens in (("a", 96), ("b", 96), ("c", 95)):
        folder = tiny_models.save(tmp_path / name, tokens=tokens)
        prints.append(vocab_fingerprint(AutoTokenizer.from_pretrained(folder)))
    assert prints[0] == prints[1] != prints[2]


def test_no_torch():
    """Neither the fingerprint nor the names of models pull torch in."""
    code = (
        "import sys, draftwire.vocab, draftwire.models; draftwire.models.draft_path(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
