"""`draftwire distill collect` from end to end on a tiny target: the same data however often it is interrupted."""

import json
import signal
import subprocess
import sys
import time

import pytest
import torch
from pydantic import ValidationError
from pydantic_settings import CliApp
from rich.console import Console
from support.killing import kill_at

from distill.collect import collect
from distill.collect_options import Collect
from distill.data import DistillationData, Shard
from distill.manifest import MANIFEST, Manifest
from distill.templates import KINDS
from distill.tiny_target import write_tiny_target
from draftwire.cli.main import Draftwire
from draftwire.errors import Incompatible, InvalidArgument, ResourceExhausted

#: Shards of six short replies: 72 tokens at most.
SMALL = {
    "dtype": "float32",
    "shard_sequences": 6,
    "batch_size": 4,
    "max_new_tokens": 12,
    "max_prompt_tokens": 200,
    "top_k": 5,
    "self_prompts": 0.0,
}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return write_tiny_target(tmp_path_factory.mktemp("target"))


@pytest.fixture
def run(target, tmp_path):
    """Collect into a folder of this name; returns the folder and what was printed."""

    def go(name, **changes):
        options = Collect(**({"target": target, "output": tmp_path / name} | SMALL | changes))
        with open(tmp_path / "log", "w+") as log:
            collect(options, Console(file=log, width=200))
            log.seek(0)
            return options.output, log.read()

    return go


def content(folder):
    """Every file's name and what it holds, to be compared. The order of a shard's header is its library's affair."""

    def of(file):
        if file.name == MANIFEST:
            return file.read_text()
        shard = Shard.open(file)
        return {name: tensor.numpy().tobytes() for name, tensor in shard.tensors.items()}, shard.kinds, shard.samplings

    return {file.name: of(file) for file in folder.iterdir()}


def test_until_there_are_tokens_enough(run, target):
    """Shards are added until the goal is reached; each has its sequences, kinds and temperatures; progress is told."""
    folder, log = run("a", tokens=150)
    manifest = Manifest.read(folder)
    assert [shard.sequences for shard in manifest.shards] == [6] * len(manifest.shards)
    assert manifest.supervised >= 150 > sum(shard.supervised for shard in manifest.shards[:-1])
    assert (manifest.target, manifest.vocab_size, manifest.top_k) == (target, 258, 5)
    assert "shard-00001.safetensors: 6 sequences" in log
    assert "tokens/s" in log
    data = DistillationData(folder)
    assert {example.kind for example in data} <= set(KINDS)
    assert {example.temperature for example in data} <= {0.0, 0.7, 1.0}
    assert all(example.top_ids.shape == (int(example.supervised.sum()), 5) for example in data)


def test_going_on_is_the_same_as_not_stopping(run):
    """One shard, then more, with halves of files lying about: the same as in one go. Reached goals do nothing."""
    whole, _ = run("whole", tokens=150)
    folder, _ = run("parts", tokens=1)
    assert len(Manifest.read(folder).shards) == 1
    (folder / "shard-00001.safetensors.unfinished").write_text("half of somethi")
    run("parts", tokens=150)
    assert content(folder) == content(whole)
    run("parts", tokens=100)
    assert content(folder) == content(whole)


def command(target, folder):
    """`draftwire distill collect` for more tokens than it will get, as the arguments that follow `python`."""
    options = {**SMALL, "target": target, "output": folder, "tokens": 10_000_000}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    return ["-m", "draftwire.cli.main", "distill", "collect", *flags]


@pytest.mark.e2e
def test_a_process_killed_between_two_shards_goes_on(run, target, tmp_path):
    """SIGKILL when a shard is whole but not in the manifest yet; the next run ends like one that was left alone."""
    folder, _ = run("killed", tokens=1)
    kill_at(command(target, folder), folder / f"{MANIFEST}.unfinished", sign=folder / "shard-00001.safetensors")
    assert len(Manifest.read(folder).shards) == 1
    run("killed", tokens=150)
    whole, _ = run("whole", tokens=150)
    assert content(folder) == content(whole)


@pytest.mark.e2e
def test_a_killed_process_goes_on(run, target, tmp_path):
    """SIGKILL in the middle of a shard; the next run ends like one that was left alone."""
    folder = tmp_path / "killed"
    with subprocess.Popen([sys.executable, *command(target, folder)], stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 120
        while not (folder / "shard-00001.safetensors").exists():
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < until
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    goal = Manifest.read(folder).supervised + 100
    run("killed", tokens=goal)
    whole, _ = run("whole", tokens=goal)
    assert content(folder) == content(whole)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"seed": 1}, "seed 0, not 1"),
        ({"max_new_tokens": 13}, "max_new_tokens 12, not 13"),
        ({"top_k": 6}, "top_k 5, not 6"),
        ({"temperatures": [1.0]}, r"temperatures \(1.0, 1.5\), not \(1.0,\)"),
        ({"samplings": {"0": 1.0}}, "samplings"),
        ({"dtype": "bfloat16"}, "dtype float32, not bfloat16"),
    ],
)
def test_other_settings_are_refused(run, change, field):
    """By name, before anything is written; how much to collect and where to stop may change."""
    folder, _ = run("a", tokens=1)
    before = content(folder)
    with pytest.raises(Incompatible, match=f"was begun with {field}"):
        run("a", tokens=1000, **change)
    assert content(folder) == before
    run("a", tokens=100, max_disk_gib=1.0)


