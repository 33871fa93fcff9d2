"""What the native engine refuses, with the reason in the text."""

import pytest
from transformers import GPT2Config, LlamaConfig, MistralConfig, Phi3Config, Qwen2Config

from draftwire.engine.supported import check_supported
from draftwire.errors import ModelError


def llama(**changes):
    return LlamaConfig(architectures=["LlamaForCausalLM"], **changes)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (GPT2Config(architectures=["GPT2LMHeadModel"]), "GPT2LMHeadModel is not supported"),
        (GPT2Config(), "model_type 'gpt2' is not supported"),
        (MistralConfig(architectures=["MistralForCausalLM"], sliding_window=4096), "sliding_window=4096"),
        (
            Qwen2Config(architectures=["Qwen2ForCausalLM"], use_sliding_window=True, max_window_layers=1),
            "layers of type sliding_attention",
        ),
        (
            llama(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}),
            "rotary embedding 'dynamic'",
        ),
        (
            Phi3Config(
                architectures=["Phi3ForCausalLM"],
                sliding_window=None,
                original_max_position_embeddings=4096,
                rope_parameters={
                    "rope_type": "longrope",
                    "rope_theta": 10000.0,
                    "short_factor": [1.0] * 48,
                    "long_factor": [2.0] * 48,
                },
            ),
            "rotary embedding 'longrope'",
        ),
        (llama(attn_logit_softcapping=50.0), "soft-capped"),
    ],
    ids=["architecture", "no architecture", "window", "window layers", "dynamic", "longrope", "soft cap"],
)
def test_refused(config, reason):
    """A configuration that full causal attention would answer wrongly is a ModelError that names the reason."""
    with pytest.raises(ModelError, match=reason):
        check_supported(config)


def test_a_window_that_is_switched_off_is_no_window():
    """Qwen2 configurations name a window that they do not use."""
    check_supported(Qwen2Config(architectures=["Qwen2ForCausalLM"], use_sliding_window=False, sliding_window=4096))
