"""Training: what it learns, that a run which is started again ends as one that was not stopped, and bad input."""

import json
import shutil

import pytest
import torch
from pydantic import ValidationError
from pydantic_settings import CliApp
from safetensors.torch import load_file, save_file
from support.tiny_distillation import write_data
from support.tiny_training import curve, options, same, state

from distill.agreement import agreement
from distill.average import AverageWeights
from distill.draft_vocab import frequent_tokens
from distill.run_folder import last_checkpoint
from distill.train import train
from draftwire.cli.main import Draftwire
from draftwire.errors import Incompatible, InvalidArgument


class TestResume:
    """A run that is started again in its folder."""

    @pytest.fixture
    def killed(self, finished, tmp_path):
        """What a run leaves that was killed after step 3, in the middle of writing another checkpoint."""
        output = tmp_path / "run"
        shutil.copytree(finished, output)
        (output / "trainer_state.json").unlink()
        (output / "checkpoint-6" / "trainer_state.json").write_text('{"log_hist')
        return output

    def test_ends_with_the_same_bits(self, folder, finished, killed):
        """Weights, their average and the optimizer; they did change after the checkpoint."""
        assert last_checkpoint(killed).name == "checkpoint-3"
        train(options(folder, killed))
        assert same(state(killed, 6), state(finished, 6))
        assert not same(state(killed, 6), state(killed, 3))

    def test_nothing_to_go_on_from(self, folder, finished, tmp_path):
        """Killed while it wrote its first checkpoint, in whichever file: it begins anew."""
        output = tmp_path / "run"
        shutil.copytree(finished, output, ignore=shutil.ignore_patterns("checkpoint-6", "trainer_state.json"))
        (output / "checkpoint-3" / "optimizer.pt").write_text("half of somethi")
        assert last_checkpoint(output) is None
        train(options(folder, output))
        assert same(state(output, 3), state(finished, 3))
        assert same(state(output, 6), state(finished, 6))

    def test_the_learning_curve_goes_on(self, folder, finished, killed):
        train(options(folder, killed))
        assert curve(killed) == curve(finished)
        assert [point["step"] for point in curve(killed)] == [3, 6]

    def test_a_finished_run_stays_as_it_is(self, folder, finished):
        before = state(finished, 6)
        train(options(folder, finished))
        assert same(state(finished, 6), before)

    @pytest.mark.parametrize(
        ("change", "flag"),
        [
            ({"learning_rate": 2e-2}, "--learning-rate"),
            ({"layers": [0]}, "--layers"),
            ({"max_steps": 7}, "--max-steps"),
        ],
    )
    def test_other_settings(self, folder, finished, change, flag):
        """They are refused by the option's name."""
        with pytest.raises(Incompatible, match=f"{flag}: .* was begun with .*another --output"):
            train(options(folder, finished, **change))

    def test_other_data(self, folder, finished, tmp_path):
        other = write_data(tmp_path / "other", str(folder / "target"), seed=2, sequences=25)
        with pytest.raises(Incompatible, match="--data: "):
            train(options(folder, finished, data=[other]))

    def test_another_student(self, folder, tmp_path):
        """A model of the same name with other weights."""
        shutil.copytree(folder / "target", tmp_path / "init")
        wanted = options(folder, tmp_path / "run", init=str(tmp_path / "init"), draft_vocab=None)
        train(wanted)
        weights = load_file(tmp_path / "init" / "model.safetensors")
        save_file(
            {name: 2 * w for name, w in weights.items()}, tmp_path / "init" / "model.safetensors", {"format": "pt"}
        )
        with pytest.raises(Incompatible, match="--student-sha256"):
            train(wanted)

    def test_settings_that_do_not_matter(self, folder, finished):
        """How often it looks and saves may change."""
        train(options(folder, finished, eval_steps=2, save_steps=2, log_steps=2, eval_sequences=2))


def test_it_learns(finished):
    """The loss falls, and so does the disagreement with the teacher."""
    history = json.loads((finished / "trainer_state.json").read_text())["log_history"]
    losses = [entry["loss"] for entry in history if "loss" in entry]
    assert len(losses) == 6
    assert losses[-1] < 0.8 * losses[0]
    points = curve(finished)
    assert points[1]["eval_acceptance_1"] > points[0]["eval_acceptance_1"] > 0
    assert 200 < points[0]["eval_tokens_seen"] <= 600  # three batches of at most 200


