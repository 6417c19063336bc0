"""Linear layers whose weights are stored in the order the CPU's kernel reads them.

A few rows times a large matrix is bound by reading the matrix. oneDNN reads its own blocked layout about twice as
fast as rows of a plain tensor (measured: docs/log.md), and for float32 also rounds alike for most numbers of rows.
The plain copy is dropped, so memory does not grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import nn

ROWS_HINT = 8
"""Rows the layout is chosen for: about what verification feeds. Measured fastest from 1 to 16 rows."""


class PackedLinear(nn.Module):  # type: ignore[misc]
    """y = x weight^T + bias with `weight` [out, in] kept in oneDNN's blocked layout."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), ROWS_HINT)
        self.bias = None if bias is None else bias.detach()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., in] -> [..., out]."""
        return torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")

    @property
    def weight(self) -> torch.Tensor:
        """A plain copy, for modules that look at their weights. Slow, and not stored."""
        return self.packed.to_dense()

    def extra_repr(self) -> str:
        """As nn.Linear's."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def has_fast_bfloat16() -> bool:
    """Whether the CPU's kernels read bfloat16 weights as they are."""
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):
        return False


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether this build of torch and this CPU multiply by packed weights of `dtype`, and get it right."""
    if dtype not in (torch.float32, torch.bfloat16) or not torch.backends.mkldnn.is_available():
        return False
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn((48, 40), generator=generator)
    rows = torch.randn((3, 40), generator=generator)
    expected = rows @ weight.T
    if dtype is torch.bfloat16 and not has_fast_bfloat16():
        return False
    try:
        found = PackedLinear(weight.to(dtype), None)(rows.to(dtype)).float()
    except (AttributeError, RuntimeError):
        return False
    return bool((found - expected).abs().max() < (0.5 if dtype is torch.bfloat16 else 1e-3))


def joined(linears: Sequence[Any]) -> nn.Module:
    """One linear layer whose output is the outputs of `linears` side by side; packed where that is served.

    All have a bias, or none has.
    """
    weight = linears[0].weight if len(linears) == 1 else torch.cat([linear.weight for linear in linears])
    bias = None if linears[0].bias is None else torch.cat([linear.bias for linear in linears])
    if weight.device.type == "cpu" and can_pack(weight.dtype):
        return PackedLinear(weight, bias)
    return plain_linear(weight, bias)


def plain_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    """An nn.Linear around existing tensors."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return linear


def pack_linears(model: nn.Module) -> int:
    """Replace every plain nn.Linear on the CPU by a packed one, in place; returns how many.

    Subclasses and layers with hooks keep their own forward. A weight that something else also uses (a tied
    embedding) stays there as it is.
    """
    packed: dict[nn.Module, PackedLinear] = {}
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child not in packed and _is_plain(child):
                packed[child] = PackedLinear(child.weight, child.bias)
                child.weight = None
            if child in packed:
                setattr(parent, name, packed[child])
    return len(packed)


def _is_plain(module: Any) -> bool:
    if type(module) is not nn.Linear or module.weight.device.type != "cpu":
        return False
    return can_pack(module.weight.dtype) and not (module._forward_hooks or module._forward_pre_hooks)
