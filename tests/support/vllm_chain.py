"""A `ToyChain` as a Llama that vLLM and a draft worker load: the law of its answers is known."""

from pathlib import Path

import torch
from support.stats import ToyChain
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

_HIDDEN = 64


def write_chain(chain: ToyChain, folder: Path, max_model_len: int) -> str:
    """Save the model and its tokenizer; returns the folder's name.

    The layer adds nothing, so the head sees which token was last, as one of `_HIDDEN` directions of length
    sqrt(_HIDDEN), and its weights there are the logarithms of the chain's row.
    """
    config = LlamaConfig(
        vocab_size=chain.vocab_size,
        hidden_size=_HIDDEN,
        intermediate_size=_HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=max_model_len,
        rms_norm_eps=1e-12,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=chain.eos,
        pad_token_id=chain.eos,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for weight in model.model.layers.parameters():
            weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(chain.vocab_size, _HIDDEN))
        model.lm_head.weight.zero_()
        rows = chain.logits(list(range(chain.vocab_size)))
        model.lm_head.weight[:, : chain.vocab_size] = rows.T.float() / _HIDDEN**0.5
    model.float().save_pretrained(folder)
    vocabulary = {f"t{token}": token for token in range(chain.vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=f"t{chain.eos}").save_pretrained(folder)
    return str(folder)
