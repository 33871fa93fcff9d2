"""Linear layers of which every rank holds a part, and how a model that transformers sharded comes to consist of them.

`from_pretrained` with a DistributedConfig reads only this rank's part of each weight, by the plan that comes with the
architecture, and hooks into every forward to wrap and unwrap distributed tensors. Inference needs none of that, so
`localise` keeps the parts as plain tensors in the layers below: one collective each, nothing else. What they hold is an
ordinary linear layer, which can be packed (`draftwire.engine.linear`) and tried alone (`draftwire.engine.invariance`).
"""

import functools
import re
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from draftwire.errors import ModelError


class ColumnParallel(nn.Module):
    """Each rank computes some of the outputs.

    Args:
        linear: this rank's rows of the weight, with their bias.
        gather: whether the next layer needs all outputs on every rank.
    """

    def __init__(self, linear: nn.Module, *, gather: bool) -> None:
        super().__init__()
        self.linear = linear
        self._gather = gather

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., in], the same on every rank. Returns this rank's [..., out / N], or all [..., out]."""
        part: Tensor = self.linear(x)
        return torch.cat(_parts(part), dim=-1) if self._gather else part


class RowParallel(nn.Module):
    """Each rank has some of the inputs; the outputs are the sum over ranks.

    Args:
        linear: this rank's columns of the weight, no bias.
        bias: [out], or None.
        split: whether x comes whole, so that this rank takes its part of it.
        ordered: add in the order of ranks. An all-reduce adds in an order that depends on where in the tensor an
            element lies, so with three ranks or more a row's last bits would depend on the rows before it.
    """

    def __init__(self, linear: nn.Module, bias: Tensor | None, *, split: bool, ordered: bool) -> None:
        super().__init__()
        self.linear = linear
        self._bias = bias
        self._split = split
        self._ordered = ordered

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., in / N], or [..., in] if it is split here. Returns [..., out], the same on every rank."""
        if self._split:
            x = x.chunk(dist.get_world_size(), dim=-1)[dist.get_rank()].contiguous()
        total: Tensor = self.linear(x)
        if self._ordered:
            total = functools.reduce(torch.add, _parts(total))
        else:
            dist.all_reduce(total)
        return total if self._bias is None else total + self._bias


def _parts(part: Tensor) -> list[Tensor]:
    """Every rank's part, in the order of ranks."""
    part = part.contiguous()
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part)
    return parts


def localise(model: Any, *, ordered: bool) -> int:
    """Replace the sharded layers of a transformers model by the ones above. Returns how many key heads are here.

    A tied model's embedding is sharded like its head; it is gathered, which costs memory once and no collective a step.
    `ordered` as in RowParallel. Raises ModelError if the plan has something that is not known here.
    """
    size = dist.get_world_size()
    for name, module in list(model.named_modules()):
        if isinstance(getattr(module, "weight", None), DTensor):
            parent, _, child = name.rpartition(".")
            style = model.tp_plan.get(_pattern(name), "")
            setattr(model.get_submodule(parent), child, _local(name, module, style, ordered))
    config = model.config
    heads: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    keys = ("k_proj", "qkv_proj", "query_key_value")
    split = any(name.endswith(keys) and style == "colwise" for name, style in model.tp_plan.items())
    return heads // size if split else heads


def _local(name: str, module: Any, style: str, ordered: bool) -> nn.Module:
    if isinstance(module, nn.Embedding):
        table: Any = module.weight
        module.weight = nn.Parameter(table.full_tensor(), requires_grad=False)
        del module.forward  # the hook
        return module
    if not isinstance(module, nn.Linear):
        raise ModelError(f"tensor parallelism of {name} ({type(module).__name__}, {style}) is not supported")
    weight, bias = _tensor(module.weight), _tensor(module.bias)
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if style in ("colwise", "colwise_gather_output"):
        if bias is not None:
            linear.bias = nn.Parameter(bias, requires_grad=False)
        return ColumnParallel(linear, gather=style == "colwise_gather_output")
    if style in ("rowwise", "rowwise_split_input"):
        return RowParallel(linear, bias, split=style == "rowwise_split_input", ordered=ordered)
    raise ModelError(f"tensor parallelism of {name} by {style!r} is not supported")


def _tensor(parameter: Any) -> Any:
    """This rank's part of a parameter as a plain tensor; None stays None."""
    return parameter.to_local().detach() if isinstance(parameter, DTensor) else parameter


def _pattern(name: str) -> str:
    """layers.3.mlp -> layers.*.mlp, as plans name layers."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)
