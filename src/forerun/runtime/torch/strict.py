"""Rows whose bits do not depend on their company.

Padding every pass to one number of rows makes each matrix kernel's shape constant; what is left are element-wise
functions. torch splits a large tensor among threads wherever the count falls, and computes a vector's tail with
another exp than its body, so the same input rounds differently at different offsets (seen for silu and gelu from
3 threads on). Applied to one row at a time they see the same offsets every time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from forerun.errors import UnsupportedModelError
from forerun.runtime.torch.support import setting

STRICT_ROWS = 8
"""Rows of every strict pass. Fewer would cut verification of ordinary drafts in two; 16 cost a third more time."""

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def check_strict(config: Any) -> None:
    """Refuse what cannot be strict: rows routed to one expert share a kernel call, whose shape they decide."""
    if any((setting(config, name) or 0) > 1 for name in _EXPERTS):
        raise UnsupportedModelError(
            "strict is not served for mixtures of experts",
            "the rows that share an expert decide each other's kernel shapes",
            "leave out strict",
        )


class Rowwise(nn.Module):  # type: ignore[misc]
    """Applies an element-wise function to each row [..., size] on its own."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Same shape as `x`."""
        rows = x.reshape(-1, x.shape[-1])
        return torch.stack([self.function(row.contiguous()) for row in rows]).view(x.shape)


def make_rowwise(model: nn.Module) -> None:
    """Wrap every activation function of `model`, in place."""
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if _is_activation(child):
                setattr(parent, name, Rowwise(child))


def _is_activation(module: nn.Module | None) -> bool:
    home = type(module).__module__
    known = home in ("transformers.activations", "torch.nn.modules.activation")
    return known and module is not None and not any(True for _ in module.parameters())
