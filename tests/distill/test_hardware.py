"""What "auto" becomes, by what the hardware says of itself."""

import pytest
import torch

from distill.hardware import has_tiles, resolve_dtype
from draftwire.errors import InvalidArgument

TILES, VECTORS = "_is_amx_tile_supported", "_is_avx512_bf16_supported"


@pytest.mark.parametrize(
    ("supported", "dtype"),
    [((), "float32"), ((TILES,), "bfloat16"), ((VECTORS,), "bfloat16"), ((TILES, VECTORS), "bfloat16")],
)
def test_a_cpu(monkeypatch, supported, dtype):
    """bfloat16 where it has instructions for it, whichever."""
    for name in (TILES, VECTORS):
        monkeypatch.setattr(torch.cpu, name, lambda name=name: name in supported, raising=False)
    assert resolve_dtype("auto", "cpu") == dtype
    assert has_tiles() is (TILES in supported)


def test_a_torch_that_cannot_tell(monkeypatch):
    """Its private names are gone: float32, which is right everywhere."""
    for name in (TILES, VECTORS):
        monkeypatch.delattr(torch.cpu, name, raising=False)
    assert resolve_dtype("auto", "cpu") == "float32"
    assert not has_tiles()


@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_a_gpu(monkeypatch, has_bfloat16):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: has_bfloat16)
    assert resolve_dtype("auto", "cuda:1") == ("bfloat16" if has_bfloat16 else "float32")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_asked_for(dtype):
    """Is taken, whatever the hardware."""
    assert resolve_dtype(dtype, "cpu") == dtype


@pytest.mark.parametrize(("device", "problem"), [("abacus", "is not a device"), ("cuda", "torch sees no GPU here")])
def test_no_such_device(monkeypatch, device, problem):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidArgument, match=f"--device: '{device}'.*{problem}"):
        resolve_dtype("auto", device)