@pytest.mark.parametrize("seed", [0, 1])
def test_the_seed(folder, finished, tmp_path, seed):
    """The same seed gives the same bits, another one other batches."""
    train(options(folder, tmp_path / "run", seed=seed))
    assert same(state(tmp_path / "run", 6), state(finished, 6)) is (seed == 0)


@pytest.mark.parametrize("student", ["config", "init"])
def test_plain_students(folder, tmp_path, student):
    """From scratch, with tied weights, and from a model: both train, and go on."""
    if student == "config":
        file = tmp_path / "config.json"
        config = json.loads((folder / "target" / "config.json").read_text())
        file.write_text(json.dumps(config | {"num_hidden_layers": 1, "tie_word_embeddings": True}))
        built = {"config": file, "draft_vocab": None}
    else:
        built = {"init": str(folder / "target"), "draft_vocab": None}
    wanted = options(folder, tmp_path / "run", **built)
    train(wanted)
    before = state(tmp_path / "run", 6)
    shutil.rmtree(tmp_path / "run" / "checkpoint-6")
    train(wanted)
    assert same(state(tmp_path / "run", 6), before)


def test_bfloat16(folder, tmp_path):
    """Mixed precision: weights stay float32, and the loss falls."""
    train(options(folder, tmp_path / "run", precision="bfloat16"))
    assert {t.dtype for t in load_file(tmp_path / "run/checkpoint-6/model.safetensors").values()} == {torch.float32}
    points = curve(tmp_path / "run")
    assert points[1]["eval_acceptance_1"] > points[0]["eval_acceptance_1"]


def test_held_out_data_of_other_temperatures(folder, finished, tmp_path):
    """What it stored beside the likeliest tokens is not read, so the curve is the same."""
    data = write_data(tmp_path / "data", str(folder / "target"), temperatures=(2.0, 1.0))
    train(options(folder, tmp_path / "run", data=[data]))
    assert curve(tmp_path / "run") == curve(finished)


class TestBadInput:
    """Each error names the option."""

    def test_another_vocabulary(self, folder, tmp_path):
        data = write_data(tmp_path / "data", str(folder / "target"), vocab_fingerprint="0" * 64)
        with pytest.raises(Incompatible, match="--data: .* has another vocabulary"):
            train(options(folder, tmp_path / "run", data=[data]))

    def test_held_out_data_of_another_target(self, folder, tmp_path):
        data = write_data(tmp_path / "data", str(folder / "target"), target_fingerprint="other")
        with pytest.raises(Incompatible, match="--eval-data: target_fingerprint is other"):
            train(options(folder, tmp_path / "run", eval_data=[data]))

    def test_another_target(self, folder, tmp_path):
        data = write_data(tmp_path / "data", str(folder / "target"), target_fingerprint="0" * 64)
        with pytest.raises(Incompatible, match="--target: .* has other weights .*than the target that wrote"):
            train(options(folder, tmp_path / "run", data=[data]))

    def test_held_out_data_that_is_not(self, folder, tmp_path):
        with pytest.raises(InvalidArgument, match="--eval-data: .* is --data, too"):
            train(options(folder, tmp_path / "run", eval_data=[folder / "train" / ".." / "train"]))

    def test_no_data(self, folder, tmp_path):
        data = write_data(tmp_path / "data", str(folder / "target"), sequences=0)
        with pytest.raises(InvalidArgument, match="the data set is empty"):
            train(options(folder, tmp_path / "run", data=[data]))

    def test_a_temperature_that_was_not_collected(self, folder, tmp_path):
        with pytest.raises(InvalidArgument, match="--loss-temperature: must be one the data was collected for: 1$"):
            train(options(folder, tmp_path / "run", loss_temperature=1.5))

    def test_nothing_is_left_behind(self, folder, tmp_path):
        """A refused run makes no folder."""
        with pytest.raises(InvalidArgument):
            train(options(folder, tmp_path / "run", loss_temperature=1.5))
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"num_layers": 1, "layers": [0]}, "--num-layers and --layers: name one way"),
            ({"init": "x", "draft_vocab": 5}, "--draft-vocab: only"),
        ],
    )
    def test_students(self, folder, tmp_path, change, message):
        with pytest.raises(ValidationError, match=message):
            options(folder, tmp_path / "run", **change)

    def test_the_command(self, folder, tmp_path, capsys):
        """It says what is wrong on one line and exits with 1."""
        command = ["distill", "train", "--data", str(folder), "--output", str(tmp_path / "run")]
        with pytest.raises(SystemExit) as exit_info:
            CliApp.run(Draftwire, cli_args=command)
        assert exit_info.value.code == 1
        assert capsys.readouterr().err.startswith(f"draftwire distill train: {folder}: is not a data set")


