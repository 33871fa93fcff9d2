"""Mistakes that look harmless, built into a draft worker or a verify worker: the test of the law rejects each."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.service_law import DRAFTERS, EOS, breaks_the_law, draft_engine, service
from torch import Tensor

from draft_service.drafters.model import ModelDrafter, draw_from_model
from draft_service.session import Session
from draftwire.session import VerifierSession
from draftwire.types import WEIGHT_TOTAL, DraftToken


def certain_where_likely(logits: Tensor, sessions: Sequence[Session]) -> list[DraftToken]:
    """Draws from the model and calls the token certain where it is the model's favourite."""
    drawn = draw_from_model(logits, sessions)
    favourites = logits.argmax(dim=-1).tolist()
    return [DraftToken(d.token) if d.token == favourite else d for d, favourite in zip(drawn, favourites, strict=True)]


def drawn_again_where_unlikely(logits: Tensor, sessions: Sequence[Session]) -> list[DraftToken]:
    """Takes the model's favourite where the drawn token is unlikely, and says the same q."""
    drawn = draw_from_model(logits, sessions)
    favourites = logits.argmax(dim=-1).tolist()
    return [
        replace(d, token=favourite) if d.q and weight(d) < WEIGHT_TOTAL / 10 else d
        for d, favourite in zip(drawn, favourites, strict=True)
    ]


def weight(guess: DraftToken) -> int:
    """Of the guess in its own q."""
    return guess.q.weights[guess.q.ids.index(guess.token)] if guess.q else WEIGHT_TOTAL


@pytest.mark.parametrize("draw", [certain_where_likely, drawn_again_where_unlikely])
async def test_a_dishonest_draft_is_caught(draw) -> None:
    """A draft whose q is not what it drew from, by the token's value: chi-square rejects."""
    async with service(lambda: ModelDrafter(draft_engine(), draw=draw), "lockstep") as target:
        assert await breaks_the_law(target)


async def test_a_gate_on_confidence_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verify side that tests only guesses of which the draft was sure: chi-square rejects."""
    pending = VerifierSession.pending

    def only_sure(session: VerifierSession, limit: int) -> tuple[DraftToken, ...]:
        return tuple(itertools.takewhile(lambda guess: weight(guess) > WEIGHT_TOTAL / 2, pending(session, limit)))

    monkeypatch.setattr(VerifierSession, "pending", only_sure)
    async with service(DRAFTERS["model"], "lockstep") as target:
        assert await breaks_the_law(target)


async def test_a_dropped_guess_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verify side that does not test a guess which would end the answer: chi-square rejects."""
    pending = VerifierSession.pending

    def never_the_end(session: VerifierSession, limit: int) -> tuple[DraftToken, ...]:
        return tuple(itertools.takewhile(lambda guess: guess.token != EOS, pending(session, limit)))

    monkeypatch.setattr(VerifierSession, "pending", never_the_end)
    async with service(DRAFTERS["model"], "lockstep") as target:
        assert await breaks_the_law(target)
