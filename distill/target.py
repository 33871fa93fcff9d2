"""Loads the target that is asked for its opinion."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from distill.build import load_tokenizer
from distill.packed import has_tiles
from draftwire.engine import trimmed
from draftwire.engine.pretrained import read_config
from draftwire.errors import InvalidArgument, ModelError
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


def resolve_dtype(dtype: str, device: str) -> str:
    """What "auto" is: bfloat16 where the hardware multiplies it in tiles, else float32."""
    if dtype != "auto":
        return dtype
    return "bfloat16" if has_tiles() or device != "cpu" else "float32"


def load_target(name: str, dtype: str, device: str) -> Target:
    """Load a target. Raises ModelError, InvalidArgument."""
    source = resolve(name)
    if trimmed.read_config(source):
        raise ModelError(f"{name}: is a trimmed draft; a target is a whole model")
    place = _device(device)
    config = read_config(name, source)
    tokenizer = load_tokenizer(name)
    transformers_logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(source, config=config, dtype=getattr(torch, dtype))
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise ModelError(f"{name}: cannot be loaded: {error}") from error
    ends = model.generation_config.eos_token_id
    ends = config.eos_token_id if ends is None else ends
    return Target(
        model=model.eval().to(place),
        tokenizer=tokenizer,
        vocab_fingerprint=vocab_fingerprint(tokenizer),
        vocab_size=min(len(tokenizer), config.vocab_size),
        max_model_len=config.max_position_embeddings,
        eos_token_ids=tuple(ends) if isinstance(ends, list | tuple) else () if ends is None else (ends,),
    )


def _device(device: str) -> torch.device:
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise InvalidArgument("--device", f"{device!r} is not a device: {error}") from None
    if place.type == "cuda" and not torch.cuda.is_available():
        raise InvalidArgument("--device", f"{device!r}: torch sees no GPU here")
    return place