def test_another_target_is_refused(run, tmp_path):
    """The same vocabulary with other weights; and another vocabulary. Where the folder lies does not matter."""
    folder, _ = run("a", tokens=1)
    other = write_tiny_target(tmp_path / "other", seed=1)
    with pytest.raises(Incompatible, match="was begun with target_fingerprint "):
        run("a", tokens=1000, target=other)
    run("a", tokens=100, target=write_tiny_target(tmp_path / "copy"))
    manifest = json.loads((folder / MANIFEST).read_text())
    for field in ("target_fingerprint", "vocab_fingerprint"):
        (folder / MANIFEST).write_text(json.dumps(manifest | {field: "another"}))
        with pytest.raises(Incompatible, match=f"was begun with {field} another"):
            run("a", tokens=1000)


def test_the_targets_own_prompts(run):
    """All prompts made up by the target, but for those that it did not bring to an end, which templates replace."""
    folder, _ = run("a", tokens=1, self_prompts=1.0, shard_sequences=16)
    kinds = [example.kind for example in DistillationData(folder)]
    assert len(kinds) == 16
    assert kinds == sorted(kinds, key=lambda kind: kind != "self")
    assert set(kinds) - {"self"} <= set(KINDS)


def test_prompts_of_a_file(run, tmp_path):
    """Each is answered once, then the run says that there are no more; another file is other settings."""
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": f"Question {i}?", "kind": f"kind {i}"}) for i in range(8)))
    folder, log = run("a", prompts=file)
    assert [example.kind for example in DistillationData(folder)] == [f"kind {i}" for i in range(8)]
    assert "the file has no more" in log
    file.write_text('{"prompt": "Something else"}')
    with pytest.raises(Incompatible, match="was begun with prompts "):
        run("a", prompts=file)


def test_the_same_prompt_twice_is_answered_anew(run, tmp_path):
    """Sampled at temperature 1, twelve times in two shards: twelve different replies."""
    file = tmp_path / "prompts.txt"
    file.write_text("Hello\n" * 12)
    folder, _ = run("a", prompts=file, samplings={"1": 1.0})
    replies = {tuple(example.token_ids.tolist()) for example in DistillationData(folder)}
    assert len(Manifest.read(folder).shards) == 2
    assert len(replies) == 12


def test_a_corpus_is_judged(run, tmp_path):
    """Nothing is sampled: the texts themselves, each token but the first supervised."""
    file = tmp_path / "corpus.txt"
    file.write_text("\n".join("some words and more of them"[: 5 + i] for i in range(9)))
    folder, _ = run("a", corpus=file)
    data = DistillationData(folder)
    assert [len(example.token_ids) for example in data] == [5 + i for i in range(9)]
    assert all(torch.equal(e.supervised, torch.arange(len(e.token_ids)) > 0) for e in data)


def test_a_corpus_needs_no_room_for_replies(run, tmp_path):
    """Its limit is the target's, 512: a longer text is cut there, and the options of replies do not matter."""
    file = tmp_path / "corpus.txt"
    file.write_text("w" * 600)
    folder, _ = run("a", corpus=file, max_new_tokens=4000)
    assert [len(example.token_ids) for example in DistillationData(folder)] == [512, 88]


def test_the_bound_on_the_disk(run):
    """Named, with what was written before it left whole."""
    with pytest.raises(ResourceExhausted, match="--max-disk-gib"):
        run("a", tokens=10_000, max_disk_gib=30_000 / 2**30)
    folder, _ = run("a", tokens=1)
    assert len(DistillationData(folder)) >= 6


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"max_new_tokens": 400}, "--max-new-tokens: with --max-prompt-tokens it makes 600 tokens; .* takes 512"),
        ({"top_k": 300}, "--top-k: must be at most 258"),
        ({"device": "abacus"}, "--device: 'abacus' is not a device"),
        ({"max_prompt_tokens": 20}, "--max-prompt-tokens: 20 leaves no room"),
    ],
)
def test_limits_of_the_target(run, changes, problem):
    """What cannot work is said before the first token."""
    with pytest.raises(InvalidArgument, match=problem):
        run("a", **changes)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"prompts": "a", "corpus": "b"}, "--prompts and --corpus: name one"),
        ({"samplings": {"0": 0.5}}, "--samplings: shares must sum to 1"),
        ({"samplings": {"hot": 1.0}}, "--samplings: must be temperature=share"),
        ({"samplings": {"-1": 1.0}}, "--samplings: temperatures must be 0 to 100"),
        ({"temperatures": [1.0, 1.0]}, "--temperatures: must be distinct"),
        ({"temperatures": [0.0]}, "temperatures.0"),
        ({"tokens": 0}, "tokens"),
    ],
)
def test_options_that_contradict(changes, problem):
    """Refused when they are read, naming the flag."""
    with pytest.raises(ValidationError, match=problem):
        Collect(**({"output": "a"} | changes))


def test_the_command_line(tmp_path, capsys):
    """Options as people type them; what goes wrong ends the process with a message."""
    shares = ["--samplings", "0=0.5,0.7=0.5", "--temperatures", "1", "--temperatures", "2"]
    arguments = ["distill", "collect", "--output", str(tmp_path / "a"), "--target", str(tmp_path), *shares]
    with pytest.raises(SystemExit, match="1"):
        CliApp.run(Draftwire, cli_args=arguments)
    assert f"draftwire distill collect: {tmp_path}" in capsys.readouterr().err
