"""A target's fingerprint: which configuration and weights an opinion was taken from."""

import hashlib
import json
from typing import Any

import torch

#: What a configuration says about its file rather than about the model.
_INCIDENTAL = ("_name_or_path", "architectures", "dtype", "transformers_version", "use_cache")


def target_fingerprint(model: Any) -> str:
    """SHA-256, hex, of a transformers model's configuration and weights.

    Weights count as bfloat16, so that a bfloat16 checkpoint is the same target in whatever type it is loaded.
    """
    config = {key: value for key, value in model.config.to_dict().items() if key not in _INCIDENTAL}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, weight in sorted(model.named_parameters()):
        digest.update(f"\0{name}{list(weight.shape)}\0".encode())
        digest.update(weight.detach().bfloat16().contiguous().cpu().view(torch.int16).numpy().data)
    return digest.hexdigest()
