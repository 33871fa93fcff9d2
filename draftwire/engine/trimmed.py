"""Trimmed drafts: a few decoder layers on the target's frozen embedding, with a head over frequent tokens only.

Such a draft is a folder with a small `model.safetensors` and this config.json:

    {"model_type": "draftwire_trimmed_draft",   what it is
     "base_model": "embedded-target",           whose embedding, tokenizer and configuration it shares
     "num_hidden_layers": 2,                    its own layers, stored under the base architecture's names
     "vocab_fingerprint": "..."}                of the base's tokenizer, so that another base is refused

Beside the layers and the final norm it stores `adapter.weight` [H, H] and `draft_vocab` [R], the ids that it can
propose. Its logits over draft_vocab are E[draft_vocab] (A h), with E the base's head, which is its embedding where the
two are tied: the product E[draft_vocab] A is folded once at load, so the head costs R rows instead of V.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from draftwire.errors import ModelError

MODEL_TYPE = "draftwire_trimmed_draft"


def read_config(folder: str) -> dict[str, Any] | None:
    """The config.json of a trimmed draft; None if the folder is anything else."""
    file = Path(folder) / "config.json"
    if not file.is_file():
        return None
    config = json.loads(file.read_text())
    return config if config.get("model_type") == MODEL_TYPE else None


def fit(base: Any, folder: str) -> Tensor:
    """Turn `base`, the base model cut to the draft's layers, into the draft. Returns draft_vocab [R].

    Raises ModelError if the weights do not fit the base.
    """
    weights = load_file(Path(folder) / "model.safetensors")
    try:
        adapter, draft_vocab = weights.pop("adapter.weight"), weights.pop("draft_vocab").long()
        embedding, replaced = base.get_input_embeddings().weight, base.get_output_embeddings().weight
        # Rounded like every stored weight, which keeps the head packable (draftwire.engine.linear).
        head = (replaced[draft_vocab].float() @ adapter.float()).to(torch.bfloat16)
        own = {name for name, p in base.named_parameters() if p is not embedding and p is not replaced}
        base.load_state_dict(weights, strict=False)
    except (KeyError, IndexError, RuntimeError) as error:
        raise ModelError(f"{folder}: the weights do not fit the base model: {error}") from error
    if differing := sorted(own ^ set(weights)):
        raise ModelError(f"{folder}: the weights do not fit the base model: {', '.join(differing[:3])}")
    linear = nn.Linear(head.shape[1], head.shape[0], bias=False, dtype=base.dtype)
    linear.weight.data.copy_(head)
    base.lm_head = linear
    return draft_vocab
