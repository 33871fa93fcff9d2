"""What the draft workers are told of vLLM's model."""

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from draftwire.types import ModelInfo
from draftwire.vocab import vocab_fingerprint


def target_info(vllm_config: Any) -> ModelInfo:
    """The target of a vllm.config.VllmConfig; reads its tokenizer, whose vocabulary drafts must share."""
    model = vllm_config.model_config
    tokenizer = AutoTokenizer.from_pretrained(
        model.tokenizer, revision=model.tokenizer_revision, trust_remote_code=model.trust_remote_code
    )
    return ModelInfo(
        name=Path(model.model).name,
        vocab_fingerprint=vocab_fingerprint(tokenizer),
        vocab_size=min(len(tokenizer), model.get_vocab_size()),
        max_model_len=model.max_model_len,
        engine="vllm",
        dtype=str(model.dtype).removeprefix("torch."),
    )
