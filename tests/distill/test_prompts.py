"""Where prompts come from: files with their mistakes, the target's chat template, and the templates."""

import json
import re
from itertools import islice

import pytest
from transformers import AutoTokenizer

from distill.chat import Chat
from distill.halves import half
from distill.library import documentation, function
from distill.passages import passage
from distill.prompts import fingerprint, read_corpus, read_prompts
from distill.templates import KINDS, template_prompts
from distill.tiny_target import write_tiny_target
from draftwire.errors import InvalidArgument
from draftwire.types import Committed, Finished, FinishReason, GenerateRequest, SamplingParams, SpeculationStats, Usage
from verify_service.prompt_archive import PromptArchive
from verify_service.prompt_files import PromptFiles

LIMIT = 80


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Of the tiny target: its ids are bytes, and the special tokens 256 and 257."""
    return AutoTokenizer.from_pretrained(write_tiny_target(tmp_path_factory.mktemp("target")))


@pytest.fixture
def chat(tokenizer):
    return chat_of(tokenizer)


def chat_of(tokenizer, eos=(256,)):
    return Chat(tokenizer, eos_token_ids=eos, vocab_size=258, limit=LIMIT, limit_of="--max-prompt-tokens")


def file_of(tmp_path, name, text):
    """A file with this text, or these JSON lines."""
    file = tmp_path / name
    file.write_text(text if isinstance(text, str) else "\n".join(json.dumps(line) for line in text))
    return file


def test_prompts_of_a_text_file(tmp_path, chat, tokenizer):
    """A prompt a line, blank lines left out; each is a user's message of the chat template."""
    found = read_prompts(file_of(tmp_path, "p.txt", "Hello\n\nHow are you?\n"), chat)
    assert [kind for kind, _ in found] == ["file", "file"]
    assert tokenizer.decode(found[1][1]) == "<|im_start|>user\nHow are you?<|im_end|>\n<|im_start|>assistant\n"


def test_prompts_of_json_lines(tmp_path, chat):
    """With their kinds."""
    lines = [{"prompt": "Hi", "kind": "chat"}, {"prompt": "Two\nlines", "more": 1}]
    assert [kind for kind, _ in read_prompts(file_of(tmp_path, "p.jsonl", lines), chat)] == ["chat", "file"]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("p.txt", "", "--prompts: .* is empty"),
        ("p.txt", "\n  \n", "--prompts: .* is empty"),
        ("p.jsonl", '{"prompt": "Hi"}\n{"prompt": ', "line 2: is not JSON"),
        ("p.jsonl", '{"text": "Hi"}', 'line 1: must be an object with "prompt"; or "prompt_token_ids"'),
        ("p.jsonl", '{"prompt": 3}', "line 1: must be an object with"),
        ("p.jsonl", '{"prompt_token_ids": [1, "2"], "output_token_ids": []}', "line 1: must be an object with"),
        ("p.jsonl", '{"prompt_token_ids": [258], "output_token_ids": []}', "line 1: a token id is outside 0..257"),
        ("p.jsonl", '{"prompt_token_ids": [], "output_token_ids": []}', "line 1: the prompt is empty"),
        ("p.jsonl", "[]", "line 1: must be an object"),
        ("p.jsonl", '{"prompt": " "}', "line 1: the prompt is empty"),
        ("p.txt", "Hi\n" + "x" * LIMIT, rf"line 2: the prompt has {LIMIT + 19} tokens; --max-prompt-tokens is {LIMIT}"),
    ],
)
def test_mistakes_in_a_file_of_prompts(tmp_path, chat, name, text, problem):
    """Each names the option, and the line where there is one."""
    with pytest.raises(InvalidArgument, match=problem):
        read_prompts(file_of(tmp_path, name, text), chat)


def test_a_missing_file(tmp_path, chat):
    """And one that is no text."""
    with pytest.raises(InvalidArgument, match="--prompts: .*cannot be read"):
        read_prompts(tmp_path / "nowhere", chat)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InvalidArgument, match="--corpus: .*cannot be read"):
        read_corpus(tmp_path / "bytes", chat)


def test_texts_of_a_corpus(tmp_path, chat):
    """Every token but the first is learnt; 200 tokens are cut into 80, 80 and 40; a single token teaches nothing."""
    texts = read_corpus(file_of(tmp_path, "c.txt", "ab\n" + "y" * 200 + "\nz\n"), chat)
    assert [len(text.token_ids) for text in texts] == [2, 80, 80, 40]
    assert {(text.kind, text.supervised_from) for text in texts} == {("corpus", 1)}
    with pytest.raises(InvalidArgument, match="no text of two tokens"):
        read_corpus(file_of(tmp_path, "c.txt", "z"), chat)


def test_conversations_of_a_corpus(tmp_path, chat, tokenizer):
    """Of a prompt and a reply only the reply and its end are learnt; what passes the limit is cut, so it has no end."""
    lines = [{"prompt": "Hi", "reply": "Yes.", "kind": "log"}, {"prompt": "Hi", "reply": "n" * 100}, {"text": "abc"}]
    answered, cut, text = read_corpus(file_of(tmp_path, "c.jsonl", lines), chat)
    assert tokenizer.decode(answered.token_ids[answered.supervised_from :]) == "Yes.<|im_end|>"
    assert tokenizer.decode(answered.token_ids[: answered.supervised_from]).endswith("assistant\n")
    assert tokenizer.decode(cut.token_ids[cut.supervised_from :]) == "n" * (LIMIT - 21)
    assert len(cut.token_ids) == LIMIT
    assert (answered.kind, text.kind, text.supervised_from) == ("log", "corpus", 1)
    (endless, *_) = read_corpus(tmp_path / "c.jsonl", chat_of(tokenizer, eos=()))
    assert tokenizer.decode(endless.token_ids[endless.supervised_from :]) == "Yes."


