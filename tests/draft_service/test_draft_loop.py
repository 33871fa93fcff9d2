"""The draft worker's loop, driven by hand over the fake engine: after t comes t + 1."""

import pytest
from draft_harness import HandLoop, RecordingEngine, ngram_info, opening
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from draft_service.drafters.hybrid import HybridDrafter
from draft_service.drafters.model import ModelDrafter
from draft_service.drafters.ngram import NgramDrafter
from draft_service.inbox import DrainBegan
from draftwire.errors import EngineError
from draftwire.fake_model import FakeModel
from draftwire.session import Close, Commit, Ended, Idle, Opened
from draftwire.types import EndReason


def model_loop(model: FakeModel | None = None, *, num_slots: int = 8, max_sessions_per_stream: int = 8) -> HandLoop:
    drafter = ModelDrafter(RecordingEngine(model, num_slots=num_slots))
    return HandLoop(drafter, max_sessions_per_stream=max_sessions_per_stream)


def test_golden_dialogue() -> None:
    """Open [7]: 8 9 10. Commit 8 9: the path goes on with 11 12. Commit 10 40: path 2 drafts 41 42 43."""
    hand = model_loop()
    hand.say(1, opening([7], 3))
    hand.rest()
    assert hand.emitted[0][1].opened == (Opened(1),)
    assert hand.tokens(1) == [8, 9, 10]
    hand.say(1, Commit(1, 1, position=1, token_ids=(8, 9), window=3))
    hand.rest()
    assert hand.tokens(1) == [8, 9, 10, 11, 12]
    hand.say(1, Commit(1, 2, position=3, token_ids=(10, 40), window=3))
    hand.rest()
    assert hand.tokens(1, path=2) == [41, 42, 43]
    assert sum(len(step.opened) for _, step in hand.emitted) == 1


def test_window_zero_pauses() -> None:
    """A session opened with window 0 is announced and silent; a commit without tokens that raises it starts it."""
    hand = model_loop()
    hand.say(1, opening([7], 0))
    hand.rest()
    assert [step.opened for _, step in hand.emitted] == [(Opened(1),)]
    assert hand.tokens(1) == []
    hand.say(1, Commit(1, 1, position=1, token_ids=(), window=2))
    hand.rest()
    assert hand.tokens(1) == [8, 9]


def test_each_step_leaves_at_once() -> None:
    """Every engine step is emitted, one message a stream, with the tokens of all its sessions."""
    hand = model_loop()
    hand.say(1, opening([7], 2, session_id=1), opening([17], 2, session_id=2))
    hand.say(2, opening([27], 2, session_id=1))
    assert hand.loop.step(0.0) == 0.0
    assert [(stream, len(step.proposals)) for stream, step in hand.emitted] == [(1, 2), (2, 1)]
    hand.rest()
    assert (hand.tokens(1, 1), hand.tokens(1, 2), hand.tokens(2, 1)) == ([8, 9], [18, 19], [28, 29])


def test_a_lost_stream_frees_its_slots() -> None:
    """Both slots belong to stream 1; once it is lost stream 2 gets them, and the other sessions are forgotten."""
    hand = model_loop(num_slots=2)
    hand.say(1, opening([7], 1, session_id=1), opening([7], 1, session_id=2))
    hand.lose(1)
    hand.say(2, opening([7], 1, session_id=1), opening([7], 1, session_id=2))
    hand.rest()
    assert hand.ended() == []
    assert {stream for stream, _ in hand.emitted} == {2}
    assert hand.loads[-1].sessions == 2


def test_a_closed_session_frees_its_slot() -> None:
    """Within one message closes come before opens, so a full worker takes the session that replaces another."""
    hand = model_loop(num_slots=1)
    hand.say(1, opening([7], 1, session_id=1))
    hand.say(1, opening([17], 1, session_id=2), Close(1))
    hand.rest()
    assert hand.tokens(1, 2) == [18]
    assert hand.ended() == []


def test_overload_is_said() -> None:
    """Beyond the slots, and beyond a stream's limit, a session is refused as overloaded and the others draft."""
    hand = model_loop(num_slots=3, max_sessions_per_stream=2)
    hand.say(1, *(opening([7], 1, session_id=i) for i in (1, 2, 3)))
    hand.say(2, *(opening([7], 1, session_id=i) for i in (1, 2)))
    hand.rest()
    assert [(stream, ended.session_id, ended.reason) for stream, ended in hand.ended()] == [
        (1, 3, EndReason.OVERLOADED),
        (2, 2, EndReason.OVERLOADED),
    ]
    assert hand.tokens(1, 1) == hand.tokens(1, 2) == hand.tokens(2, 1) == [8]


