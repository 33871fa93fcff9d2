"""The hybrid: the n-gram where the text repeats itself, the model (t + 1 after t) elsewhere."""

from draft_harness import RecordingEngine, advance, begin, drawn, opening, run_dry
from hypothesis import given, settings
from hypothesis import strategies as st

from draft_service.drafters.hybrid import HybridDrafter
from draft_service.drafters.model import ModelDrafter
from draftwire.fake_model import FakeModel
from draftwire.session import Commit
from draftwire.types import SamplingParams, VerificationMode

A, B = (1, 1), (1, 2)
REPEATING = [1, 2, 3, 50, 60, 1, 2, 3]


def test_a_repeated_ngram_is_proposed_without_a_forward() -> None:
    """1 2 3 was followed by 50 60 1: the three come at once as point masses; meanwhile the model reads the prompt."""
    engine = RecordingEngine()
    drafter = HybridDrafter(ModelDrafter(engine))
    session = begin(drafter, A, opening(REPEATING, 3, sampling=SamplingParams()))
    [drafted] = advance(drafter, [(A, session)]) or []
    assert (drafted.source, [(token.token, token.q) for token in drafted.tokens]) == (
        "ngram",
        [(50, None), (60, None), (1, None)],
    )
    assert engine.forwards == []
    run_dry(drafter, [(A, session)])
    assert engine.chunk_sizes == [[8]]


def test_the_model_catches_up_after_an_ngram() -> None:
    """The n-gram's 50 60 are accepted and 9 is new: the model runs what it lacks in one chunk and proposes 10."""
    engine = RecordingEngine()
    drafter = HybridDrafter(ModelDrafter(engine))
    session = begin(drafter, A, opening(REPEATING, 3))
    run_dry(drafter, [(A, session)])
    drafter.truncate(A, session.receive(Commit(1, 1, position=8, token_ids=(50, 60, 9), window=3)))
    [drafted] = advance(drafter, [(A, session)]) or []
    assert (drafted.source, drafted.tokens[0].token) == ("model", 10)
    [chunk] = engine.forwards[-1]
    assert (chunk.start, list(chunk.token_ids)) == (8, [50, 60, 9])


def test_others_are_served_by_the_model() -> None:
    """A session without repetition gets the model's token right after the other's n-gram."""
    drafter = HybridDrafter(ModelDrafter(RecordingEngine()))
    sessions = [(A, begin(drafter, A, opening(REPEATING, 2))), (B, begin(drafter, B, opening([7], 2)))]
    assert drawn(advance(drafter, sessions)) == {A: [50, 60]}
    assert drawn(advance(drafter, sessions)) == {B: [8], A: []}


@settings(max_examples=50, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=20),
    mode=st.sampled_from(VerificationMode),
    seed=st.integers(0, 2**64 - 1),
)
def test_the_source_is_chosen_by_the_path_before(tokens: list[int], mode: VerificationMode, seed: int) -> None:
    """A position is served by the n-gram iff the three tokens before it occurred before, whatever is drawn."""
    drafter = HybridDrafter(ModelDrafter(RecordingEngine(FakeModel(vocab_size=4, sharpness=0.5))))
    session = begin(drafter, A, opening(tokens, 12, sampling=SamplingParams(), mode=mode, seed=seed))
    while (drafts := drafter.step([(A, session)])) is not None:
        for drafted in drafts:
            for token in drafted.tokens:
                text = list(session.tokens)
                grams = [text[i - 3 : i] for i in range(3, len(text))]
                assert (drafted.source == "ngram") == (len(text) > 3 and text[-3:] in grams)
                session.draft([token])
    assert session.room == 0
