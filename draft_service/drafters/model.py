"""The draft model as a drafter: one ragged forward drafts one token for every session that has room.

A session's KV slot lags behind its tokens by what was learned from commits (the prompt, a correction, tokens that an
n-gram guessed) and by the last drawn token. Every step runs a chunk of that lag; where the chunk reaches the end, its
last row of logits draws the next token. So prefill, catching up and drafting are one thing, and truncating on a
rejection is nothing but starting the next chunk earlier.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from draft_service.drafters.base import Drafted, Key, Keyed
from draft_service.session import Session
from draftwire.engine.base import Chunk, Engine
from draftwire.sampling import DrawKey, draw
from draftwire.types import DraftToken, ModelInfo

#: Draws one token a session from logits [B, V], row i for session i.
Draw = Callable[[Tensor, Sequence[Session]], list[DraftToken]]


def draw_from_model(logits: Tensor, sessions: Sequence[Session]) -> list[DraftToken]:
    """Draw from the draft's own q, keyed by each session's seed, path and next position."""
    return draw(logits, [_draw_key(session) for session in sessions])


def _draw_key(session: Session) -> DrawKey:
    begin = session.opening
    return DrawKey(begin.sampling, begin.mode, begin.seed, begin.choice, len(session.tokens), session.path)


def share_budget(lags: Sequence[int], budget: int) -> list[int]:
    """Split a forward of `budget` tokens: nobody gets more than its lag, the rest is shared evenly.

    So sessions that need one token each always get it and a long prompt gets what they leave.
    """
    shares = [0] * len(lags)
    order = sorted(range(len(lags)), key=lags.__getitem__)
    for done, i in enumerate(order):
        shares[i] = min(lags[i], budget // (len(order) - done))
        budget -= shares[i]
    return shares


@dataclass(slots=True)
class _Cached:
    """A session's KV slot: the first `held` of its tokens are in it; `ready` once all committed ones have been."""

    slot: int
    held: int
    ready: bool = False


class ModelDrafter:
    """`Drafter` over an engine.

    Args:
        engine: runs the draft model; owned by the calling thread.
        draw: turns logits into tokens.
        source: the name of `draw` for the metrics.
    """

    def __init__(self, engine: Engine, *, draw: Draw = draw_from_model, source: str = "model") -> None:
        self._engine = engine
        self._draw = draw
        self._source = source
        self._cached: dict[Key, _Cached] = {}

    @property
    def info(self) -> ModelInfo:
        """The model that the engine runs."""
        return self._engine.info

    @property
    def max_sessions(self) -> int:
        """The engine's slots."""
        return self._engine.num_slots

    def open(self, key: Key, session: Session) -> bool:
        """Take a KV slot; False if none is free."""
        acquired = self._engine.acquire(session.tokens)
        if acquired is None:
            return False
        slot, held = acquired
        self._cached[key] = _Cached(slot, held)
        return True

    def truncate(self, key: Key, length: int) -> None:
        """Of the session's tokens only the first `length` still stand."""
        cached = self._cached[key]
        cached.held = min(cached.held, length)

    def close(self, key: Key) -> None:
        """Give the KV slot back."""
        self._engine.release(self._cached.pop(key).slot)

    def step(self, sessions: Sequence[Keyed]) -> list[Drafted] | None:
        """One ragged forward over every session that lags."""
        lags = [self._lag(key, session) for key, session in sessions]
        shares = share_budget(lags, self._engine.max_batched_tokens)
        chunks: list[Chunk] = []
        drawing: list[Keyed] = []
        for (key, session), share in zip(sessions, shares, strict=True):
            if share:
                chunks.append(self._chunk(self._cached[key], session.tokens, share))
                drawing += [(key, session)] * chunks[-1].num_logits
        logits = self._engine.forward(chunks) if chunks else None
        tokens = self._draw(logits, [session for _, session in drawing]) if logits is not None and drawing else []
        drafts = {key: Drafted(key, [token], self._source) for (key, _), token in zip(drawing, tokens, strict=True)}
        for key, session in sessions:
            if self._became_ready(key, session):
                drafts.setdefault(key, Drafted(key, [], self._source))
        return list(drafts.values()) if chunks or drafts else None

    def _lag(self, key: Key, session: Session) -> int:
        """Tokens to run: all of them where one may be drawn, else those that no verdict can take back."""
        end = len(session.tokens) if session.room else min(session.committed, len(session.tokens) - 1)
        return max(0, end - self._cached[key].held)

    def _became_ready(self, key: Key, session: Session) -> bool:
        cached = self._cached[key]
        was_ready, cached.ready = cached.ready, cached.ready or cached.held >= session.committed - 1
        return cached.ready and not was_ready

    @staticmethod
    def _chunk(cached: _Cached, tokens: Sequence[int], share: int) -> Chunk:
        start, cached.held = cached.held, cached.held + share
        return Chunk(cached.slot, start, tokens[start : cached.held], num_logits=int(cached.held == len(tokens)))
