"""Text as it arrives must be the text of the whole, cut at the first stop string, however tokens and blocks fall."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.models import BPE

from gateway.text import MAX_PENDING, REPLACEMENT, AnswerText, Detokenizer, StopStrings

SAMPLE = "naïve café e\u0301 日本語テキスト 你好 🎉👩‍👩‍👧‍👦🏳️‍🌈 नमस्ते   three  spaces\n\ttab � end."


def byte_level() -> Tokenizer:
    """GPT-2's kind: each byte is a token; some tokens hold the end of one character and the beginning of another."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: i for i, symbol in enumerate(alphabet)}
    to_symbol = dict(zip(bytes_in_order(), alphabet_in_byte_order(), strict=True))
    for extra in (
        b" the",
        b"\xa0\xe5",
        b"\xf0\x9f",
        "好".encode(),
        b"\x80\xe2\x80",
        "🎉 ".encode(),
        b"st",
        b"END",
        b"\n\n",
    ):
        vocab["".join(to_symbol[byte] for byte in extra)] = len(vocab)
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def bytes_in_order() -> list[int]:
    """Bytes in the order in which GPT-2's table of printable symbols takes them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return printable + [byte for byte in range(256) if byte not in printable]


def alphabet_in_byte_order() -> list[str]:
    """The symbol of each of bytes_in_order."""
    printable = [chr(byte) for byte in bytes_in_order()[:188]]
    return printable + [chr(256 + i) for i in range(68)]


def byte_fallback() -> Tokenizer:
    """Llama's kind: pieces with a sentencepiece space, single bytes for everything else, the first space dropped."""
    pieces = ["▁", "▁the", "▁a", "st", "op", "END", "好", "▁好", "é", "\n", "▁▁", "."]
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {piece: 256 + i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


#: An id without a token: it has no text.
NO_TOKEN = 999

BYTE_LEVEL, BYTE_FALLBACK = byte_level(), byte_fallback()


def byte_ids(data: bytes) -> list[int]:
    """The ids that spell bytes in BYTE_LEVEL."""
    symbol = dict(zip(bytes_in_order(), alphabet_in_byte_order(), strict=True))
    return [BYTE_LEVEL.token_to_id(symbol[byte]) for byte in data]


def decode_with(tokenizer: Tokenizer):
    """All ids, special ones too."""
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False)


