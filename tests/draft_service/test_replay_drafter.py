"""The bench-only replay: a recorded continuation at a set acceptance, over the fake engine."""

from pathlib import Path

import pytest
from draft_harness import RecordingEngine, advance, begin, opening, run_dry

from draft_service.drafters.model import ModelDrafter
from draft_service.drafters.replay import Recording, Replay, read_recordings
from draft_service.session import Session
from draftwire.errors import InvalidArgument
from draftwire.session import Commit

KEY = (1, 1)
OUTPUT = tuple(range(100, 160))
RECORDINGS = [Recording(prompt=(7,), output=OUTPUT)]


def replayed(acceptance: float, *, prompt: tuple[int, ...] = (7,), seed: int = 0, window: int = 60) -> Session:
    """A session that was drafted until its window was full."""
    drafter = ModelDrafter(RecordingEngine(), draw=Replay(RECORDINGS, acceptance), source="replay")
    session = begin(drafter, KEY, opening(prompt, window, seed=seed))
    run_dry(drafter, [(KEY, session)])
    return session


def test_acceptance_one_repeats_the_recording() -> None:
    """With acceptance 1 the output is the recording, token for token."""
    assert tuple(replayed(1.0).tokens) == (7, *OUTPUT)


def test_acceptance_zero_never_does() -> None:
    """With acceptance 0 no position has the recorded token, even where the model itself would guess it."""
    assert not [i for i, token in enumerate(replayed(0.0).tokens[1:]) if token == OUTPUT[i]]


def test_acceptance_is_a_rate() -> None:
    """Over 1200 positions at 0.8 the recorded token stands at 0.8 of them (six standard deviations = 0.07)."""
    hits = sum(token == OUTPUT[i] for seed in range(20) for i, token in enumerate(replayed(0.8, seed=seed).tokens[1:]))
    assert abs(hits / 1200 - 0.8) < 0.07


def test_a_session_that_moved_here_is_found() -> None:
    """Opened with a part of the output it goes on in the recording; elsewhere the model guesses."""
    assert tuple(replayed(1.0, prompt=(7, *OUTPUT[:59]), window=2).tokens[-2:]) == (OUTPUT[59], OUTPUT[59] + 1)
    assert tuple(replayed(1.0, prompt=(8,), window=2).tokens) == (8, 9, 10)


def test_the_draft_model_runs_for_its_cost() -> None:
    """Every token costs a forward, as the real draft's would."""
    engine = RecordingEngine()
    drafter = ModelDrafter(engine, draw=Replay(RECORDINGS, 1.0), source="replay")
    session = begin(drafter, KEY, opening([7], 4))
    run_dry(drafter, [(KEY, session)])
    assert engine.chunk_sizes == [[1]] * 4
    drafter.truncate(KEY, session.receive(Commit(1, 1, position=1, token_ids=(100, 5), window=4)))
    [drafted] = advance(drafter, [(KEY, session)]) or []
    assert (drafted.source, drafted.tokens[0].token) == ("replay", OUTPUT[2])


def test_recordings_are_read_and_checked(tmp_path: Path) -> None:
    """A line is a recording; what is not names the file and the line."""
    good = tmp_path / "good.jsonl"
    good.write_text('{"prompt_token_ids": [7], "output_token_ids": [100, 101]}\n')
    assert read_recordings(str(good)) == [Recording((7,), (100, 101))]
    for line in ("{", "[]", '{"prompt_token_ids": [7]}', '{"prompt_token_ids": ["x"], "output_token_ids": [1]}'):
        bad = tmp_path / "bad.jsonl"
        bad.write_text(good.read_text() + line)
        with pytest.raises(InvalidArgument, match="line 2"):
            read_recordings(str(bad))
    with pytest.raises(InvalidArgument, match="--replay-file"):
        read_recordings(str(tmp_path / "missing"))
