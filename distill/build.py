"""Ways to build a student: layers of the target, any configuration from scratch, an existing small model.

What was learnt from the first draft: a draft that begins as the target's first layers beats one from scratch by far at
the same cost, because it already reads the target's embedding. Its last hidden state is not yet what the target's head
expects, so the logits are much too sharp; the final norm scaled down at the start halves the first loss.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from distill.pretrained import load_causal, load_tokenizer
from distill.student import Student
from draftwire.engine import trimmed
from draftwire.engine.supported import check_supported
from draftwire.errors import Incompatible, InvalidArgument, ModelError
from draftwire.models import resolve
from draftwire.vocab import vocab_fingerprint

#: Scale of the final norm before the first step. Of cross-entropies 15 (1.0) and 6.7 (0.25) the smaller one.
_NORM_SCALE = 0.25


def from_target(target: str, layers: Sequence[int], draft_vocab: Tensor) -> Student:
    """A trimmed student that begins as these layers of the target. Raises InvalidArgument, ModelError."""
    causal = load_causal(target)
    keep_layers(causal, layers)
    norm = _final_norm(causal)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.mul_(_NORM_SCALE)
    return Student(causal, draft_vocab)


def from_config(file: Path, target: str) -> Student:
    """A plain student of a configuration (config.json of transformers), drawn at random.

    Draws from torch's global generator. Raises InvalidArgument, ModelError.
    """
    try:
        values = json.loads(file.read_text())
        config = AutoConfig.for_model(values.pop("model_type"), **values)
        check_supported(config)
        tokens = len(load_tokenizer(target))
        if config.vocab_size < tokens:
            raise InvalidArgument("--config", f"{file}: vocab_size must be at least {tokens} (got {config.vocab_size})")
        return Student(AutoModelForCausalLM.from_config(config))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidArgument("--config", f"{file} is no configuration of transformers: {error}") from error


def from_model(folder: str, target: str) -> Student:
    """A student that goes on from a model: a trimmed draft, or a plain model with the target's tokenizer.

    Raises Incompatible if its vocabulary is another than the target's, ModelError if it cannot be loaded.
    """
    source = resolve(folder)
    draft = trimmed.read_config(source)
    theirs = draft["vocab_fingerprint"] if draft else vocab_fingerprint(load_tokenizer(folder))
    check_vocabulary("--init", folder, theirs, target)
    if not draft:
        return Student(load_causal(folder))
    causal = load_causal(target)
    keep_layers(causal, range(draft["num_hidden_layers"]))
    weights = load_file(Path(source) / "model.safetensors")
    if "draft_vocab" not in weights:
        raise ModelError(f"{folder}: the weights do not fit the student: draft_vocab")
    student = Student(causal, weights.pop("draft_vocab"))
    student.load(weights, folder)
    return student


def check_vocabulary(field: str, name: str, fingerprint: str, target: str) -> None:
    """Raise Incompatible unless `name` has the vocabulary of the target."""
    wanted = vocab_fingerprint(load_tokenizer(target))
    if fingerprint != wanted:
        raise Incompatible(
            f"{field}: {name} has another vocabulary (fingerprint {fingerprint[:12]}) than --target {target} "
            f"({wanted[:12]}); both must map the same ids to the same tokens"
        )


def keep_layers(causal: Any, layers: Sequence[int]) -> None:
    """Cut the model to some of its decoder layers, in the order given."""
    config, base = causal.config, causal.base_model
    depth = len(base.layers)
    if not layers or not all(0 <= layer < depth for layer in layers):
        raise InvalidArgument("--layers", f"must be 0 to {depth - 1}, the target's (got {list(layers)})")
    base.layers = nn.ModuleList(base.layers[layer] for layer in layers)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[layer] for layer in layers]
    config.num_hidden_layers = len(layers)


def _final_norm(causal: Any) -> nn.Module:
    base = causal.base_model
    norm: nn.Module = base.norm if hasattr(base, "norm") else base.final_layer_norm
    return norm
