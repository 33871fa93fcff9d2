"""The embedded draft as an ordinary model folder, for engines that know nothing of trimmed drafts.

A trimmed draft has a head over frequent tokens alone (draftwire.engine.trimmed). An engine that runs drafts itself
wants logits for the whole vocabulary, so the same product is taken over all of it: E A instead of E[draft_vocab] A. The
head then costs V rows, as it does for every draft that such an engine runs.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from draftwire.engine import trimmed
from draftwire.errors import ModelError
from draftwire.models import resolve


def export(draft: str, folder: Path) -> Path:
    """Write a trimmed draft's layers, norm, embedding and whole head to `folder`, in transformers' format, bfloat16.

    Raises ModelError if `draft` is no trimmed draft or does not fit its base.
    """
    source = resolve(draft)
    described = trimmed.read_config(source)
    if described is None:
        raise ModelError(f"{draft}: is no trimmed draft; an ordinary model needs no export")
    base = resolve(described["base_model"])
    config: Any = AutoConfig.from_pretrained(base)
    config.num_hidden_layers = described["num_hidden_layers"]
    config.tie_word_embeddings = False
    model: Any = AutoModelForCausalLM.from_pretrained(base, config=config, dtype=torch.float32)
    embedding = model.get_input_embeddings().weight.detach()
    model.lm_head.weight.data.copy_(embedding)  # the base ties the two
    trimmed.fit(model, source)
    adapter = load_file(Path(source) / "model.safetensors")["adapter.weight"].float()
    model.lm_head = torch.nn.Linear(embedding.shape[1], embedding.shape[0], bias=False)
    model.lm_head.weight.data.copy_(embedding @ adapter)
    model.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return folder
