"""One model over several processes: the same logits as in one, whatever the slots go through, and what it refuses.

The tiny Llama runs over two processes, or three in batch-invariant mode, the embedded target over three. How a verify
worker with followers ends is in test_tensor_parallel_worker.py.
"""

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny_models
import torch
from parallel_architectures import ARCHITECTURES, SIZES, logits_of
from support.timing import PATIENCE
from test_native_engine import random_schedule

from draftwire.engine import parallel, parallel_followers
from draftwire.engine.base import Chunk
from draftwire.engine.load import load_engine
from draftwire.engine.parallel_followers import Followers
from draftwire.engine.parallel_group import Job, Rank, leave, open_store, use_loopback
from draftwire.engine.parallel_plan import Copy, Plan, decode, encode, plan_size
from draftwire.errors import InvalidArgument, Unavailable
from draftwire.models import EMBEDDED_TARGET

HEARTBEAT_SECONDS, TIMEOUT_SECONDS = 1.0, 8.0
OPTIONS = {"dtype": "float32", "num_slots": 4, "max_batched_tokens": 64}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """6 attention heads, 2 key heads."""
    return tiny_models.save(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture
def shared(monkeypatch):
    """Loads engines that die of a silence of 8 s, and ends them; shared.lost is what on_loss was told."""
    monkeypatch.setattr(parallel, "HEARTBEAT_SECONDS", HEARTBEAT_SECONDS)
    monkeypatch.setattr(parallel, "TIMEOUT_SECONDS", TIMEOUT_SECONDS)
    monkeypatch.setattr(parallel, "NEWS_SECONDS", 1.0)
    monkeypatch.setattr(parallel_followers, "EXIT_SECONDS", 1.0)
    engines, lost = [], []

    def load(model, size, **options):
        engines.append(load_engine(model, tensor_parallel_size=size, on_loss=lost.append, **OPTIONS | options))
        return engines[-1]

    load.lost = lost
    yield load
    for engine in engines:
        pids = engine.followers.pids
        engine.close()
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def assert_close(rows, expected):
    torch.testing.assert_close(rows, expected, atol=2e-4, rtol=0)  # float32 sums in another order


def test_a_plan_survives_the_wire():
    """The numbers are: 1 copy, 2 chunks; the copy; slot, start, tokens, logits of each chunk; the tokens; zeros."""
    plan = Plan([Copy(3, 0, 7)], [Chunk(0, 7, [11, 12], 1), Chunk(2, 0, [13], 0)])
    numbers = encode(plan, 20)
    assert numbers.tolist() == [1, 2, 3, 0, 7, 0, 7, 2, 1, 2, 0, 1, 0, 11, 12, 13, 0, 0, 0, 0]
    assert decode(numbers) == plan


def test_the_largest_plan_has_room():
    """A copy and a chunk for each of 2 slots, and 5 tokens: 2 + 2 * 3 + 2 * 4 + 5 numbers, all of them used."""
    plan = Plan([Copy(0, 1, 9)] * 2, [Chunk(0, 1, [1, 2, 3], 1), Chunk(1, 0, [4, 5], 2)])
    assert plan_size(2, 5) == 21
    assert decode(encode(plan, 21)) == plan
    with pytest.raises(RuntimeError):
        encode(plan, 20)


def test_a_loss_is_told_once():
    """The first reason stands, whoever notices the next one; once we are closing nothing is a loss."""
    nobody = Job(0, 1, 0, 1.0, 1, "warning", model="", **SIZES)
    first, lost, unheard = Unavailable("first"), [], []
    followers = Followers(nobody, lost.append)
    followers.lose(first)
    followers.lose(Unavailable("second"))
    assert lost == [first]
    with pytest.raises(Unavailable, match="first"):
        followers.check()
    closed = Followers(nobody, unheard.append)
    closed.close()
    closed.lose(first)
    assert not unheard


def test_two_processes_compute_what_one_does(folder, shared):
    """Prefill, chunks, rejections, beginnings that are reused and copied, and a long silence."""
    both, alone = shared(folder, 2), load_engine(folder, **OPTIONS)
    assert_close(*(after_many_copies(engine) for engine in (both, alone)))
    rows = 0
    schedules = (random_schedule(engine, random.Random(1), 100) for engine in (both, alone))
    for (tokens, row), (same_tokens, expected) in zip(*schedules, strict=True):
        assert tokens == same_tokens
        assert_close(row, expected)
        rows += 1
    assert rows > 100
    time.sleep(TIMEOUT_SECONDS + HEARTBEAT_SECONDS)
    assert not shared.lost
    running = next(slot for slot in range(both.num_slots) if both._slots.is_taken(slot))
    chunks = [Chunk(running, 0, list(range(20, 30)), 10)]
    assert_close(both.forward(chunks), alone.forward(chunks))


def after_many_copies(engine):
    """Sequences that come and go before they run leave more copies than a plan has room for; logits after the last."""
    tokens = list(range(30, 50))
    first, _ = engine.acquire(tokens)
    engine.forward([Chunk(first, 0, tokens, 0)])
    for _ in range(40):
        slot, cached = engine.acquire([*tokens, 60])
        assert (slot != first, cached) == (True, 20)
        engine.release(slot)
    slot, _ = engine.acquire([*tokens, 60])
    logits = engine.forward([Chunk(slot, 20, [60], 1), Chunk(first, 20, [61], 1)])
    engine.release(slot)
    engine.release(first)
    return logits


def test_frozen_follower(folder, shared):
    """A follower that is there but does not answer is noticed after the timeout, also while nothing runs."""
    engine = shared(folder, 2)
    os.kill(engine.followers.pids[0], signal.SIGSTOP)
    deadline = time.monotonic() + PATIENCE
    while not shared.lost:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert isinstance(shared.lost[0], Unavailable)
    with pytest.raises(Unavailable, match="tensor parallelism"):
        tiny_models.logits_of_all(engine, [1, 2, 3])


def test_killed_follower(folder, shared):
    """kill -9 of rank 2: the next forward raises Unavailable that names it, and so does every one after it."""
    model = tiny_models.make("LlamaForCausalLM", num_attention_heads=6, num_key_value_heads=3, intermediate_size=144)
    engine = shared(tiny_models.save(Path(folder).with_name("three"), model), 3)
    os.kill(engine.followers.pids[1], signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"rank 2 of 3 \(process \d+\) was killed by SIGKILL"):
            tiny_models.logits_of_all(engine, [1, 2, 3])
    time.sleep(HEARTBEAT_SECONDS)
    assert len(shared.lost) == 1


def test_batch_invariant(tmp_path, shared):
    """Three processes keep a row's bits, too: each sum over ranks is made in their order."""
    model = tiny_models.make("LlamaForCausalLM", num_attention_heads=6, num_key_value_heads=3, intermediate_size=144)
    folder = tiny_models.save(tmp_path, model)
    engine = shared(folder, 3, batch_invariant=True)
    rows = list(random_schedule(engine, random.Random(0), 60))
    assert len(rows) > 40
    running = next(slot for slot in range(engine.num_slots) if engine._slots.is_taken(slot))
    for tokens, row in rows[::5]:
        from_scratch = engine.forward([Chunk(running, 0, tokens, 1)])[0]
        assert torch.equal(from_scratch, row)


def test_every_architecture(tmp_path):
    """Each of the supported architectures, sharded by its own plan in two processes, gives its logits."""
    folders = [tiny_models.save(tmp_path / name, tiny_models.make(name, **changes)) for name, changes in ARCHITECTURES]
    use_loopback()
    store = open_store(2)
    job = Job(0, 2, store.port, PATIENCE, 1, "warning", model="", **SIZES)
    follower_job = json.dumps(dataclasses.asdict(dataclasses.replace(job, rank=1)))
    script = Path(__file__).with_name("parallel_architectures.py")
    with subprocess.Popen([sys.executable, script, follower_job, *folders]) as follower:
        rank = Rank(job, store)
        try:
            for folder in folders:
                expected = tiny_models.logits_of_all(load_engine(folder, **OPTIONS), list(range(10, 40)))
                assert_close(logits_of(folder, rank), expected)
            assert follower.wait(PATIENCE) == 0
        finally:
            leave()
            follower.kill()


@pytest.mark.model
def test_embedded_target(shared):
    """9 heads over 3 processes: logits equal to 1e-3 (of up to 38), and the same greedy tokens."""
    sizes = {"max_model_len": 128, "max_batched_tokens": 64}
    prompt = [1, 4093, 198, 19556, 28, 1812, 359, 346, 47, 2, 198, 1, 520, 9531, 198]  # a chat's beginning
    alone, three = load_engine(EMBEDDED_TARGET, **OPTIONS | sizes), shared(EMBEDDED_TARGET, 3, **sizes)
    expected, rows = (tiny_models.logits_of_all(engine, prompt) for engine in (alone, three))
    torch.testing.assert_close(rows, expected, atol=1e-3, rtol=0)
    assert tiny_models.greedy(three, prompt, 18) == tiny_models.greedy(alone, prompt, 18)  # the next is a near tie


def test_follower_that_does_not_start(folder, monkeypatch):
    """One that ends before the model is loaded is an error that names it; the next load is not disturbed by it."""
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"rank 1 of 2 \(process \d+\) ended with exit code 1"):
            load_engine(folder, tensor_parallel_size=2, **OPTIONS)