def first_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The plain definition: the stop string that is complete first, the longest of those."""
    for end in range(len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


def blocks(ids: list[int], sizes: list[int]):
    """The ids in blocks of these sizes, and the rest one by one."""
    for size in sizes:
        if ids:
            yield ids[:size]
            ids = ids[size:]
    yield from ([token_id] for token_id in ids)


def run(answer: AnswerText, ids: list[int], sizes: list[int]) -> tuple[list[str], int, str | None]:
    """(deltas, tokens used, stop string)."""
    deltas, used = [], 0
    for block in blocks(ids, sizes):
        piece = answer.push(block)
        deltas.append(piece.text)
        used += piece.used
        if piece.stop is not None:
            return deltas, used, piece.stop
    piece = answer.finish()
    return [*deltas, piece.text], used, piece.stop


valid_text = st.text(st.sampled_from(SAMPLE + "thestopEND. \n"), max_size=40)
stop_lists = st.lists(st.text(st.sampled_from("stopEND. 好🎉é\n"), min_size=1, max_size=5), max_size=4)
block_sizes = st.lists(st.integers(1, 7), max_size=30)


@settings(max_examples=400, deadline=None)
@given(ids=st.lists(st.integers(0, 264), max_size=80), stops=stop_lists, sizes=block_sizes)
def test_byte_level_any_tokens(ids, stops, sizes):
    """Random ids, so mostly broken characters: the deltas add up to decoding at once, cut at the first stop string."""
    decode = decode_with(BYTE_LEVEL)
    deltas, used, stop = run(AnswerText(decode, (), stops), ids, sizes)
    assert ("".join(deltas), stop) == first_stop(decode(ids), stops)
    assert stop is not None or used == len(ids)


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.sampled_from([*range(150, 256), 257, 258, 260]), min_size=20, max_size=120))
def test_byte_level_long_garbage(ids):
    """Long runs without a whole character are given up in time, and still give what decoding at once gives."""
    decode = decode_with(BYTE_LEVEL)
    windows: list[int] = []

    def counting(window):
        windows.append(len(window))
        return decode(window)

    deltas, _, _ = run(AnswerText(counting), ids, [])
    assert "".join(deltas) == decode(ids)
    assert max(windows) <= 2 * MAX_PENDING


@pytest.mark.parametrize("garbage", range(MAX_PENDING - 4, 2 * MAX_PENDING + 1))
def test_a_character_after_long_garbage(garbage):
    """However many bad bytes come before it, and wherever patience ends: the character after them is whole."""
    ids = byte_ids(b"\xff" * garbage + "好🎉.".encode())
    deltas, _, _ = run(AnswerText(decode_with(BYTE_LEVEL)), ids, [])
    assert "".join(deltas) == REPLACEMENT * garbage + "好🎉."


@settings(max_examples=300, deadline=None)
@given(
    parts=st.lists(st.one_of(st.integers(256, 267), st.sampled_from(SAMPLE), st.just(NO_TOKEN)), max_size=40),
    stops=stop_lists,
    sizes=block_sizes,
)
def test_byte_fallback_whole_characters(parts, stops, sizes):
    """Sentencepiece spaces and characters spelled in bytes: the deltas add up to decoding at once."""
    ids = [i for part in parts for i in ([part] if isinstance(part, int) else part.encode())]
    decode = decode_with(BYTE_FALLBACK)
    deltas, _, stop = run(AnswerText(decode, (), stops), ids, sizes)
    assert ("".join(deltas), stop) == first_stop(decode(ids), stops)


def test_a_token_without_text_is_no_context():
    """The decoder drops a space that begins a text; a token without text must not make " the" look like a beginning."""
    deltas, _, _ = run(AnswerText(decode_with(BYTE_FALLBACK)), [259, NO_TOKEN, 257], [])
    assert deltas == ["st", "", " the", ""]


def test_byte_fallback_bad_byte_spares_the_character_before():
    """Decoding at once would turn 好 and the bad byte into four replacement characters; 好 is said already."""
    ids = [*"好".encode(), 0xFF, 256]
    deltas, _, _ = run(AnswerText(decode_with(BYTE_FALLBACK)), ids, [])
    assert "".join(deltas) == f"好{REPLACEMENT} "


@settings(max_examples=200, deadline=None)
@given(text=valid_text)
def test_no_delta_splits_a_character(text):
    """Of valid text no delta ever holds a replacement character that the text does not have."""
    detokenizer = Detokenizer(decode_with(BYTE_FALLBACK))
    for byte in text.replace(REPLACEMENT, "").encode():
        assert REPLACEMENT not in detokenizer.push(byte)


def test_a_character_is_released_with_its_last_byte():
    """🎉 is four tokens: three give nothing, the fourth gives it at once."""
    detokenizer = Detokenizer(decode_with(BYTE_FALLBACK))
    assert [detokenizer.push(byte) for byte in "🎉".encode()] == ["", "", "", "🎉"]


@settings(max_examples=400, deadline=None)
@given(
    text=st.text("abc", max_size=40),
    stops=st.lists(st.text("abc", min_size=1, max_size=5), max_size=4),
    sizes=block_sizes,
)
def test_stop_strings_do_not_depend_on_splits(text, stops, sizes):
    """Whatever the pieces, the text is cut at the first complete stop string; only the beginning of one is held."""
    matcher, said, rest, found = StopStrings(stops), "", text, None
    for size in [*sizes, *[1] * len(text)]:
        piece, rest = rest[:size], rest[size:]
        free, found = matcher.push(piece)
        said += free
        if found is not None:
            break
        held = text[len(said) : len(text) - len(rest)]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)
    else:
        said += matcher.finish()
    assert (said, found) == first_stop(text, stops)


def test_stop_string_across_blocks_says_which_token_completed_it():
    """Blocks "th|e s|to" + "p E|ND": the stop "stop" is complete in the second token of the second block."""
    decode = lambda ids: "".join(("th", "e s", "to", "p E", "ND")[i] for i in ids)  # noqa: E731
    answer = AnswerText(decode, (), ["stop"])
    first, second = answer.push([0, 1, 2]), answer.push([3, 4])
    assert (first.text, first.used, first.stop) == ("the ", 3, None)
    assert (second.text, second.used, second.stop) == ("", 1, "stop")


def test_hidden_ids_have_no_text_and_do_not_part_their_neighbours():
    """A special token between the bytes of a character is skipped; the character is whole."""
    first, *others = "好".encode()
    deltas, used, _ = run(AnswerText(decode_with(BYTE_FALLBACK), {267}), [first, 267, *others], [])
    assert "".join(deltas) == "好"
    assert used == 4


def test_finish_releases_broken_characters_and_held_text():
    """At the end of the answer the beginning of a stop string and of a character come out."""
    answer = AnswerText(decode_with(BYTE_FALLBACK), (), ["stop"])
    assert answer.push([259]).text == ""  # "st" could become "stop"
    assert answer.push([0xE5]).text == ""
    assert answer.finish().text == f"st{REPLACEMENT}"


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK])
def test_the_test_tokenizers_are_what_they_claim(tokenizer):
    """Both spell every byte, so the property tests reach broken and whole characters."""
    vocab = json.loads(tokenizer.to_str())["model"]["vocab"]
    assert len(vocab) > 256
    ids = list("é".encode()) if tokenizer is BYTE_FALLBACK else [vocab[c] for c in ("Ã", "©")]
    assert tokenizer.decode(ids) == "é"
