"""Prompt lookup: guess that what followed the last few tokens before will follow them again. Needs no model.

The guess for a position is a function of the tokens before it alone: of the longest n-gram (n in `sizes`) that ends
there and occurred before, the token that followed its latest earlier occurrence. It is proposed as a point mass, in
coupled mode too. (Saxena, "Prompt Lookup Decoding", 2023.)
"""

from collections.abc import Sequence

from draft_service.drafters.base import Drafted, Key, Keyed
from draft_service.session import Session
from draftwire.types import DraftToken, ModelInfo

#: The n-grams of the drafter that has nothing else to propose, longest first.
SIZES = (3, 2, 1)


class NgramIndex:
    """For every prefix of a token sequence, where its last n-gram occurred before: O(1) a lookup, O(n) memory.

    `_follows[n][i]` is the position after the latest earlier occurrence of the n-gram that ends at i, 0 if there is
    none; `_latest[n]` maps each n-gram to the position after its last occurrence, so that an append or its undoing is
    one dictionary access a size.
    """

    def __init__(self, sizes: Sequence[int] = SIZES) -> None:
        self._tokens: list[int] = []
        self._latest: dict[int, dict[tuple[int, ...], int]] = {n: {} for n in sizes}
        self._follows: dict[int, list[int]] = {n: [] for n in sizes}

    def __len__(self) -> int:
        """Tokens indexed."""
        return len(self._tokens)

    def append(self, token: int) -> None:
        """Index one more token."""
        self._tokens.append(token)
        end = len(self._tokens)
        for n, latest in self._latest.items():
            gram = tuple(self._tokens[end - n :]) if end >= n else ()
            self._follows[n].append(latest.get(gram, 0))
            if gram:
                latest[gram] = end

    def truncate(self, length: int) -> None:
        """Forget the tokens from `length` on."""
        for end in range(len(self._tokens), length, -1):
            for n, latest in self._latest.items():
                before = self._follows[n].pop()
                gram = tuple(self._tokens[end - n :]) if end >= n else ()
                if before:
                    latest[gram] = before
                elif gram:
                    del latest[gram]
            self._tokens.pop()

    def guess(self) -> int | None:
        """The token that followed the latest earlier occurrence of the longest n-gram that ends here; None = none."""
        for follows in self._follows.values():
            if follows and follows[-1]:
                return self._tokens[follows[-1]]
        return None


class NgramDrafter:
    """`Drafter` that knows only the session's own tokens.

    Args:
        info: what it tells verify workers of itself.
        max_sessions: most sessions at once.
        sizes: the n-grams that it looks for, longest first.
    """

    def __init__(self, info: ModelInfo, *, max_sessions: int, sizes: Sequence[int] = SIZES) -> None:
        self.info = info
        self.max_sessions = max_sessions
        self._sizes = sizes
        self._indexes: dict[Key, NgramIndex] = {}

    def open(self, key: Key, session: Session) -> bool:
        """Begin a session; False if there are max_sessions already."""
        if len(self._indexes) >= self.max_sessions:
            return False
        self._indexes[key] = NgramIndex(self._sizes)
        return True

    def truncate(self, key: Key, length: int) -> None:
        """The session's tokens changed from `length` on."""
        self._indexes[key].truncate(length)

    def close(self, key: Key) -> None:
        """Forget a session."""
        del self._indexes[key]

    def step(self, sessions: Sequence[Keyed]) -> list[Drafted] | None:
        """Guess for every session as far as its room and its n-grams reach."""
        drafts: list[Drafted] = []
        for key, session in sessions:
            fresh = not self._indexes[key]
            if (tokens := self.guesses(key, session)) or fresh:
                drafts.append(Drafted(key, tokens, "ngram"))
        return drafts or None

    def guesses(self, key: Key, session: Session) -> list[DraftToken]:
        """Point masses for the next positions, at most `room`, up to the first without a match."""
        index = self._indexes[key]
        for known in session.tokens[len(index) :]:
            index.append(known)
        tokens: list[DraftToken] = []
        while len(tokens) < session.room and (token := index.guess()) is not None:
            index.append(token)
            tokens.append(DraftToken(token))
        return tokens