def test_what_a_verify_worker_kept(tmp_path, chat):
    """Its own files, as prompts and as a corpus: the ids as they were, the temperature if it was alone."""
    kept = PromptArchive(
        PromptFiles(tmp_path / "kept", 1 << 20), file_bytes=1 << 16, fraction=1.0, count=lambda *_: None
    )
    for prompt, output, sampling in (
        ((1, 2, 3), (4, 5), SamplingParams(temperature=0.7)),
        ((6,), (7, 8, 9), SamplingParams(temperature=0.7, top_p=0.9)),
    ):
        record = kept.begin(GenerateRequest(f"request {prompt}", prompt, sampling=sampling))
        record.saw(Committed(0, output))
        record.saw(Finished(FinishReason.STOP, Usage(0, 0), SpeculationStats()))
    kept.close()
    assert read_prompts(tmp_path / "kept", chat) == [("file", [1, 2, 3]), ("file", [6])]
    one, two = read_corpus(tmp_path / "kept", chat)
    assert (one.token_ids, one.supervised_from, one.temperature) == ([1, 2, 3, 4, 5], 3, 0.7)
    assert (two.token_ids, two.supervised_from, str(two.temperature)) == ([6, 7, 8, 9], 1, "nan")
    (tmp_path / "kept" / "prompts-2.jsonl").write_text('{"prompt_token_ids": [1], "output_token_ids": [400]}')
    with pytest.raises(InvalidArgument, match="prompts-2.jsonl, line 1: a token id is outside"):
        read_corpus(tmp_path / "kept", chat)
    (tmp_path / "none").mkdir()
    with pytest.raises(InvalidArgument, match="--prompts: the folder .* holds no file prompts-"):
        read_prompts(tmp_path / "none", chat)


def test_only_a_line_feed_ends_a_line(tmp_path, chat):
    """Other separators of Unicode belong to the text; a carriage return before the line feed does not."""
    found = read_prompts(file_of(tmp_path, "p.txt", "a\u2028b\x85c\r\nd"), chat)
    assert [ids for _, ids in found] == [chat.encode("a\u2028b\x85c"), chat.encode("d")]


def test_what_the_target_takes_for_a_user(chat, tokenizer):
    """The template up to where a message begins; of what follows, only a message that was ended counts."""
    assert tokenizer.decode(chat.before_user()) == "<|im_start|>user\n"
    end = tokenizer.eos_token_id
    assert chat.user_text([*tokenizer(" What? ").input_ids, end]) == "What?"
    assert chat.user_text(tokenizer("What").input_ids) == ""


def test_a_target_without_a_chat_template(tokenizer):
    """Continues the bare text, and makes up no messages."""
    bare = AutoTokenizer.from_pretrained(tokenizer.name_or_path)
    bare.chat_template = None
    chat = chat_of(bare)
    assert chat.encode("Hi") == bare("Hi").input_ids
    with pytest.raises(InvalidArgument, match="--self-prompts: the target has no chat template"):
        chat.before_user()


def test_the_fingerprint_of_a_path(tmp_path):
    """Follows the content of the file, or of all files in a folder; no path, no fingerprint."""
    one, two = file_of(tmp_path, "prompts-a.jsonl", "x"), file_of(tmp_path, "b", "x")
    assert fingerprint(one) == fingerprint(two) != fingerprint(file_of(tmp_path, "c", "y"))
    before = fingerprint(tmp_path)
    file_of(tmp_path, "prompts-b.jsonl", "x")
    assert fingerprint(tmp_path) != before
    assert fingerprint(None) is None


def some(seed, stream, count=2000):
    return list(islice(template_prompts(seed, stream), count))


def test_templates_are_seeded_and_varied():
    """The same seed and stream, the same prompts; all kinds; hardly a prompt twice."""
    prompts = some(0, 0)
    assert prompts == some(0, 0)
    assert {kind for kind, _ in prompts} == set(KINDS)
    assert len(set(prompts)) > 0.9 * len(prompts)
    assert len(set(prompts) & set(some(0, 1))) < 0.1 * len(prompts)


def bare(text):
    """A prompt of one line without what stands around it now and then."""
    text = re.sub(r"^(Hello\.|Hi!|Good morning\.|A question\.|Please:) ", "", text)
    return re.sub(
        r" (I am a [^.]+\.|Keep it short\.|Be detailed\.|Thank you!|Use simple words\.|Be funny\.)$", "", text
    )


def test_held_out_prompts_are_disjoint():
    """An odd seed shares no prompt with an even one, whatever the streams and the greetings, and quotes no function."""
    used = [text for stream in range(3) for _, text in some(4, stream)]
    held_out = [text for stream in range(3) for _, text in some(7, stream)]
    assert not set(map(bare, used)) & set(map(bare, held_out))
    assert len(set(map(bare, used))) > 5000
    quoted = [{text.partition("```")[2] for text in texts if "```" in text} for texts in (used, held_out)]
    assert min(map(len, quoted)) > 100
    assert not quoted[0] & quoted[1]


def test_sources():
    """Passages are a few sentences; functions and their documentation are real ones, short enough to quote."""
    rng = half(0, 0)
    for _ in range(200):
        text, code, words = passage(rng), function(rng), documentation(rng)
        assert text.count(".") > 2
        assert "  " not in text
        assert "def " in code
        assert len(code) <= 700
        assert len(words) > 60
