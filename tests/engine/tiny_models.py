"""Tiny models with random weights, saved as folders that load_engine reads."""

from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from draftwire.engine.base import Chunk

VOCAB_SIZE = 96
MAX_MODEL_LEN = 128

_SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": MAX_MODEL_LEN,
    "initializer_range": 0.2,  # far enough from zero for the attention to matter
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

#: Architecture -> what its configuration needs besides _SHAPE.
EXTRA = {
    "LlamaForCausalLM": {},
    "Qwen2ForCausalLM": {},
    "Qwen3ForCausalLM": {},
    "MistralForCausalLM": {"sliding_window": None},
    "GemmaForCausalLM": {},
    "Phi3ForCausalLM": {"sliding_window": None},
    "Olmo2ForCausalLM": {},
    "GPTNeoXForCausalLM": {},
}


def make(architecture, seed=0, **changes):
    """A tiny transformers model; changes go into its configuration."""
    cls = getattr(transformers, architecture)
    torch.manual_seed(seed)
    shape = _SHAPE | EXTRA[architecture] | changes
    if architecture == "GPTNeoXForCausalLM":  # has a key head for every query head, and does not know these words
        del shape["num_key_value_heads"], shape["head_dim"]
    model = cls(cls.config_class(**shape)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:  # norms and biases start at constants that would hide a mistake
                parameter.add_(torch.randn_like(parameter) * 0.1)
            assert parameter.isfinite().all(), name
    return model


def save(folder: Path, model=None, *, dtype=torch.float32, tokens=VOCAB_SIZE):
    """Save a model (default: the tiny Llama) and a tokenizer of so many tokens; returns the folder's name."""
    model = make("LlamaForCausalLM") if model is None else model
    model.to(dtype).save_pretrained(folder)
    vocabulary = {f"t{i}": i for i in range(tokens)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="t0")))
    tokenizer.save_pretrained(folder)
    return str(folder)


def logits_of_all(engine, token_ids):
    """Logits [n, V] of a sequence run from scratch in a slot of its own, in one chunk, with nothing reused."""
    slot, _ = engine.acquire(token_ids)
    rows = engine.forward([Chunk(slot, 0, token_ids, len(token_ids))])
    engine.release(slot)
    return rows


def greedy(engine, prompt, count):
    """`count` greedy tokens after the prompt, one forward each."""
    tokens = list(prompt)
    slot, cached = engine.acquire(tokens)
    for _ in range(count):
        logits = engine.forward([Chunk(slot, cached, tokens[cached:], 1)])
        cached = len(tokens)
        tokens.append(int(logits[0].argmax()))
    engine.release(slot)
    return tokens[len(prompt) :]
