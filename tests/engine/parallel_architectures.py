"""Rank 1 of test_tensor_parallel's test_every_architecture, run as a script; what both ranks share is here as well."""

import json
import sys

import torch
from tiny_models import EXTRA

from draftwire.engine.base import Chunk
from draftwire.engine.parallel_group import Job, Rank, join_store
from draftwire.engine.pretrained import build_engine

SIZES = {
    "dtype": "float32",
    "device": "cpu",
    "num_slots": 1,
    "max_model_len": None,
    "max_batched_tokens": 64,
    "batch_invariant": False,
}

#: All that are supported; one with a tied embedding, which transformers shards, too.
ARCHITECTURES = [*((name, {}) for name in EXTRA), ("Qwen3ForCausalLM", {"tie_word_embeddings": True})]


def logits_of(folder, rank):
    """Both ranks call it at once: logits of 30 tokens that come in two chunks."""
    engine = build_engine(folder, rank=rank, **SIZES)
    with torch.inference_mode():
        parts = [engine.run([Chunk(0, start, list(range(10 + start, 25 + start)), 15)]) for start in (0, 15)]
    return torch.cat(parts)


if __name__ == "__main__":
    job = Job(**json.loads(sys.argv[1]))
    follower = Rank(job, join_store(job.port, job.size))
    for name in sys.argv[2:]:
        logits_of(name, follower)
