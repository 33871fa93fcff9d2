"""bfloat16 linear layers for batches on a CPU with matrix tiles (AMX).

torch lays a weight out for the tiles anew in every call, which takes longer than the product itself below a few hundred
rows. Here it is done once. The arithmetic is oneDNN's, as in torch's own bfloat16 layers.
"""

from typing import Any

import torch
from torch import Tensor, nn

from distill.hardware import has_tiles


class PackedLinear(nn.Module):
    """y = x W^T + b in bfloat16, W in the layout that oneDNN's kernels want. Made by `pack_linears`."""

    def __init__(self, linear: nn.Linear, rows: int) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._bias = linear.bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), rows)

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., in_features], bfloat16. Returns [..., out_features]."""
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return y


def pack_linears(
    model: Any,
    rows: int,  # of a usual batch, for which the layout is chosen
) -> int:
    """Replace the linear layers of a bfloat16 CPU model where this pays. Returns how many were replaced."""
    if model.dtype != torch.bfloat16 or model.device.type != "cpu" or not has_tiles():
        return 0
    replaced = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, PackedLinear(child, rows))
                replaced += 1
    return replaced
