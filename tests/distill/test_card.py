"""The model card: its text, its picture, and the learning curve in it."""

import json
import sys

import matplotlib.image
import numpy as np
import pytest

from distill.card import BEGIN, END, Curve, part, prepare_card, read_curve, with_part, write_card
from distill.evaluate import MAX_K, Evaluation, Outcome
from distill.forecast import Times
from distill.plot import by_place, draw
from distill.rounds import lock_step
from distill.scores import Scores
from distill.tables import Report, summary, tables
from draftwire.errors import InvalidArgument


def outcome(kind: str, chance: float) -> Outcome:
    values = np.full(61, chance)
    scores = Scores(values, values, np.ones(61, dtype=bool))
    return Outcome(kind, values, tuple(lock_step(scores, k) for k in range(1, MAX_K + 1)))


def report(times: Times | None = None) -> Report:
    """One drafter; greedy texts of two kinds, and one kind at temperature 1."""
    outcomes = {
        ("model", 0.0): (outcome("code", 1.0), outcome("chat", 0.0)),
        ("model", 1.0): (outcome("chat", 0.25),),
    }
    return Report(Evaluation("big", "small", 183, 2.0, outcomes), "model", 5, times)


def test_tables_by_hand():
    """Perfect on code: 60 tokens behind the first in ten steps of six; nothing accepted in chat: 61 steps of one."""
    acceptance, steps, greedy, warm = tables(report())
    assert acceptance.rows == [("the model alone", "0.500", "0.250")]
    assert acceptance.header == ("drafter", "greedy", "temperature 1")
    assert steps.rows[0][0] == "greedy"
    assert steps.rows[0][5] == f"{122 / (11 + 61):.2f}"
    assert greedy.rows[1:] == [("code", "1", "1.000", "1.000", "5.545"), ("chat", "1", "0.000", "0.000", "1.000")]
    assert [row[0] for row in warm.rows] == ["all", "chat"]  # no code was written at temperature 1


def test_speeds_where_times_are_known():
    """K = 5, 40 ms and 2 ms a token, 5 ms a draft step: code 6 tokens in 77 ms, chat 1; the median lies between."""
    made = tables(report(Times.given(0.040, 0.002, 0.005)))
    assert made[-1].rows[0][:3] == ("greedy", "23.8", f"{3.5 / 0.077:.1f} ({3.5 * 42 / 77:.2f}x)")
    assert made[2].header[-1] == "streaming speed-up"


def test_summary_is_json():
    found = json.loads(json.dumps(summary(report(Times.given(0.040, 0.002, 0.005)))))
    assert found["positions_per_second"] == 91.5
    assert [(row["temperature"], row["kind"]) for row in found["rows"]] == [
        *((0, "all"), (0, "code"), (0, "chat")),
        *((1, "all"), (1, "chat")),
    ]
    assert found["rows"][1]["acceptance_by_place"] == [1] * 8
    assert found["rows"][2]["accepted_per_tested"] == [0] * 8
    assert len(found["forecasts"]) == 16


def test_a_card_from_nothing(tmp_path):
    prepare_card(tmp_path / "made")
    write_card(tmp_path / "made", report(), None)
    text = (tmp_path / "made" / "README.md").read_text()
    assert text.startswith("# small\n")
    assert "on 3 texts of big (183 positions)" in text
    assert "| the model alone | 0.500 | 0.250 |" in text
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == ["README.md", "acceptance.png"]


def test_a_card_keeps_what_people_wrote(tmp_path):
    """The part is appended once, replaced from then on, and nothing around it changes."""
    (tmp_path / "README.md").write_text("# Ours\n\nBy hand.\n")
    write_card(tmp_path, report(), None)
    card = (tmp_path / "README.md").read_text() + "\n## After\n"
    (tmp_path / "README.md").write_text(card.replace("0.500", "0.999"))
    write_card(tmp_path, report(), None)
    assert (tmp_path / "README.md").read_text() == card
    assert card.startswith("# Ours\n\nBy hand.\n\n" + BEGIN)
    assert card.endswith(END + "\n\n## After\n")


def test_half_a_part_is_not_cut():
    """A beginning without its end is text like any other."""
    assert with_part(f"a\n{BEGIN}\nb\n", "new") == f"a\n{BEGIN}\nb\n\nnew\n"


def test_a_folder_that_is_none(tmp_path):
    (tmp_path / "file").touch()
    for use in (prepare_card, lambda folder: write_card(folder, report(), None)):
        with pytest.raises(InvalidArgument, match="--card: .*file cannot be written"):
            use(tmp_path / "file")


def test_a_machine_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distill.plot", None)
    with pytest.raises(InvalidArgument, match="--card: its picture needs the extra `distill`"):
        prepare_card(tmp_path)


def test_the_picture_grows_with_the_curve(tmp_path):
    """Three panels with a learning curve, two without; by place only what enough guesses reach."""
    wide = Curve("supervised tokens", {"greedy": [(0, 0.1), (900, 0.4)], "acceptance_0.7": [(0, 0.1), (900, 0.3)]})
    for name, curve in (("two", None), ("three", wide)):
        (tmp_path / f"{name}.png").write_bytes(draw(report(), curve))
    two, three = (matplotlib.image.imread(tmp_path / f"{name}.png").shape for name in ("two", "three"))
    assert two[0] == three[0] == 380
    assert three[1] > 1.4 * two[1]
    row = report().evaluation.row("model", 1.0)
    assert row is not None
    places, values = by_place(row)
    assert places == [1]  # 60 / 1.33 steps test a first guess, a quarter of these a second
    assert values == pytest.approx([0.25])


def run_folder(folder, history):
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))


HISTORY = [
    {"step": 10, "loss": 6.0},
    {"step": 100, "eval_greedy": 0.2, "eval_acceptance_0.7": 0.1, "eval_tokens_seen": 120_000},
    {"step": 200, "eval_greedy": 0.3, "eval_acceptance_0.7": 0.2, "eval_tokens_seen": 240_000},
]


def test_the_learning_curve_of_a_run(tmp_path):
    run_folder(tmp_path / "run", HISTORY)
    curve = read_curve(tmp_path / "run")
    assert curve.axis == "supervised tokens"
    assert curve.lines["greedy"] == [(120_000, 0.2), (240_000, 0.3)]
    assert curve.lines["acceptance_0.7"] == [(120_000, 0.1), (240_000, 0.2)]


def test_the_learning_curve_of_a_run_that_goes_on(tmp_path):
    """From its newest checkpoint, over steps where tokens are unknown."""
    run_folder(tmp_path / "run" / "checkpoint-90", HISTORY[:1])
    run_folder(tmp_path / "run" / "checkpoint-100", [{"step": 100, "eval_greedy": 0.2}])
    curve = read_curve(tmp_path / "run")
    assert (curve.axis, curve.lines) == ("steps", {"greedy": [(100, 0.2)]})


def test_no_learning_curve(tmp_path):
    with pytest.raises(InvalidArgument, match="--run: .* holds no learning curve"):
        read_curve(tmp_path / "nowhere")
    run_folder(tmp_path / "run", HISTORY[:1])
    with pytest.raises(InvalidArgument, match="train with --eval-data"):
        read_curve(tmp_path / "run")


def test_the_part_is_marked():
    text = part(report())
    assert text.startswith(BEGIN + "\n")
    assert text.endswith(END)
    assert "![Acceptance](acceptance.png)" in text
