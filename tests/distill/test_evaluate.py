"""`draftwire distill evaluate`: what it finds on fakes whose acceptance is known, and what it says to bad input."""

import json
import re
from math import nan

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from pydantic_settings import CliApp
from support.pair import connected, draft_worker
from support.timing import in_some_try
from support.tiny_distillation import tiny_target, write_data
from support.verify_worker import finished, verify_worker

from distill.data import DistillationData, Example, Shard
from distill.evaluate import Row, assign, evaluate
from distill.manifest import Manifest
from distill.texts import TargetText, stored_texts, write_texts
from distill.writer import DataWriter
from draftwire.cli.main import Draftwire
from draftwire.engine.fake import FakeEngine
from draftwire.errors import Incompatible, InvalidArgument
from draftwire.fake_model import FakeModel
from draftwire.types import SamplingParams, SpeculationStats

TARGET, DRAFT = FakeModel(vocab_size=64, drift=3, sharpness=5.0), FakeModel(vocab_size=64, sharpness=4.0)


def engine(model: FakeModel, num_slots: int = 4) -> FakeEngine:
    return FakeEngine(model, num_slots=num_slots)


def row(found, *key) -> Row:
    chosen = found.row(*key)
    assert chosen is not None
    return chosen


def test_rows_by_hand():
    """The target skips a number at positions 5, 10, 15 and 20, where the draft is wrong."""
    target, draft = engine(FakeModel(drift=5)), engine(FakeModel())
    texts = write_texts(target, [("count", (7,))], temperature=0.0, max_tokens=20, seed=1)
    texts.append(TargetText((1, 2, 3, 4, 9, 1, 2, 3, 4, 9), 5, "copy", 0.0))
    found = evaluate(assign(texts, [0.0]), target, draft)
    assert (found.drafters, found.temperatures, found.kinds) == (["ngram", "model", "hybrid"], [0], ["count", "copy"])
    assert found.positions == 25
    count = row(found, "model", 0.0, "count")
    assert (count.texts, count.positions, count.acceptance) == (1, 20, 16 / 20)
    # K = 8: the prefill brings the token at 1, four steps those at 2..5, 6..10, 11..15, 16..20.
    assert (count.steps[7].steps, count.steps[7].tokens_per_step) == (5, 4)
    assert count.by_position == ()  # fewer than 50 positions make no point
    assert row(found, "model", 0.0).texts == 2
    assert found.row("model", 0.0, "poem") is None


def test_texts_are_judged_where_they_were_written():
    cold, warm, given = (
        TargetText((1, 2), 1, temperature=0.0),
        TargetText((1, 2), 1, temperature=1.0),
        TargetText((1, 2), 1),
    )
    assert assign([cold, warm], [0.0, 1.0]) == [(cold, [0.0]), (warm, [1.0])]
    assert assign([cold, warm], [0.0, 0.7]) == [(cold, [0.0, 0.7]), (warm, [0.7])]
    assert assign([cold, warm], [0.0]) == [(cold, [0.0])]
    assert assign([given], [0.0, 1.0]) == [(given, [0.0, 1.0])]


async def test_the_services_do_what_was_foretold():
    """Lock step at temperature 1 over gRPC: accepted / tested and tokens per step as evaluated on other answers."""
    prompts = [("count", (start,)) for start in range(0, 60, 5)]
    target = engine(TARGET, len(prompts))
    texts = write_texts(target, prompts, temperature=1.0, max_tokens=200, seed=5)
    foretold = row(evaluate(assign(texts, [1.0]), target, engine(DRAFT)), "model", 1.0).steps[3]

    async def served() -> SpeculationStats:
        stats = SpeculationStats()
        async with draft_worker(DRAFT) as drafter:
            flags = {"drafts": (f"127.0.0.1:{drafter.port}",), "schedule": "lockstep", "num_speculative_tokens": 4}
            async with verify_worker(TARGET, **flags) as verifier:
                await connected(verifier)
                for _, prompt in prompts:
                    answer = await verifier.generate(prompt, max_tokens=200, sampling=SamplingParams(temperature=1.0))
                    stats.add(finished(answer).speculation)
        return stats

    def as_foretold(stats: SpeculationStats) -> bool:
        """Within what chance allows: one sample in four thousand is not, nor one whose steps could not wait."""
        return (
            stats.tested_tokens > 1500
            and stats.acceptance == pytest.approx(foretold.acceptance, abs=0.05)
            and stats.tokens_per_step == pytest.approx(foretold.tokens_per_step, rel=0.08)
        )

    await in_some_try(served, as_foretold, tries=2)


