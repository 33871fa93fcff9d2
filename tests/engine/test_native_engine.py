"""The native engine on a tiny model: random ragged schedules, the slot rules, and what it refuses."""

import random

import pytest
import tiny_models
import torch

from draftwire.engine.base import Chunk
from draftwire.engine.load import load_engine
from draftwire.errors import EngineError

TOLERANCE = {"float32": 2e-4, "bfloat16": 0.35}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_models.save(tmp_path_factory.mktemp("tiny"))


def load(folder, **options):
    return load_engine(folder, **{"dtype": "float32", "num_slots": 4, "max_batched_tokens": 64} | options)


def random_token(generator):
    return generator.randrange(tiny_models.VOCAB_SIZE)


def random_schedule(engine, generator, steps):
    """Run sequences that come, grow, are truncated, branch off each other and go.

    Yields (tokens up to and including a row's own, that row's logits) for every row with logits.
    """
    running = {}  # slot -> [tokens that it ought to hold, how many of them it holds]
    finished = [[random_token(generator) for _ in range(10)]]
    for _ in range(steps):
        if len(running) < engine.num_slots and generator.random() < 0.5:
            beginning = generator.choice([*finished, *(tokens for tokens, _ in running.values())])
            tokens = beginning[: generator.randrange(len(beginning) + 1)]
            tokens = [*tokens, *(random_token(generator) for _ in range(generator.randint(1, 12)))][:60]
            slot, cached = engine.acquire(tokens)
            assert 0 <= cached < len(tokens)
            running[slot] = [tokens, cached]
        chunks = []
        for slot in generator.sample(list(running), generator.randint(0, len(running))):
            tokens, held = running[slot]
            if held == len(tokens):
                held = generator.randint(max(0, held - 5), held)  # a rejection
                tokens[held:] = [random_token(generator) for _ in range(generator.randint(1, 7))]
            part = tokens[held : held + generator.randint(1, 8)]
            chunks.append(Chunk(slot, held, part, generator.randint(0, len(part))))
            running[slot][1] = held + len(part)
        if chunks:
            logits = iter(engine.forward(chunks))
            for chunk in chunks:
                end = chunk.start + len(chunk.token_ids)
                for position in range(end - chunk.num_logits, end):
                    yield running[chunk.slot][0][: position + 1], next(logits)
            assert next(logits, None) is None
        for slot in list(running):
            if len(running[slot][0]) > 55 or generator.random() < 0.15:
                finished.append(running.pop(slot)[0])
                engine.release(slot)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("seed", range(3))
def test_random_schedules(folder, dtype, seed):
    """Whatever chunks, rejections, company and reused beginnings came before, a row equals a forward from scratch."""
    engine, fresh = load(folder, dtype=dtype), load(folder, dtype=dtype)
    rows = 0
    for tokens, row in random_schedule(engine, random.Random(seed), 40):
        expected = tiny_models.logits_of_all(fresh, tokens)[-1]
        torch.testing.assert_close(row, expected, atol=TOLERANCE[dtype], rtol=0)
        rows += 1
    assert rows > 40


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("seed", range(3))
def test_random_schedules_bit_for_bit(folder, dtype, seed):
    """In batch-invariant mode the same holds to the last bit."""
    engine, fresh = (load(folder, dtype=dtype, batch_invariant=True) for _ in range(2))
    rows = 0
    for tokens, row in random_schedule(engine, random.Random(seed), 40):
        assert torch.equal(row, tiny_models.logits_of_all(fresh, tokens)[-1])
        rows += 1
    assert rows > 40


def test_shapes_and_dtypes(folder):
    """Logits are float32 [sum of num_logits, V]; none wanted gives no rows."""
    engine = load(folder, dtype="bfloat16")
    (first, _), (second, _) = engine.acquire([1, 2, 3]), engine.acquire([4])
    logits = engine.forward([Chunk(first, 0, [1, 2, 3], 2), Chunk(second, 0, [4], 1)])
    assert logits.shape == (3, tiny_models.VOCAB_SIZE)
    assert logits.dtype == torch.float32
    assert engine.forward([Chunk(first, 3, [5], 0)]).shape == (0, tiny_models.VOCAB_SIZE)


def test_a_released_beginning_is_reused(folder):
    """A sequence that begins like a finished one has that beginning cached, and its logits are those from scratch."""
    engine = load(folder)
    tokens = list(range(10, 30))
    tiny_models.logits_of_all(engine, tokens)
    slot, cached = engine.acquire([*tokens[:15], 77, 78])
    assert cached == 15
    row = engine.forward([Chunk(slot, cached, [77, 78], 1)])[0]
    expected = tiny_models.logits_of_all(load(folder), [*tokens[:15], 77, 78])[-1]
    torch.testing.assert_close(row, expected, atol=2e-4, rtol=0)


