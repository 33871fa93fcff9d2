"""The n-gram drafter against a plain search, and its place among sessions."""

from hypothesis import given
from hypothesis import strategies as st

from draft_service.drafters.ngram import SIZES, NgramDrafter, NgramIndex
from draft_service.session import Session
from draftwire.session import Commit, Open
from draftwire.types import ModelInfo, SamplingParams, VerificationMode

INFO = ModelInfo(name="ngram", vocab_fingerprint="", vocab_size=1000, max_model_len=64, engine="ngram")


def plain_guess(tokens: list[int]) -> int | None:
    """The rule, by search: longest n-gram first, latest earlier occurrence first."""
    for n in SIZES:
        gram = tokens[len(tokens) - n :]
        for end in range(len(tokens) - 1, n - 1, -1):
            if len(tokens) >= n and tokens[end - n : end] == gram:
                return tokens[end]
    return None


def session(tokens: list[int], window: int) -> Session:
    mode = VerificationMode.REJECTION
    return Session(Open(1, tuple(tokens), SamplingParams(), mode, seed=0, choice=0, window=window), INFO)


@given(st.lists(st.one_of(st.integers(0, 3), st.integers(-6, -1)), max_size=60))
def test_index_equals_a_plain_search(actions: list[int]) -> None:
    """After every append (>= 0) and truncation by n (-n), the guess is what a search of the whole text finds."""
    index, tokens = NgramIndex(), []
    for action in actions:
        if action >= 0:
            index.append(action)
            tokens.append(action)
        else:
            tokens = tokens[: max(0, len(tokens) + action)]
            index.truncate(len(tokens))
        assert len(index) == len(tokens)
        assert index.guess() == plain_guess(tokens)


def test_longer_ngrams_win() -> None:
    """In 1 2 3 9 5 3 8 1 2 3 the 3-gram 1 2 3 says 9, though 3 alone was followed by 8 later."""
    index = NgramIndex()
    for token in [1, 2, 3, 9, 5, 3, 8, 1, 2, 3]:
        index.append(token)
    assert index.guess() == 9


def test_index_forgets_what_is_truncated() -> None:
    """Appending and truncating for ever keeps no entry, so memory is bounded by the session's length."""
    index = NgramIndex()
    for token in range(100):
        index.append(token)
    index.truncate(0)
    assert not any(index._latest.values())
    assert not any(index._follows.values())


def test_guesses_fill_the_room_by_repeating() -> None:
    """1 2 3 1 2 3 1 continues 2 3 1 2 3: five point masses for a window of five, then nothing more to do."""
    drafter, text = NgramDrafter(INFO, max_sessions=1), session([1, 2, 3, 1, 2, 3, 1], window=5)
    assert drafter.open((1, 1), text)
    [drafted] = drafter.step([((1, 1), text)]) or []
    assert [token.token for token in drafted.tokens] == [2, 3, 1, 2, 3]
    assert all(token.q is None for token in drafted.tokens)
    text.draft(drafted.tokens)
    assert drafter.step([((1, 1), text)]) is None


def test_no_match_is_ready_but_silent() -> None:
    """A text without repetition is announced once, without tokens, and asks for no further step."""
    drafter, text = NgramDrafter(INFO, max_sessions=1), session([1, 2, 3], window=5)
    assert drafter.open((1, 1), text)
    assert [drafted.tokens for drafted in drafter.step([((1, 1), text)]) or []] == [[]]
    assert drafter.step([((1, 1), text)]) is None


def test_a_correction_changes_the_index() -> None:
    """After 1 2 1 2 the guess 1 2 is refuted by 7; with 7 1 committed the next guess follows the latest 1."""
    drafter, text = NgramDrafter(INFO, max_sessions=1), session([1, 2, 1, 2], window=2)
    assert drafter.open((1, 1), text)
    [drafted] = drafter.step([((1, 1), text)]) or []
    text.draft(drafted.tokens)
    drafter.truncate((1, 1), text.receive(Commit(1, 1, position=4, token_ids=(7, 1), window=2)))
    [drafted] = drafter.step([((1, 1), text)]) or []
    assert [token.token for token in drafted.tokens] == [2, 7]


def test_places_are_limited() -> None:
    """The second of two sessions finds no place until the first is closed."""
    drafter, text = NgramDrafter(INFO, max_sessions=1), session([1], window=1)
    assert drafter.open((1, 1), text)
    assert not drafter.open((1, 2), text)
    drafter.close((1, 1))
    assert drafter.open((1, 2), text)
