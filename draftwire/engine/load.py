"""From a model's name to an engine that is ready to run."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from draftwire.engine.base import Engine
from draftwire.engine.fake import FakeEngine
from draftwire.errors import InvalidArgument, Unavailable
from draftwire.fake_model import PREFIX, FakeModel


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
    tensor_parallel_size: int = 1,
    progress: Callable[[str], None] | None = None,
    on_loss: Callable[[Unavailable], None] | None = None,
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
        threads: CPU threads for one operation, over all processes; None leaves torch's setting.
        tensor_parallel_size: processes that share the model; this one starts the others.
        progress: told in a few words what is being done.
        on_loss: told, on any thread, when one of those processes is lost; the engine is of no use then.

    Raises ModelError if the model is missing or not supported, InvalidArgument if a value does not suit it, Unavailable
    if one of its processes was lost.
    """
    tell = progress or (lambda _: None)
    if threads is not None:
        torch.set_num_threads(threads)
    if model.startswith(PREFIX):
        if tensor_parallel_size > 1:
            raise InvalidArgument(
                "--tensor-parallel-size", f"a fake model runs in one process (got {tensor_parallel_size})"
            )
        return _fake_engine(FakeModel.parse(model), num_slots, max_model_len, max_batched_tokens)
    options: dict[str, Any] = {
        "dtype": dtype,
        "device": device,
        "num_slots": num_slots,
        "max_model_len": max_model_len,
        "max_batched_tokens": max_batched_tokens,
        "batch_invariant": batch_invariant,
    }
    # transformers' models take seconds to import
    if tensor_parallel_size > 1:
        from draftwire.engine.parallel import load_parallel  # noqa: PLC0415

        return load_parallel(
            model, size=tensor_parallel_size, progress=tell, on_loss=on_loss or (lambda _: None), **options
        )
    from draftwire.engine.pretrained import load_pretrained  # noqa: PLC0415

    return load_pretrained(model, progress=tell, **options)


def _fake_engine(model: FakeModel, num_slots: int, max_model_len: int | None, max_batched_tokens: int) -> FakeEngine:
    if max_model_len is not None:
        if not 1 <= max_model_len <= model.max_model_len:
            raise InvalidArgument("--max-model-len", f"must be 1 to {model.max_model_len} (got {max_model_len})")
        model = dataclasses.replace(model, max_model_len=max_model_len)
    return FakeEngine(model, num_slots=num_slots, max_batched_tokens=max_batched_tokens)