def test_a_running_beginning_is_copied(folder):
    """A beginning that a running sequence holds is copied; the two then do not disturb each other."""
    engine = load(folder)
    tokens = list(range(10, 30))
    first, _ = engine.acquire(tokens)
    engine.forward([Chunk(first, 0, tokens, 1)])
    second, cached = engine.acquire([*tokens, 5])
    assert (cached, second != first) == (20, True)
    rows = engine.forward([Chunk(first, 20, [6, 7], 1), Chunk(second, 20, [5], 1)])
    for row, sequence in zip(rows, ([*tokens, 6, 7], [*tokens, 5]), strict=True):
        torch.testing.assert_close(row, tiny_models.logits_of_all(load(folder), sequence)[-1], atol=2e-4, rtol=0)


def test_ids_beyond_the_tokenizer_are_cut_off(tmp_path):
    """A model padded beyond its tokenizer has V = the tokenizer's length, and refuses ids at or above it."""
    engine = load(tiny_models.save(tmp_path, tokens=90))
    assert engine.info.vocab_size == 90
    slot, _ = engine.acquire([3])
    assert engine.forward([Chunk(slot, 0, [3], 1)]).shape == (1, 90)
    with pytest.raises(EngineError, match=r"outside 0\.\.89"):
        engine.forward([Chunk(slot, 0, [90], 1)])


@pytest.mark.parametrize(
    ("chunk", "problem"),
    [
        (Chunk(3, 0, [1], 1), "not taken"),
        (Chunk(-1, 0, [1], 1), "not taken"),
        (Chunk(0, 4, [1], 1), "holds 3 tokens"),
        (Chunk(0, -1, [1], 1), "holds 3 tokens"),
        (Chunk(0, 3, [], 0), "1 token or more"),
        (Chunk(0, 3, [1], 2), "num_logits=2"),
        (Chunk(0, 3, [1, -1], 1), "outside"),
        (Chunk(0, 3, [1] * 65, 1), "max_batched_tokens=64"),
        (Chunk(0, 3, [1] * 14, 1), "max_model_len=16"),
    ],
)
def test_breaches_of_the_contract(folder, chunk, problem):
    """Each is an EngineError that names the problem, and leaves the slot usable."""
    engine = load(folder, max_model_len=16, num_slots=1)
    slot, _ = engine.acquire([1, 2, 3])
    engine.forward([Chunk(slot, 0, [1, 2, 3], 0)])
    with pytest.raises(EngineError, match=problem):
        engine.forward([chunk])
    assert engine.forward([Chunk(slot, 3, [4], 1)]).shape == (1, tiny_models.VOCAB_SIZE)


def test_one_chunk_a_slot(folder):
    """Two chunks of one slot in a forward are refused."""
    engine = load(folder)
    slot, _ = engine.acquire([1])
    with pytest.raises(EngineError, match="another slot"):
        engine.forward([Chunk(slot, 0, [1], 1), Chunk(slot, 1, [2], 1)])


def test_full(folder):
    """acquire gives None when every slot is taken, and a slot again after a release."""
    engine = load(folder)
    slots = [engine.acquire([i])[0] for i in range(4)]
    assert engine.acquire([9]) is None
    engine.release(slots[2])
    assert engine.acquire([9])[0] == slots[2]


def test_nothing_is_reused_after_a_failed_forward(folder, monkeypatch):
    """A forward that fails raises EngineError, and what its slots held serves no later sequence."""
    engine = load(folder)
    slot, _ = engine.acquire([1, 2, 3])
    engine.forward([Chunk(slot, 0, [1, 2, 3], 0)])

    def fail(*_, **__):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(engine._model, "forward", fail)
        with pytest.raises(EngineError, match="out of memory"):
            engine.forward([Chunk(slot, 3, [4], 1)])
    engine.release(slot)
    assert engine.acquire([1, 2, 3])[1] == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_random_schedules_on_a_gpu(folder, dtype):
    """The random schedules hold on a GPU, against the CPU's float32."""
    engine, fresh = load(folder, dtype=dtype, device="cuda"), load(folder)
    for tokens, row in random_schedule(engine, random.Random(0), 60):
        expected = tiny_models.logits_of_all(fresh, tokens)[-1]
        torch.testing.assert_close(row.cpu(), expected, atol=2 * TOLERANCE[dtype], rtol=1e-3)
