"""Tokenizers and causal models, as they lie in a folder or on the hub. The embedded names are known, too."""

from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from draftwire.engine.pretrained import read_config
from draftwire.errors import ModelError
from draftwire.models import resolve


def load_tokenizer(model: str) -> Any:
    """The tokenizer of a model. Raises ModelError."""
    try:
        return AutoTokenizer.from_pretrained(resolve(model))
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise ModelError(f"{model}: its tokenizer cannot be loaded: {_first_line(error)}") from error


def load_causal(model: str, dtype: str = "auto") -> Any:
    """A causal model that the native engine supports, on the CPU; dtype "auto" = as it is stored. Raises ModelError."""
    source = resolve(model)
    config = read_config(model, source)
    transformers_logging.disable_progress_bar()
    try:
        return AutoModelForCausalLM.from_pretrained(source, config=config, dtype=dtype)
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise ModelError(f"{model}: cannot be loaded: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
