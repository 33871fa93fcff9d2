"""The model drafter over an engine whose tokens can be computed by hand: after t comes t + 1."""

from draft_harness import RecordingEngine, advance, begin, drawn, opening, run_dry
from hypothesis import given
from hypothesis import strategies as st

from draft_service.drafters.model import ModelDrafter, share_budget
from draftwire.fake_model import FakeModel
from draftwire.session import Commit
from draftwire.types import SamplingParams, VerificationMode

A, B = (1, 1), (1, 2)


def test_one_forward_drafts_for_every_session() -> None:
    """Prompts [7] and [20 21] with room for two become 8 9 and 22 23 in two forwards of both; then it rests."""
    engine = RecordingEngine()
    drafter = ModelDrafter(engine)
    sessions = [(A, begin(drafter, A, opening([7], 2))), (B, begin(drafter, B, opening([20, 21], 2)))]
    assert drawn(advance(drafter, sessions)) == {A: [8], B: [22]}
    assert drawn(advance(drafter, sessions)) == {A: [9], B: [23]}
    assert advance(drafter, sessions) is None
    assert engine.chunk_sizes == [[1, 2], [1, 1]]


def test_a_long_prompt_does_not_stall_others() -> None:
    """With 8 tokens a forward, a prompt of 20 takes three steps, and the short session drafts in each of them."""
    engine = RecordingEngine(max_batched_tokens=8)
    drafter = ModelDrafter(engine)
    sessions = [(A, begin(drafter, A, opening(range(20), 4))), (B, begin(drafter, B, opening([7], 4)))]
    steps = [drawn(advance(drafter, sessions)) for _ in range(3)]
    assert steps == [{B: [8]}, {B: [9]}, {A: [20], B: [10]}]
    assert engine.chunk_sizes == [[7, 1], [7, 1], [6, 1]]


def test_a_rejection_costs_one_token() -> None:
    """Drafted 8 9 10 11; the target says 8 30: the next chunk is [30] at the truncation point, and 31 follows."""
    engine = RecordingEngine()
    drafter = ModelDrafter(engine)
    session = begin(drafter, A, opening([7], 4))
    run_dry(drafter, [(A, session)])
    drafter.truncate(A, session.receive(Commit(1, 1, position=1, token_ids=(8, 30), window=4)))
    assert drawn(advance(drafter, [(A, session)])) == {A: [31]}
    [chunk] = engine.forwards[-1]
    assert (chunk.start, list(chunk.token_ids)) == (2, [30])


def test_acceptance_costs_only_the_bonus() -> None:
    """Drafted 8 9; 8 9 and a bonus 10 are committed: the next chunk is the two tokens not yet run, [9 10]."""
    engine = RecordingEngine()
    drafter = ModelDrafter(engine)
    session = begin(drafter, A, opening([7], 2))
    run_dry(drafter, [(A, session)])
    drafter.truncate(A, session.receive(Commit(1, 1, position=1, token_ids=(8, 9, 10), window=2)))
    assert drawn(advance(drafter, [(A, session)])) == {A: [11]}
    [chunk] = engine.forwards[-1]
    assert (chunk.start, list(chunk.token_ids)) == (2, [9, 10])


def test_a_paused_session_is_prefilled_and_announced() -> None:
    """With window 0 the prompt is run but for its last token, nothing is drawn, and the session is ready."""
    engine = RecordingEngine()
    drafter = ModelDrafter(engine)
    session = begin(drafter, A, opening([5, 6, 7], 0))
    assert drawn(advance(drafter, [(A, session)])) == {A: []}
    assert advance(drafter, [(A, session)]) is None
    drafter.truncate(A, session.receive(Commit(1, 1, position=3, token_ids=(), window=1)))
    assert drawn(advance(drafter, [(A, session)])) == {A: [8]}
    assert engine.chunk_sizes == [[2], [1]]


def test_a_prompt_of_one_token_without_room_needs_no_forward() -> None:
    """Nothing of it can be run before there is room, so it is ready at once."""
    engine = RecordingEngine()
    drafter = ModelDrafter(engine)
    session = begin(drafter, A, opening([7], 0))
    assert drawn(advance(drafter, [(A, session)])) == {A: []}
    assert engine.forwards == []


def test_drafting_stops_at_the_models_length() -> None:
    """A model of 5 positions drafts 8 9 after 5 6 7 although the window is 4."""
    drafter = ModelDrafter(RecordingEngine(FakeModel(max_model_len=5)))
    session = begin(drafter, A, opening([5, 6, 7], 4))
    run_dry(drafter, [(A, session)])
    assert list(session.tokens) == [5, 6, 7, 8, 9]


def test_slots_are_limited_and_given_back() -> None:
    """An engine of one slot takes a second session only after the first is closed."""
    drafter = ModelDrafter(RecordingEngine(num_slots=1))
    session = begin(drafter, A, opening([7], 1))
    assert not drafter.open(B, session)
    drafter.close(A)
    assert drafter.open(B, session)


def test_a_sampled_token_carries_what_it_was_drawn_from() -> None:
    """At temperature 1 a flat model's token comes with a support that holds it; in coupled mode without."""
    drafter = ModelDrafter(RecordingEngine(FakeModel(vocab_size=16, sharpness=1.0)))
    rejection = begin(drafter, A, opening([7], 1, sampling=SamplingParams()))
    coupled = begin(drafter, B, opening([7], 1, sampling=SamplingParams(), mode=VerificationMode.COUPLED))
    first, second = advance(drafter, [(A, rejection), (B, coupled)]) or []
    assert first.tokens[0].q is not None
    assert first.tokens[0].token in first.tokens[0].q.ids
    assert second.tokens[0].q is None


def test_drawing_does_not_depend_on_company() -> None:
    """A session draws the same tokens alone and beside another: randomness is keyed, not consumed."""
    alone, company = (ModelDrafter(RecordingEngine(FakeModel(vocab_size=16, sharpness=1.0))) for _ in range(2))
    sampled = opening([7], 8, sampling=SamplingParams(), seed=5)
    one, two, other = begin(alone, A, sampled), begin(company, A, sampled), begin(company, B, opening([3], 8))
    run_dry(alone, [(A, one)])
    run_dry(company, [(B, other), (A, two)])
    assert list(one.tokens) == list(two.tokens)


@given(st.lists(st.integers(0, 50), max_size=12), st.integers(0, 60))
def test_budget_is_spent_fairly(lags: list[int], budget: int) -> None:
    """Nobody gets more than its lag, nothing is left while somebody lags, and who gets least lags least."""
    shares = share_budget(lags, budget)
    assert all(0 <= share <= lag for share, lag in zip(shares, lags, strict=True))
    assert sum(shares) == min(budget, sum(lags))
    for share, lag in zip(shares, lags, strict=True):
        assert share == lag or share >= max(shares) - 1
