"""A transformers model, or a draft trimmed from one, in the native engine."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.distributed import DistributedConfig
from transformers.utils import logging as transformers_logging

from draftwire.engine import trimmed
from draftwire.engine.base import Chunk, Engine
from draftwire.engine.invariance import MAX_ROWS, check_engine, find_row_multiple
from draftwire.engine.linear import pack_linears
from draftwire.engine.native import NativeEngine
from draftwire.engine.supported import check_supported
from draftwire.errors import InvalidArgument, ModelError
from draftwire.models import resolve
from draftwire.types import ModelInfo
from draftwire.vocab import vocab_fingerprint

if TYPE_CHECKING:
    from draftwire.engine.parallel_group import Rank

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_pretrained(
    model: str,
    *,
    dtype: str,
    device: str,
    num_slots: int,
    max_model_len: int | None,
    max_batched_tokens: int,
    batch_invariant: bool,
    progress: Callable[[str], None],
) -> Engine:
    """What `draftwire.engine.load.load_engine` does for every model but a fake one; arguments and errors as there."""
    progress(f"loading {model}")
    engine = build_engine(
        model,
        dtype=dtype,
        device=device,
        num_slots=num_slots,
        max_model_len=max_model_len,
        max_batched_tokens=max_batched_tokens,
        batch_invariant=batch_invariant,
    )
    try_out(engine, batch_invariant=batch_invariant, progress=progress)
    return engine


def build_engine(
    model: str,
    *,
    dtype: str,
    device: str,
    num_slots: int,
    max_model_len: int | None,
    max_batched_tokens: int,
    batch_invariant: bool,
    rank: "Rank | None" = None,
    make: Callable[..., NativeEngine] = NativeEngine,
) -> NativeEngine:
    """An engine that has not run yet.

    Args:
        rank: our place among the processes that share the model, each of which calls this; None = we have it alone.
        make: the engine's class.
    """
    torch_device, torch_dtype = resolve_device(device, rank), _dtype(dtype, device)
    loaded = _load(model, torch_dtype, torch_device, rank)
    limit = loaded.module.config.max_position_embeddings
    if max_model_len is not None and not 1 <= max_model_len <= limit:
        raise InvalidArgument("--max-model-len", f"must be 1 to {limit}, the limit of {model} (got {max_model_len})")
    num_kv_heads = None
    if rank:
        from draftwire.engine.parallel_layers import localise  # noqa: PLC0415  not every torch has torch.distributed

        rank.agree("loaded", 0)  # localise may gather, which waits for the others far less long than this does
        num_kv_heads = localise(loaded.module, ordered=batch_invariant)
    if torch_dtype == torch.float32:
        pack_linears(loaded.module)
    row_multiple = find_row_multiple(loaded.module) if batch_invariant else 0
    if rank:
        row_multiple = rank.agree("row multiple", row_multiple)
    if row_multiple:
        max_batched_tokens = min(max_batched_tokens, MAX_ROWS // row_multiple * row_multiple)
    return make(
        loaded.module,
        dataclasses.replace(loaded.info, max_model_len=max_model_len or limit),
        num_slots=num_slots,
        max_batched_tokens=max_batched_tokens,
        row_multiple=row_multiple or None,
        head_vocab=loaded.head_vocab,
        num_kv_heads=num_kv_heads,
    )


def try_out(engine: Engine, *, batch_invariant: bool, progress: Callable[[str], None]) -> None:
    """Its first forwards. Raises ModelError if it should be batch-invariant and is not."""
    if batch_invariant:
        progress("checking that rows are batch-invariant")
        check_engine(engine)
    progress("warming up")
    _warm_up(engine)


def read_config(model: str, source: str) -> Any:
    """The configuration in a folder or hub id; `model` is its name for messages.

    Raises ModelError if it cannot be read or is not supported.
    """
    with _readable(model, source):
        config = AutoConfig.from_pretrained(source)
        check_supported(config)
    return config


@dataclasses.dataclass(frozen=True, slots=True)
class _Loaded:
    """A transformers model with what an engine says about it; head_vocab as in NativeEngine."""

    module: Any
    info: ModelInfo
    head_vocab: Tensor | None


def _load(model: str, dtype: torch.dtype, device: torch.device, rank: "Rank | None") -> _Loaded:
    """Read configuration, tokenizer and weights of a folder or hub id; of the weights only the rank's part."""
    source = resolve(model)
    draft = trimmed.read_config(source)
    base = resolve(draft["base_model"]) if draft else source
    sharding = {"distributed_config": DistributedConfig(tp_size=rank.job.size)} if rank else {}
    config = read_config(model, base)
    if draft:
        config.num_hidden_layers = draft["num_hidden_layers"]
    with _readable(model, base):
        tokenizer = AutoTokenizer.from_pretrained(base)
        module = AutoModelForCausalLM.from_pretrained(base, config=config, dtype=dtype, **sharding).eval()
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


@contextmanager
def _readable(model: str, source: str) -> Iterator[None]:
    """transformers reads something: quietly, and what it cannot read becomes a ModelError."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise ModelError(_not_loaded(model, source, error)) from error
    finally:
        transformers_logging.set_verbosity(level)


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


def resolve_device(device: str, rank: "Rank | None" = None) -> torch.device:
    """Where a model runs: a process of a group has the device of its rank. Raises InvalidArgument, naming --device."""
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise InvalidArgument("--device", f"{device!r} is not a device: {error}") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise InvalidArgument("--device", f"{device!r}: torch sees no GPU here")
    return torch.device(chosen.type, rank.job.rank) if rank and chosen.type != "cpu" else chosen


def _dtype(dtype: str, device: str) -> torch.dtype:
    if dtype == "auto":
        return torch.float32 if device == "cpu" else torch.bfloat16
    if dtype not in _DTYPES:
        raise InvalidArgument("--dtype", f"must be auto, float32 or bfloat16 (got {dtype!r})")
    return _DTYPES[dtype]


def _warm_up(engine: Engine) -> None:
    """One token through the model, so that the first request does not pay for lazy initialisation."""
    taken = engine.acquire([0])
    assert taken is not None  # a new engine has free slots
    engine.forward([Chunk(taken[0], 0, [0], 1)])
    engine.release(taken[0])