def test_the_models_length_ends_a_session() -> None:
    """A draft of 6 positions drafts 8 9 10 after 5 6 7, stops, and ends when those are final; a full prompt at once."""
    hand = model_loop(FakeModel(max_model_len=6))
    hand.say(1, opening([5, 6, 7], 8))
    hand.rest()
    assert hand.tokens(1) == [8, 9, 10]
    hand.say(1, Commit(1, 1, position=3, token_ids=(8, 9, 10), window=8))
    hand.say(1, opening(range(6), 8, session_id=2))
    hand.rest()
    assert [(ended.session_id, ended.reason) for _, ended in hand.ended()] == [
        (1, EndReason.MAX_MODEL_LEN),
        (2, EndReason.MAX_MODEL_LEN),
    ]
    assert hand.loads[-1].sessions == 0


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        (Commit(1, 0, position=1, token_ids=(), window=1), "number"),
        (Commit(1, 1, position=5, token_ids=(8,), window=1), "position"),
        (Commit(1, 1, position=1, token_ids=(512,), window=1), "token 512"),
        (Commit(1, 1, position=1, token_ids=(8,), window=65), "window"),
        (opening([7], 1, session_id=1), "session_id"),
        (opening([512], 1, session_id=3), "token 512"),
        (opening([], 1, session_id=3), "token_ids"),
    ],
)
def test_a_violation_ends_its_session_alone(entry: object, named: str) -> None:
    """The session is ended as invalid with the field's name; its neighbour drafts on."""
    hand = model_loop()
    hand.say(1, opening([7], 1, session_id=1), opening([17], 1, session_id=2))
    hand.rest()
    hand.say(1, entry, Commit(2, 1, position=1, token_ids=(18,), window=1))
    hand.rest()
    [(_, ended)] = hand.ended()
    assert ended.reason is EndReason.INVALID
    assert named in ended.detail
    assert hand.tokens(1, 2) == [18, 19]


def test_an_unreadable_entry_ends_its_session() -> None:
    """What the conversion refused is ended here too and said to the verifier."""
    hand = model_loop()
    hand.say(1, opening([7], 1))
    hand.say(1, bad=(Ended(1, EndReason.INVALID, "window: too large"),))
    hand.rest()
    assert hand.ended() == [(1, Ended(1, EndReason.INVALID, "window: too large"))]
    assert hand.loads[-1].sessions == 0


def test_unknown_sessions_are_ignored() -> None:
    """Commits and closes for sessions that are not open here say and change nothing."""
    hand = model_loop()
    hand.say(1, Commit(9, 1, position=1, token_ids=(8,), window=1), Close(9))
    hand.rest()
    assert hand.emitted == []


def test_draining_admits_nobody() -> None:
    """After the drain began open sessions go on and new ones are refused."""
    hand = model_loop()
    hand.say(1, opening([7], 1))
    hand.loop.receive(DrainBegan())
    hand.say(1, opening([7], 1, session_id=2))
    hand.rest()
    assert hand.tokens(1) == [8]
    assert [(ended.session_id, ended.reason) for _, ended in hand.ended()] == [(2, EndReason.OVERLOADED)]


def test_an_engine_failure_is_said_and_raised() -> None:
    """Every session is told, and the error reaches the thread so that the service stops."""

    class Broken(RecordingEngine):
        def forward(self, chunks: object) -> Tensor:
            raise EngineError("the device is gone")

    hand = HandLoop(ModelDrafter(Broken()))
    hand.say(1, opening([7], 1), opening([7], 1, session_id=2))
    with pytest.raises(EngineError):
        hand.loop.step(0.0)
    assert [ended.reason for _, ended in hand.ended()] == [EndReason.INTERNAL] * 2