def test_vocabularies_must_agree():
    with pytest.raises(Incompatible, match="vocab_fingerprint: draft 'fake' has fake-32, target 'fake' has fake-64"):
        evaluate([], engine(TARGET), engine(FakeModel(vocab_size=32)))


def test_nothing_to_judge():
    with pytest.raises(InvalidArgument, match="holds no text"):
        evaluate([], engine(TARGET), None)


def test_an_answer_must_fit_the_target():
    with pytest.raises(InvalidArgument, match="--max-tokens: prompt and answer take 14 tokens"):
        small = engine(FakeModel(max_model_len=13))
        write_texts(small, [("a", (1, 2, 3, 4))], temperature=0.0, max_tokens=10, seed=1)


def data_set(folder, examples, vocab_size=64):
    """A data set of the fake vocabulary."""
    manifest = Manifest(
        target="fake",
        vocab_fingerprint=f"fake-{vocab_size}",
        target_fingerprint="t",
        vocab_size=vocab_size,
        top_k=1,
        temperatures=(1.0,),
    )
    DataWriter(folder, manifest, 1 << 30).append(Shard.of(examples))
    return folder


def example(tokens, supervised, kind="a", temperature=0.0) -> Example:
    count = sum(supervised)
    return Example(
        torch.tensor(tokens),
        torch.tensor(supervised, dtype=torch.bool),
        torch.zeros(count, 1, dtype=torch.long),
        torch.zeros(count, 1),
        torch.zeros(count, 1),
        kind,
        temperature,
    )


def test_stored_texts_are_the_supervised_runs(tmp_path):
    """Every run of supervised tokens is judged behind all that stands before it; nothing foretells the first token."""
    examples = [
        example([5, 6, 7, 8, 9, 10], [0, 0, 1, 1, 0, 1]),
        example([1, 2, 3], [0, 1, 1], "given", nan),
        example([1, 2, 3], [0, 0, 0]),
    ]
    texts = list(stored_texts(DistillationData(data_set(tmp_path / "data", examples)), 5))
    assert texts[0] == TargetText((5, 6, 7, 8), 2, "a", 0.0)
    assert (texts[1].token_ids, texts[1].begin, texts[1].kind) == ((1, 2, 3), 1, "given")
    assert np.isnan(texts[1].temperature)
    assert len(texts) == 2  # position 5 is beyond the limit of five tokens


def test_a_few_texts_are_spread_over_the_data(tmp_path):
    """Three of nine: not the first ones, which may all be of one kind."""
    examples = [example([1, index], [0, 1], f"kind-{index // 3}") for index in range(9)]
    data = DistillationData(data_set(tmp_path / "data", examples))
    assert [text.token_ids[1] for text in stored_texts(data, 100, 3)] == [0, 3, 6]
    assert len(list(stored_texts(data, 100, 20))) == 9


def command(*flags: str) -> None:
    """The command, in this process."""
    CliApp.run(Draftwire, cli_args=["distill", "evaluate", *flags])