def test_frequent_tokens(folder):
    """Expected counts of three rows with two stored ids: 7: 0.5 + 0.9, 3: 0.5, 4: 0.1 + 0.3, 9: 0.7."""
    rows = [([7, 3], [0.5, 0.5]), ([7, 4], [0.9, 0.1]), ([9, 4], [0.7, 0.3])]
    data = FakeData([Row(torch.tensor([ids]), torch.tensor([p]).log()) for ids, p in rows])
    assert frequent_tokens(data, 3).tolist() == [7, 9, 3]
    assert frequent_tokens(data, 99).tolist() == [7, 9, 3, 4, 0, 1, 2, 5, 6, 8]


class Row:
    def __init__(self, top_ids, top_logprobs):
        self.top_ids, self.top_logprobs = top_ids, top_logprobs


class FakeData(list):
    """What frequent_tokens needs of a data set."""

    class manifest:
        vocab_size = 10


def test_agreement_by_hand():
    """q = (1/2, 1/4, 1/4) over ids 5, 6, 7; p stores id 6 with 0.6 and id 9, which the student lacks, with 0.3.

    Temperature 1: min(0.6, 1/4). At 0.7, p = 0.6^(1/0.7) / (0.6^(1/0.7) + 0.3^(1/0.7)) = 0.729 and q(6) =
    0.25^(1/0.7) / (0.5^(1/0.7) + 2 * 0.25^(1/0.7)) = 0.2130. Second position: the favourites agree.
    """
    rows = torch.full((10,), -1)
    rows[torch.tensor([5, 6, 7])] = torch.arange(3)
    logits = torch.tensor([0.5, 0.25, 0.25]).log().expand(2, 3)
    top_ids = torch.tensor([[6, 9], [5, 6]])
    logprobs = torch.tensor([[0.6, 0.3], [0.5, 0.25]]).log()
    greedy, at_1, at_07 = agreement(logits, top_ids, logprobs, rows).tolist()
    assert greedy == 1
    assert at_1 == pytest.approx(0.25 + 0.75)
    a, b = 0.5 ** (1 / 0.7), 0.25 ** (1 / 0.7)
    assert at_07 == pytest.approx(b / (a + 2 * b) + a / (a + 2 * b) + b / (a + 2 * b))
    assert agreement(logits, torch.tensor([[0, 1], [1, 2]]), logprobs, None).tolist()[0] == 1


class Weights(torch.nn.Module):
    """A student with one number to learn."""

    draft_vocab = None

    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.tensor([1.0]))

    def learnt(self):
        return {"x": self.x}


class Step:
    def __init__(self, global_step):
        self.global_step = global_step


def test_average_by_hand():
    """Decay 2/11 after the first step, then 3/12, then the limit of 0.26."""
    student = Weights()
    average = AverageWeights(student, 0.26)
    average.on_train_begin(None, Step(0), None)
    expected = 1.0
    for step, (value, decay) in enumerate([(2.0, 2 / 11), (4.0, 3 / 12), (8.0, 0.26)], start=1):
        student.x.data.fill_(value)
        average.on_step_end(None, Step(step), None)
        expected = decay * expected + (1 - decay) * value
    with average.swapped_in():
        assert student.x.item() == pytest.approx(expected)
    assert student.x.item() == 8.0