def test_metrics_count_by_source() -> None:
    """Two n-gram tokens and one of the model are counted apart, and time without room is measured."""
    hand = HandLoop(HybridDrafter(ModelDrafter(RecordingEngine())))
    hand.say(1, opening([1, 2, 3, 50, 60, 1, 2, 3], 2), opening([7], 1, session_id=2))
    hand.rest()
    hand.loop.step(2.5)
    hand.say(1, Close(1), Close(2))
    hand.loop.step(2.5)
    hand.loop.step(9.0)  # without sessions nobody starves
    value = hand.registry.get_sample_value
    assert value("draftwire_draft_proposed_tokens_total", {"source": "ngram"}) == 2
    assert value("draftwire_draft_proposed_tokens_total", {"source": "model"}) == 1
    assert value("draftwire_draft_starved_seconds_total") == 2.5


def test_ngram_worker_needs_no_model() -> None:
    """1 2 1 2 is continued by 1 2 1; without a match the loop comes to rest instead of spinning."""
    hand = HandLoop(NgramDrafter(ngram_info(), max_sessions=4))
    hand.say(1, opening([1, 2, 1, 2], 3), opening([5], 3, session_id=2))
    hand.rest(most=2)
    assert hand.tokens(1) == [1, 2, 1]
    assert hand.tokens(1, 2) == []


def test_no_guess_is_said_once_a_commit() -> None:
    """Without a match it says so of the open and of each commit; a match speaks for itself."""
    hand = HandLoop(NgramDrafter(ngram_info(), max_sessions=4))
    hand.say(1, opening([5, 6], 3))
    hand.rest()
    hand.rest()
    assert hand.idle() == [(1, Idle(1, 0))]
    hand.say(1, Commit(1, 1, position=2, token_ids=(7,), window=3))
    hand.rest()
    hand.rest()
    assert hand.idle() == [(1, Idle(1, 0)), (1, Idle(1, 1))]
    hand.say(1, Commit(1, 2, position=3, token_ids=(5,), window=3))
    hand.rest()
    assert hand.tokens(1, path=0) == [6, 7, 5]
    assert len(hand.idle()) == 2


def test_without_credit_no_guess_is_owed() -> None:
    """A paused session says nothing; the commit that gives it credit is answered, though it holds no token."""
    hand = HandLoop(NgramDrafter(ngram_info(), max_sessions=4))
    hand.say(1, opening([5, 6], 0))
    hand.say(1, Commit(1, 1, position=2, token_ids=(7,), window=0))
    hand.rest()
    assert hand.idle() == []
    hand.say(1, Commit(1, 2, position=3, token_ids=(), window=3))
    hand.rest()
    assert hand.idle() == [(1, Idle(1, 2))]


def test_a_model_always_has_a_guess() -> None:
    """Whatever is committed, a session of the model or the hybrid drafter is never called idle."""
    for drafter in (ModelDrafter(RecordingEngine()), HybridDrafter(ModelDrafter(RecordingEngine()))):
        hand = HandLoop(drafter)
        hand.say(1, opening([7], 3))
        hand.rest()
        for number, token in enumerate([8, 40, 41, 7, 8], start=1):
            hand.say(1, Commit(1, number, position=number, token_ids=(token,), window=3))
            hand.rest()
        assert hand.idle() == []


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_verdict_is_followed(data: st.DataObject) -> None:
    """Whatever is committed, the loop's last path continues the committed text by the model's rule up to the window."""
    hand = model_loop(FakeModel(vocab_size=16, drift=3))
    model = FakeModel(vocab_size=16, drift=3)
    text, window = [7], 6
    hand.say(1, opening(text, window))
    for number in range(1, data.draw(st.integers(1, 6)) + 1):
        for _ in range(data.draw(st.integers(0, 8))):
            hand.loop.step(0.0)
        tokens = data.draw(st.lists(st.integers(0, 15), max_size=4)) or [
            model.next_token(text[-1], len(text)),
        ]
        hand.say(1, Commit(1, number, position=len(text), token_ids=tuple(tokens), window=window))
        text += tokens
    hand.rest()
    last = max((p for _, step in hand.emitted for p in step.proposals), key=lambda p: (p.path, p.position))
    expected = list(text)
    while len(expected) < len(text) + window:
        expected.append(model.next_token(expected[-1], len(expected)))
    assert last.position + len(last.tokens) == len(expected)
    drafted = {
        p.position + i: token.token
        for _, step in hand.emitted
        for p in step.proposals
        if p.path == last.path
        for i, token in enumerate(p.tokens)
    }
    assert all(drafted[i] == expected[i] for i in drafted if i >= len(text))
    assert hand.ended() == []
