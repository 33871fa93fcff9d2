"""A target for trying the whole way from nothing to a draft in a minute: a tiny Llama with random weights.

Random weights say nothing about the world, but they are a fixed function of the text before a token. With weights large
enough for the layers to matter and a head that makes up its mind, a student has something to learn, and it shows.
Its vocabulary are the bytes, so any text is a prompt.
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

#: Ids of the bytes come first, then these.
_END, _BEGIN = "<|im_end|>", "<|im_start|>"

_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny_target(folder: Path, *, seed: int = 0, num_layers: int = 4) -> str:
    """Save the model and its tokenizer; returns the folder's name. The same arguments, the same weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _byte_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(_END),
        pad_token_id=tokenizer.convert_tokens_to_ids(_END),
    )
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    torch.random.set_rng_state(state)
    with torch.no_grad():
        model.lm_head.weight.mul_(2.5)
    model.bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def _byte_tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=_END, pad_token=_END)
    fast.add_special_tokens({"additional_special_tokens": [_BEGIN, _END]})
    fast.chat_template = _TEMPLATE
    return fast


if __name__ == "__main__":
    print(write_tiny_target(Path(sys.argv[1])))
