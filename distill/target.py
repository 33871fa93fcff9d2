"""Loads the target that is asked for its opinion."""

from dataclasses import dataclass
from typing import Any

from distill.pretrained import load_causal, load_tokenizer
from draftwire.engine import trimmed
from draftwire.engine.pretrained import resolve_device
from draftwire.errors import ModelError
from draftwire.models import resolve
from draftwire.vocab import vocab_fingerprint


@dataclass(frozen=True, slots=True)
class Target:
    """A target.

    Attributes:
        model: of transformers, in evaluation mode, on its device.
        tokenizer: its own.
        vocab_fingerprint: of the tokenizer.
        vocab_size: V, ids that have a meaning.
        max_model_len: longest sequence.
        eos_token_ids: that end a reply.
    """

    model: Any
    tokenizer: Any
    vocab_fingerprint: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]


def load_target(name: str, dtype: str, device: str) -> Target:
    """Load a target. Raises ModelError, InvalidArgument."""
    if trimmed.read_config(resolve(name)):
        raise ModelError(f"{name}: is a trimmed draft; a target is a whole model")
    place = resolve_device(device)
    tokenizer = load_tokenizer(name)
    model = load_causal(name, dtype)
    config = model.config
    ends = model.generation_config.eos_token_id
    ends = config.eos_token_id if ends is None else ends
    return Target(
        model=model.to(place),
        tokenizer=tokenizer,
        vocab_fingerprint=vocab_fingerprint(tokenizer),
        vocab_size=min(len(tokenizer), config.vocab_size),
        max_model_len=config.max_position_embeddings,
        eos_token_ids=tuple(ends) if isinstance(ends, list | tuple) else () if ends is None else (ends,),
    )
