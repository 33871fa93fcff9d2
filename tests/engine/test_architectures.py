"""Every architecture on the allowlist answers as transformers' own generate does."""

import pytest
import tiny_models
import torch

from draftwire.engine.load import load_engine
from draftwire.engine.supported import ARCHITECTURES

PROMPTS = ([5, 17, 3, 88, 41, 9, 60], [7], [11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22])


def test_every_architecture_is_covered():
    """The allowlist holds exactly the architectures that this file compares."""
    assert set(ARCHITECTURES) == set(tiny_models.EXTRA)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_equals_generate(architecture, tmp_path):
    """Greedy tokens and logits equal those of the unchanged transformers model with its own cache and attention."""
    model = tiny_models.make(architecture)
    folder = tiny_models.save(tmp_path, model)
    engine = load_engine(folder, dtype="float32", num_slots=4, max_batched_tokens=64)
    model.generation_config.eos_token_id = None  # go on to 24 tokens, as tiny_models.greedy does
    for prompt in PROMPTS:
        expected = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=24)[0, len(prompt) :]
        with torch.inference_mode():
            reference = model(torch.tensor([prompt])).logits[0]
        torch.testing.assert_close(tiny_models.logits_of_all(engine, prompt), reference, atol=2e-4, rtol=2e-4)
        assert tiny_models.greedy(engine, prompt, 24) == expected.tolist()


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
            "rope_theta": 10000.0,
        },
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0},
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_rope_types(rope, tmp_path):
    """Rotary embeddings that scale by position alone give the logits of the unchanged model."""
    model = tiny_models.make("LlamaForCausalLM", rope_parameters=rope)
    engine = load_engine(tiny_models.save(tmp_path, model), dtype="float32", num_slots=2, max_batched_tokens=64)
    tokens = [(7 * i + 3) % tiny_models.VOCAB_SIZE for i in range(50)]
    with torch.inference_mode():
        reference = model(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(tiny_models.logits_of_all(engine, tokens), reference, atol=2e-4, rtol=2e-4)
