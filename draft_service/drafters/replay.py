"""For benchmarks only: a draft whose acceptance is set, to measure the pipeline at what real pairs reach.

The real draft's forward runs, for its cost; then, where a recording of the session's prompt covers the position, the
token is the recorded one with probability `acceptance` and a different one otherwise. The coin is keyed by seed,
position and path, so it is independent of every token's value. Recordings come from the target, decoding plainly.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

from draft_service.drafters.model import draw_from_model
from draft_service.session import Session
from draftwire.errors import InvalidArgument
from draftwire.sampling import Purpose, uniform
from draftwire.types import DraftToken


@dataclass(frozen=True, slots=True)
class Recording:
    """What the target answered to a prompt."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]


def read_recordings(path: str) -> list[Recording]:
    """Read lines of {"prompt_token_ids": [..], "output_token_ids": [..]}; raises InvalidArgument("--replay-file")."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument("--replay-file", f"{path} cannot be read: {error}") from None
    recordings = []
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            recordings.append(Recording(_ids(entry["prompt_token_ids"]), _ids(entry["output_token_ids"])))
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidArgument("--replay-file", f"{path}, line {number}: {error!r}") from None
    return recordings


def _ids(values: Any) -> tuple[int, ...]:
    ids = tuple(values)
    if not ids or not all(isinstance(value, int) and value >= 0 for value in ids):
        raise ValueError("must be a list of at least one token id")
    return ids


class Replay:
    """A `Draw` for the model drafter.

    Args:
        recordings: known prompts and outputs.
        acceptance: how often the recorded token is proposed; 0 to 1.
    """

    def __init__(self, recordings: Iterable[Recording], acceptance: float) -> None:
        self._texts = {recording.prompt: recording.prompt + recording.output for recording in recordings}
        self._acceptance = acceptance
        self._text_of = lru_cache(maxsize=1024)(self._find_text)

    def __call__(self, logits: Tensor, sessions: Sequence[Session]) -> list[DraftToken]:  # logits [B, V]
        """One token a session; from the model itself where no recording covers the position."""
        drawn = draw_from_model(logits, sessions)
        guesses = logits.argmax(dim=-1).tolist()
        return [
            self._replay(session, guess, logits.shape[1]) or token
            for session, guess, token in zip(sessions, guesses, drawn, strict=True)
        ]

    def _replay(self, session: Session, guess: int, vocab_size: int) -> DraftToken | None:
        position = len(session.tokens)
        text = self._text_of(session.opening.token_ids)
        if position >= len(text):
            return None
        recorded, opening = text[position], session.opening
        coin = uniform(opening.seed, opening.choice, position, Purpose.DRAFT, session.path)
        if coin < self._acceptance:
            return DraftToken(recorded)
        return DraftToken(guess if guess != recorded else (recorded + 1) % vocab_size)

    def _find_text(self, opened: tuple[int, ...]) -> tuple[int, ...]:
        """The recorded text that begins with `opened`: a prompt, or after a failover more than it; () if none."""
        if opened in self._texts:
            return self._texts[opened]
        begun = (
            text for prompt, text in self._texts.items() if len(opened) > len(prompt) and text[: len(opened)] == opened
        )
        return next(begun, ())
