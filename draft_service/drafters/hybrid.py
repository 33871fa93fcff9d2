"""The n-gram lookup where the text repeats itself, the model everywhere else.

Which of the two serves a position is decided by the tokens before it, before anything is drawn: an n-gram of at least
three tokens that occurred before gives a point mass on what followed it, otherwise the model draws from its q. (Drawing
from the model first and calling the token certain because the n-gram agrees would bias the output.)
"""

from collections.abc import Sequence

from draft_service.drafters.base import Drafted, Drafter, Key, Keyed
from draft_service.drafters.ngram import NgramDrafter
from draft_service.session import Session
from draftwire.types import ModelInfo

#: Longest first. Where 3 tokens match, the next one of greedy text is foretold in .83 of cases, and in .85 if a match
#: of 6 goes first; where only 2 match in .40, no more often than by a small model.
SIZES = (6, 3)


class HybridDrafter:
    """`Drafter` made of two.

    Args:
        model: drafts where no n-gram matches; it catches up over what the n-gram guessed with a longer chunk.
    """

    def __init__(self, model: Drafter) -> None:
        self._model = model
        self._ngram = NgramDrafter(model.info, max_sessions=model.max_sessions, sizes=SIZES)

    @property
    def info(self) -> ModelInfo:
        """The model's."""
        return self._model.info

    @property
    def max_sessions(self) -> int:
        """The model's."""
        return self._model.max_sessions

    def open(self, key: Key, session: Session) -> bool:
        """Take a session in; False if the model has no place for it."""
        return self._model.open(key, session) and self._ngram.open(key, session)

    def truncate(self, key: Key, length: int) -> None:
        """Of the session's tokens only the first `length` still stand."""
        self._model.truncate(key, length)
        self._ngram.truncate(key, length)

    def close(self, key: Key) -> None:
        """Forget a session."""
        self._model.close(key)
        self._ngram.close(key)

    def step(self, sessions: Sequence[Keyed]) -> list[Drafted] | None:
        """What the n-grams know is sent without waiting for a forward; the model serves the rest at the next call.

        A match fills the session's room (its own guess repeats the n-gram), so no session can keep the model from its
        forward for longer than until its next commit.
        """
        matched = [Drafted(k, tokens, "ngram") for k, s in sessions if (tokens := self._ngram.guesses(k, s))]
        return matched or self._model.step(sessions)
