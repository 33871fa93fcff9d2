"""What the hardware is quick with. torch has no public names for it, so another version may lack some of these."""

import torch

from draftwire.engine.pretrained import resolve_device


def has_tiles() -> bool:
    """Whether this CPU multiplies bfloat16 matrices in tiles (AMX)."""
    return _cpu_says("_is_amx_tile_supported")


def resolve_dtype(dtype: str, device: str) -> str:
    """What "auto" is: bfloat16 where the device multiplies it quicker than float32, else float32.

    A CPU does so in tiles or with AVX-512's instructions for it. Raises InvalidArgument if there is no such device.
    """
    if dtype != "auto":
        return dtype
    kind = resolve_device(device).type
    if kind == "cpu":
        is_quick = has_tiles() or _cpu_says("_is_avx512_bf16_supported")
    else:
        is_quick = kind != "cuda" or torch.cuda.is_bf16_supported()
    return "bfloat16" if is_quick else "float32"


def _cpu_says(name: str) -> bool:
    return bool(getattr(torch.cpu, name, lambda: False)())
