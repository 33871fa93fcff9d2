"""Which models the native engine runs, decided from the configuration before any weight is read.

Its attention is plain causal attention over everything before a token. A model that does something else there would
load and then answer wrongly, so an architecture is served only if a test compares it with transformers' own `generate`.
"""

from typing import Any

from draftwire.errors import ModelError

#: Each of them is in tests/engine/test_architectures.py.
ARCHITECTURES = (
    "GPTNeoXForCausalLM",
    "GemmaForCausalLM",
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Olmo2ForCausalLM",
    "Phi3ForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)

#: Rotary embeddings that depend on a token's position alone.
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def check_supported(config: Any) -> None:
    """Raise ModelError, naming the reason, unless the native engine computes what this config describes."""
    architectures = getattr(config, "architectures", None) or []
    if not set(architectures) & set(ARCHITECTURES):
        named = ", ".join(architectures) or f"model_type {getattr(config, 'model_type', None)!r}"
        raise ModelError(f"{named} is not supported by the native engine; it runs {', '.join(ARCHITECTURES)}")
    for reason in filter(None, (_sliding_window(config), _rope(config), _soft_cap(config))):
        raise ModelError(f"{architectures[0]}: {reason} not supported by the native engine yet")


def _sliding_window(config: Any) -> str | None:
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    if others := layer_types - {"full_attention"}:
        return f"layers of type {', '.join(sorted(others))} are"
    window = getattr(config, "sliding_window", None)
    if window is not None and getattr(config, "use_sliding_window", True):
        return f"a sliding window (sliding_window={window}) is"
    return None


def _rope(config: Any) -> str | None:
    rope_type = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope_type not in _ROPE_TYPES:
        return f"rotary embedding {rope_type!r}, which depends on the length of the sequence, is"
    return None


def _soft_cap(config: Any) -> str | None:
    if getattr(config, "attn_logit_softcapping", None) is not None:
        return "attention with soft-capped logits is"
    return None
