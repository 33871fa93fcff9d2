"""The vocabulary fingerprint: two models can work together only if the same ids mean the same tokens. No torch here."""

import hashlib
from typing import Any


def vocab_fingerprint(tokenizer: Any) -> str:
    """SHA-256, hex, of the id -> token map of a transformers tokenizer, up to its length.

    The model's own vocab_size takes no part: families pad it differently while their tokenizers agree.
    """
    digest = hashlib.sha256()
    for token in tokenizer.convert_ids_to_tokens(range(len(tokenizer))):
        encoded = b"" if token is None else token.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(4, "big"))  # with its length, so that no two maps run together alike
        digest.update(encoded)
    return digest.hexdigest()
