"""The embedded pair: the target is transformers' own, bit for bit repeatable, and the draft guesses it."""

import random

import pytest
import tiny_models
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from draftwire.engine.base import Chunk
from draftwire.engine.load import load_engine
from draftwire.models import EMBEDDED_DRAFT, EMBEDDED_TARGET, resolve
from draftwire.vocab import vocab_fingerprint

pytestmark = pytest.mark.model

QUESTIONS = (
    "Write a Python function that returns the largest number in a list.",
    "List four fruits and their colours.",
    "Why is the sky blue? Answer in two sentences.",
)
NEW_TOKENS = 32


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(resolve(EMBEDDED_TARGET))


@pytest.fixture(scope="module")
def prompts(tokenizer):
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    return [tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"] for chat in chats]


@pytest.fixture(scope="module")
def target():
    return load_engine(EMBEDDED_TARGET, num_slots=4, max_model_len=512, max_batched_tokens=256)


@pytest.fixture(scope="module")
def answers(target, prompts):
    """The target's greedy continuation of each prompt."""
    return [tiny_models.greedy(target, prompt, NEW_TOKENS) for prompt in prompts]


def test_info(target, tokenizer):
    """The target's vocabulary, limit and end token; its fingerprint is that of the tokenizer that the gateway loads."""
    assert (target.info.name, target.info.vocab_size, target.info.max_model_len) == (EMBEDDED_TARGET, 49152, 512)
    assert target.info.eos_token_ids == (tokenizer.convert_tokens_to_ids("<|im_end|>"),)
    assert target.info.vocab_fingerprint == vocab_fingerprint(tokenizer)


def test_greedy_equals_generate(prompts, answers):
    """In float32 the tokens are generate's; were one to differ, its two candidates must be a near tie (< 1e-3)."""
    model = AutoModelForCausalLM.from_pretrained(resolve(EMBEDDED_TARGET), dtype=torch.float32)
    model.generation_config.eos_token_id = None
    differing = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor([prompt])
        options = {"do_sample": False, "max_new_tokens": NEW_TOKENS, "attention_mask": torch.ones_like(ids)}
        tokens = model.generate(ids, **options)[0, len(prompt) :]
        if tokens.tolist() == answer:
            continue
        differing += 1
        first = next(i for i in range(NEW_TOKENS) if tokens[i] != answer[i])
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + answer[:first]])).logits[0, -1]
        assert logits[tokens[first]] - logits[answer[first]] < 1e-3
    assert differing <= 1


def test_the_draft_guesses_the_target(prompts, answers):
    """On fresh answers of the target, the draft's likeliest token is the target's at a quarter of the positions."""
    draft = load_engine(EMBEDDED_DRAFT, num_slots=4, max_model_len=512, max_batched_tokens=256)
    hits = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        rows = tiny_models.logits_of_all(draft, prompt + answer)[len(prompt) - 1 : -1]
        hits += int((rows.argmax(-1) == torch.tensor(answer)).sum())
    assert hits / (len(prompts) * NEW_TOKENS) > 0.25


def test_the_draft_fits_the_target(target):
    """The pair has one vocabulary, and the draft proposes 8192 of its ids."""
    draft = load_engine(EMBEDDED_DRAFT, num_slots=1, max_model_len=64, max_batched_tokens=64)
    assert draft.info.vocab_fingerprint == target.info.vocab_fingerprint
    row = tiny_models.logits_of_all(draft, [1, 2, 3])[-1]
    assert row.shape == (49152,)
    assert int(row.isfinite().sum()) == 8192


@pytest.mark.parametrize(("dtype", "length"), [("float32", 60), ("bfloat16", 20)])
def test_batch_invariant(dtype, length):
    """Logits are the same bits in one piece, in pieces, in any company and order, and on reused beginnings."""
    engine = load_engine(
        EMBEDDED_TARGET, dtype=dtype, num_slots=3, max_model_len=128, max_batched_tokens=256, batch_invariant=True
    )
    generator = random.Random(7)
    tokens, other = ([generator.randrange(49152) for _ in range(length)] for _ in range(2))
    whole = tiny_models.logits_of_all(engine, tokens)
    (company, cached), (slot, reused) = engine.acquire(other), engine.acquire([9, *tokens])
    assert (cached, reused) == (0, 0)
    engine.release(slot)
    slot, reused = engine.acquire([*tokens[: length // 2], 5])
    assert reused == length // 2
    done = reused
    while done < length:
        part = tokens[done : done + generator.randint(1, 9)]
        chunks = [Chunk(slot, done, part, len(part)), Chunk(company, 0, other[: generator.randint(1, length)], 0)]
        generator.shuffle(chunks)
        assert torch.equal(engine.forward(chunks), whole[done : done + len(part)])
        done += len(part)
