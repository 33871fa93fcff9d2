"""From token ids to text as they arrive: whole characters only, and cut before the first stop string.

Two steps, each a small state: `Detokenizer` (ids -> characters) and `StopStrings` (characters -> characters that can no
longer belong to a stop string). `AnswerText` runs them token by token, so that it can say which token completed a stop
string. A character is a Unicode code point. Work per token is bounded: ids are decoded in a short sliding window.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

#: What decoders put where bytes are no character (yet).
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

#: A character has at most 4 bytes; so many tokens without a whole one are not on their way to one. Unit: tokens.
MAX_PENDING = 16

Decode = Callable[[Sequence[int]], str]


class Detokenizer:
    """Decodes ids one by one.

    The window holds the ids of the piece before (what a decoder does to a token, such as dropping the space that begins
    a text, depends on its neighbours) and then the pending ids, whose text has not been returned yet.

    Args:
        decode: the text of a run of ids. Longer runs must extend the text of shorter ones, but for characters
            that were incomplete: no clean-up of spaces.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._pending = 0  # index in the window of the first pending id
        self._said = ""  # the text of the ids before it

    def push(self, token_id: int) -> str:
        """The characters that this token completed; perhaps none."""
        self._window.append(token_id)
        text = self._pending_text()
        if not text.endswith(REPLACEMENT):
            return self._advance(text)
        if len(self._window) - self._pending < MAX_PENDING:
            return ""
        return self._give_up(text)

    def finish(self) -> str:
        """What is left, with replacement characters for the bytes that never became a character."""
        text = self._pending_text()
        self._window, self._pending, self._said = [], 0, ""
        return text

    def _pending_text(self) -> str:
        text = self._decode(self._window)
        if text.startswith(self._said):
            return text[len(self._said) :]
        # Byte-fallback decoders judge a run of bytes as one: a bad byte also turns the good ones before it into
        # replacement characters, which are said already. So judge the pending ones alone.
        return self._decode(self._window[self._pending :])

    def _advance(self, text: str) -> str:
        piece = self._window[self._pending :]
        said = self._decode(piece)
        if said or len(self._window) >= MAX_PENDING:
            self._window, self._said = piece, said
        else:
            self._said += text  # a piece without text is no context: keep the one before it
        self._pending = len(self._window)
        return text

    def _give_up(self, text: str) -> str:
        """Return what is certainly no character, and go on with the few last ids that may still become one."""
        for cut in range(len(self._window) - 1, self._pending, -1):
            head, tail = self._decode(self._window[self._pending : cut]), self._window[cut:]
            if head + self._decode(tail) == text:
                self._window, self._pending, self._said = tail, 0, ""
                return head
        return self._advance(text)


class StopStrings:
    """Holds back what could still become a stop string.

    The stop string that is complete first ends the text; of those that the same character completes, the longest.
    """

    def __init__(self, stops: Collection[str]) -> None:
        self._stops = sorted(stops, key=len, reverse=True)
        self._beginnings = frozenset(stop[:size] for stop in stops for size in range(1, len(stop)))
        self._longest = max(map(len, stops), default=0)
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Take more text; returns (text that is free now, the stop string that was completed or None)."""
        text = self._held + text
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            _, start, stop = min(found)
            self._held = ""
            return text[:start], stop
        first = max(0, len(text) - self._longest + 1)
        hold = next((i for i in range(first, len(text)) if text[i:] in self._beginnings), len(text))
        self._held = text[hold:]
        return text[:hold], None

    def finish(self) -> str:
        """The text that was held back for nothing."""
        held, self._held = self._held, ""
        return held


@dataclass(frozen=True, slots=True)
class Piece:
    """What some tokens did to the text.

    Attributes:
        text: characters to append.
        used: how many of the tokens belong to the answer; fewer than given only after a stop string.
        stop: the stop string that ended the answer, or None.
    """

    text: str
    used: int
    stop: str | None = None


class AnswerText:
    """The text of one answer.

    Args:
        decode: as for `Detokenizer`.
        hidden: ids that have no text (special tokens, ids that end the answer).
        stops: stop strings, none of them empty.
    """

    def __init__(self, decode: Decode, hidden: Collection[int] = (), stops: Collection[str] = ()) -> None:
        self._detokenizer = Detokenizer(decode)
        self._stops = StopStrings(stops)
        self._hidden = hidden

    def push(self, token_ids: Sequence[int]) -> Piece:
        """Take the next tokens, in any block size."""
        parts: list[str] = []
        for used, token_id in enumerate(token_ids, start=1):
            if token_id in self._hidden:
                continue
            text, stop = self._stops.push(self._detokenizer.push(token_id))
            parts.append(text)
            if stop is not None:
                return Piece("".join(parts), used, stop)
        return Piece("".join(parts), len(token_ids))

    def finish(self) -> Piece:
        """The answer is over: whatever was held back; what is left of a broken character may still complete a stop."""
        text, stop = self._stops.push(self._detokenizer.finish())
        return Piece(text + self._stops.finish(), 0, stop)
