"""From a model's name to an engine that is ready to run."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from draftwire.engine import trimmed
from draftwire.engine.base import Chunk, Engine
from draftwire.engine.fake import FakeEngine
from draftwire.engine.invariance import MAX_ROWS, check_engine, find_row_multiple
from draftwire.engine.linear import pack_linears
from draftwire.engine.native import NativeEngine
from draftwire.engine.supported import check_supported
from draftwire.errors import InvalidArgument, ModelError
from draftwire.fake_model import PREFIX, FakeModel
from draftwire.models import resolve
from draftwire.types import ModelInfo
from draftwire.vocab import vocab_fingerprint

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_engine(
    model: str,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    num_slots: int,
    max_model_len: int | None = None,
    max_batched_tokens: int,
    batch_invariant: bool = False,
    threads: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Engine:
    """Load a model. Call it on the thread that will own the engine.

    Args:
        model: "fake:...", "embedded-target", "embedded-draft", a local folder or a hub id.
        dtype: "float32", "bfloat16", or "auto": bfloat16 on a GPU, float32 on a CPU, where it is as quick
            (draftwire.engine.linear) and exact.
        device: as torch names it: "cpu", "cuda", "cuda:1".
        num_slots: sequences that it can hold at once.
        max_model_len: longest sequence, tokens; None = all that the model was made for.
        max_batched_tokens: most tokens in one forward; batch-invariant mode may lower it.
        batch_invariant: a row's logits are the same bits whatever shares its forward.
        threads: CPU threads for one operation; None leaves torch's setting.
        progress: told in a few words what is being done.

    Raises ModelError if the model is missing or not supported, InvalidArgument if a value does not suit it.
    """
    tell = progress or (lambda _: None)
    if threads is not None:
        torch.set_num_threads(threads)
    if model.startswith(PREFIX):
        return _fake_engine(FakeModel.parse(model), num_slots, max_model_len, max_batched_tokens)
    torch_device, torch_dtype = _device(device), _dtype(dtype, device)
    tell(f"loading {model}")
    loaded = _load(model, resolve(model), torch_dtype, torch_device)
    limit = loaded.module.config.max_position_embeddings
    if max_model_len is not None and not 1 <= max_model_len <= limit:
        raise InvalidArgument("--max-model-len", f"must be 1 to {limit}, the limit of {model} (got {max_model_len})")
    if torch_dtype == torch.float32:
        pack_linears(loaded.module)
    row_multiple = find_row_multiple(loaded.module) if batch_invariant else None
    if row_multiple:
        max_batched_tokens = min(max_batched_tokens, MAX_ROWS // row_multiple * row_multiple)
    engine = NativeEngine(
        loaded.module,
        dataclasses.replace(loaded.info, max_model_len=max_model_len or limit),
        num_slots=num_slots,
        max_batched_tokens=max_batched_tokens,
        row_multiple=row_multiple,
        head_vocab=loaded.head_vocab,
    )
    if batch_invariant:
        tell("checking that rows are batch-invariant")
        check_engine(engine)
    tell("warming up")
    _warm_up(engine)
    return engine


@dataclasses.dataclass(frozen=True, slots=True)
class _Loaded:
    """A transformers model with what an engine says about it; head_vocab as in NativeEngine."""

    module: Any
    info: ModelInfo
    head_vocab: Tensor | None


def _load(model: str, source: str, dtype: torch.dtype, device: torch.device) -> _Loaded:
    """Read configuration, tokenizer and weights of a folder or hub id."""
    draft = trimmed.read_config(source)
    base = resolve(draft["base_model"]) if draft else source
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(base)
        check_supported(config)
        if draft:
            config.num_hidden_layers = draft["num_hidden_layers"]
        tokenizer = AutoTokenizer.from_pretrained(base)
        module = AutoModelForCausalLM.from_pretrained(base, config=config, dtype=dtype).eval()
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise ModelError(_not_loaded(model, base, error)) from error
    finally:
        transformers_logging.set_verbosity(level)
    fingerprint = vocab_fingerprint(tokenizer)
    head_vocab = None
    if draft:
        if draft["vocab_fingerprint"] != fingerprint:
            raise ModelError(
                f"{model}: its base model {draft['base_model']} has another vocabulary than it was made for"
            )
        head_vocab = trimmed.fit(module, source).to(device)
    info = ModelInfo(
        name=Path(model).name,
        vocab_fingerprint=fingerprint,
        vocab_size=min(len(tokenizer), config.vocab_size),
        max_model_len=config.max_position_embeddings,
        eos_token_ids=_eos_token_ids(module),
        engine="native",
        dtype=str(dtype).removeprefix("torch."),
    )
    return _Loaded(module.to(device), info, head_vocab)


def _not_loaded(model: str, source: str, error: Exception) -> str:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    where = (
        f"the folder {source}"
        if Path(source).is_dir()
        else f"{source!r} as a local folder (there is none) and as a hub id"
    )
    return (
        f"{model}: cannot be loaded. Tried {where}: {reason}. Name a folder in transformers' format, or embedded-target"
    )


def _eos_token_ids(module: Any) -> tuple[int, ...]:
    value = module.generation_config.eos_token_id
    if value is None:
        value = module.config.eos_token_id
    return tuple(value) if isinstance(value, list | tuple) else () if value is None else (value,)


def _device(device: str) -> torch.device:
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise InvalidArgument("--device", f"{device!r} is not a device: {error}") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise InvalidArgument("--device", f"{device!r}: torch sees no GPU here")
    return chosen


def _dtype(dtype: str, device: str) -> torch.dtype:
    if dtype == "auto":
        return torch.float32 if device == "cpu" else torch.bfloat16
    if dtype not in _DTYPES:
        raise InvalidArgument("--dtype", f"must be auto, float32 or bfloat16 (got {dtype!r})")
    return _DTYPES[dtype]


def _fake_engine(model: FakeModel, num_slots: int, max_model_len: int | None, max_batched_tokens: int) -> FakeEngine:
    if max_model_len is not None:
        if not 1 <= max_model_len <= model.max_model_len:
            raise InvalidArgument("--max-model-len", f"must be 1 to {model.max_model_len} (got {max_model_len})")
        model = dataclasses.replace(model, max_model_len=max_model_len)
    return FakeEngine(model, num_slots=num_slots, max_batched_tokens=max_batched_tokens)


def _warm_up(engine: Engine) -> None:
    """One token through the model, so that the first request does not pay for lazy initialisation."""
    taken = engine.acquire([0])
    assert taken is not None  # a new engine has free slots
    engine.forward([Chunk(taken[0], 0, [0], 1)])
    engine.release(taken[0])
