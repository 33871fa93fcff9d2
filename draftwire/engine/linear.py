"""Linear layers for the few rows of a decode step on a CPU.

Such a step is bound by reading the weights. Most checkpoints are published in bfloat16, and float16 holds the same
values: only weights below 2^-17 lose anything, at most 2^-25, far less than float32 rounds in a dot product. So a
float32 model may keep such weights in float16, in the tiled layout of FBGEMM, which widens them to float32 in
registers: half the traffic, the same arithmetic, and a step of six rows costs hardly more than a step of one. Layers
whose weights float16 would round further stay as they are.
"""

import warnings

import torch
from torch import Tensor, nn

#: Half the spacing of float16's smallest numbers: all that a bfloat16 weight can lose.
_LARGEST_LOSS = 2.0**-25


class PackedLinear(nn.Module):
    """y = x W^T + b in float32, W kept in float16. Made by `pack_linears` where that loses nothing."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight, self._bias = linear.weight.detach(), linear.bias
        # Both functions run the same kernel. The first is quicker to call, the second uses all threads.
        self._single_threaded = torch.get_num_threads() == 1 and hasattr(torch, "fbgemm_pack_gemm_matrix_fp16")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the first one is deprecated in favour of the second
            if self._single_threaded:
                self._packed = torch.fbgemm_pack_gemm_matrix_fp16(weight)
                self(weight.new_zeros(1, self.in_features))  # warns once, here
            else:
                self._packed = torch.ops.quantized.linear_prepack_fp16(weight, self._bias)

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., in_features], float32. Returns [..., out_features]."""
        if self._single_threaded:
            return torch.fbgemm_linear_fp16_weight_fp32_activation(x, self._packed, self._bias)
        return torch.ops.quantized.linear_dynamic_fp16(x, self._packed)  # type: ignore[no-any-return]


def pack_linears(model: nn.Module) -> int:
    """Replace every linear layer of a float32 CPU model whose weights float16 holds. Returns how many were replaced."""
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        return 0
    replaced = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and _is_packable(child.weight):
                setattr(parent, name, PackedLinear(child))
                replaced += 1
    return replaced


def _is_packable(weight: Tensor) -> bool:
    if weight.dtype != torch.float32 or weight.device.type != "cpu":
        return False
    loss = (weight.half().float() - weight).abs().max()
    return bool(loss <= _LARGEST_LOSS)  # false for the infinities that large weights become, too