def test_command_on_the_benchmarks_prompts(tmp_path, capsys):
    """TargetText that counts up: greedy, the draft misses every fifth token; JSON, tables and card say the same."""
    command(
        *("--workload", "bench", "--target", "fake:drift=5", "--draft", "fake:", "--drafter", "model"),
        *("--temperature", "0", "--max-tokens", "40", "--json", "--card", str(tmp_path)),
        *("--target-ms", "40", "--target-token-ms", "2", "--draft-ms", "5", "--round-trip-ms", "3"),
    )
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    [everything] = [r for r in found["rows"] if (r["drafter"], r["kind"]) == ("model", "all")]
    assert everything["acceptance"] == pytest.approx(0.8)
    assert everything["texts"] == 10
    assert len(everything["tokens_per_step"]) == 8
    assert found["times"]["steps"]["draft_restart"] == pytest.approx(0.008)
    assert [forecast["k"] for forecast in found["forecasts"]] == list(range(1, 9))
    assert "| the model alone | 0.800 |" in (tmp_path / "README.md").read_text()
    assert (tmp_path / "acceptance.png").read_bytes().startswith(b"\x89PNG")


def test_command_on_a_data_set(tmp_path, capsys):
    """Stored text, n-grams alone, no draft model."""
    folder = data_set(tmp_path / "data", [example([1, 2, 3, 1, 2, 3], [0, 1, 1, 1, 1, 1])])
    command("--data", str(folder), "--target", "fake:vocab_size=64", "--drafter", "ngram", "--json")
    out, err = capsys.readouterr()
    found = json.loads(out.splitlines()[-1])
    assert {(r["drafter"], r["temperature"]) for r in found["rows"]} == {("ngram", 0), ("ngram", 0.7), ("ngram", 1)}
    assert "no text was written at temperature 0.7" in err
    assert found["draft"] is None


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--workload", "bench", "--draft", "fake:vocab_size=99"], "must share a vocabulary"),
        (["--data", "FOLDER"], "--data: made for a vocabulary other than that of fake"),
        (["--data", "/nowhere"], "/nowhere: is not a data set"),
        (["--workload", "bench", "--max-tokens", "4096"], "--max-tokens: prompt and answer take"),
        (["--workload", "bench", "--run", "/nowhere"], "--run: /nowhere holds no learning curve"),
    ],
)
def test_command_says_what_is_wrong(tmp_path, capsys, flags, says):
    folder = data_set(tmp_path / "data", [example([1, 2], [0, 1])])
    flags = [str(folder) if flag == "FOLDER" else flag for flag in flags]
    with pytest.raises(SystemExit) as ended:
        command("--target", "fake:", *([] if "--draft" in flags else ["--draft", "fake:"]), *flags)
    assert ended.value.code == 1
    assert says in " ".join(capsys.readouterr().err.split())


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A model with weights, which has a fingerprint."""
    return tiny_target(tmp_path_factory.mktemp("target"))


def judge(folder, target, **fields):
    """The command on a data set with these fields."""
    data = write_data(folder, target, **({"sequences": 2} | fields))
    limits = ("--drafter", "ngram", "--max-model-len", "64", "--temperature", "1")
    command("--data", str(data), "--target", target, *limits)


def test_data_of_the_target_is_judged(tmp_path, target, capsys):
    judge(tmp_path / "data", target)
    assert "n-gram lookup alone" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"target_fingerprint": "0" * 64},
            r"--data: written by .* \(target_fingerprint 0{12}\), not by --target",
        ),
        ({"vocab_fingerprint": "0" * 64}, "--data: made for a vocabulary other than that of"),
        ({"sequences": 0}, "the data set is empty"),
    ],
)
def test_other_data_is_refused(tmp_path, target, capsys, fields, says):
    """Another target wrote it, its ids mean other tokens, or there is none."""
    with pytest.raises(SystemExit, match="1"):
        judge(tmp_path / "data", target, **fields)
    assert re.search(says, " ".join(capsys.readouterr().err.split()))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([], "--data, --workload: name one of them"),
        (["--workload", "bench", "--draft-ms", "5"], "--draft-ms need each other"),
        (["--workload", "bench", "--temperature", "-1"], "--temperature: must be 0 to 100"),
    ],
)
def test_flags_are_checked(flags, says):
    with pytest.raises(ValidationError, match=says):
        command(*flags)
