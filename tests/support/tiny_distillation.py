"""A tiny target and data sets collected from it in one forward pass, for tests of training."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from distill.data import Example, Shard
from distill.fingerprint import target_fingerprint
from distill.manifest import Manifest
from distill.tiny_target import write_tiny_target
from distill.writer import DataWriter
from draftwire.vocab import vocab_fingerprint

TOP_K, LENGTH, PROMPT = 8, 40, 8

#: Of the tiny target.
HIDDEN = 64


def tiny_target(folder: Path) -> str:
    """A target of four layers and 258 ids; the folder's name."""
    return write_tiny_target(folder)


def write_data(folder: Path, target: str, *, sequences: int = 24, seed: int = 0, **manifest) -> Path:
    """Sequences of random bytes then tokens that the target samples, with its opinion of these, at temperature 1.

    `manifest` replaces fields of the manifest.
    """
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    fields = {
        "target": target,
        "vocab_fingerprint": vocab_fingerprint(AutoTokenizer.from_pretrained(target)),
        "target_fingerprint": target_fingerprint(model),
        "vocab_size": model.config.vocab_size,
        "top_k": TOP_K,
        "temperatures": (1.0,),
    }
    writer = DataWriter(folder, Manifest(**(fields | manifest)), max_bytes=1 << 30)
    if not sequences:
        return folder
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 256, (sequences, PROMPT), generator=generator)
    with torch.inference_mode():
        while tokens.shape[1] < LENGTH:
            last = model(tokens).logits[:, -1].softmax(-1)
            tokens = torch.cat([tokens, torch.multinomial(last, 1, generator=generator)], dim=1)
        rows = model(tokens).logits.log_softmax(-1)
    # Of different lengths, so that batches have padding.
    temperatures = len(writer.manifest.temperatures)
    examples = [_example(tokens[i], rows[i], LENGTH - i % 5, temperatures) for i in range(sequences)]
    writer.append(Shard.of(examples))
    return folder


def _example(tokens, rows, length, temperatures) -> Example:
    """The mass outside the stored ids is that of temperature 1 in every column."""
    rows = rows[PROMPT - 1 : length - 1]
    top = rows.topk(TOP_K)
    return Example(
        token_ids=tokens[:length],
        supervised=torch.arange(length) >= PROMPT,
        top_ids=top.indices,
        top_logprobs=top.values,
        tail_logmass=torch.log1p(-top.values.exp().sum(-1, keepdim=True)).expand(-1, temperatures),
        kind="bytes",
        temperature=1.0,
    )