@pytest.mark.parametrize(
    ("size", "problem"),
    [(4, "must divide the 6 attention heads of .*got 4"), (3, "must divide the 2 key heads of .*got 3")],
)
def test_sizes_that_do_not_divide(folder, size, problem):
    """Refused before any process is started, by the flag's name."""
    with pytest.raises(InvalidArgument, match=f"--tensor-parallel-size: {problem}"):
        load_engine(folder, tensor_parallel_size=size, **OPTIONS)


def test_a_head_that_does_not_divide(tmp_path):
    """So is a vocabulary that cannot be shared evenly."""
    model = tiny_models.make("LlamaForCausalLM", vocab_size=97)
    with pytest.raises(InvalidArgument, match="must divide the 97 vocabulary entries"):
        load_engine(tiny_models.save(tmp_path, model), tensor_parallel_size=2, **OPTIONS)


def test_fake_models_run_in_one_process():
    """A fake model is refused."""
    with pytest.raises(InvalidArgument, match=r"--tensor-parallel-size: a fake model .*got 2"):
        load_engine("fake:", tensor_parallel_size=2, **OPTIONS)


@pytest.mark.parametrize(
    ("device", "gpus", "problem"),
    [
        ("cuda", 1, "--tensor-parallel-size: must be at most 1, the GPUs here"),
        ("cuda:1", 4, "--device: must be cpu or cuda"),
        ("cpu", 4, "--tensor-parallel-size: with --device cpu needs the GPUs hidden"),
    ],
)
def test_gpus(folder, monkeypatch, device, gpus, problem):
    """Each rank takes a GPU; transformers puts the parts of a model on GPUs wherever there are any."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: gpus > 0)
    with pytest.raises(InvalidArgument, match=problem):
        load_engine(folder, tensor_parallel_size=2, device=device, **OPTIONS)
