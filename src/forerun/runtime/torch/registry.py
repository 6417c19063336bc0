"""Our two entries in transformers' attention registries, made once."""

from __future__ import annotations

from functools import cache

from forerun.runtime.torch.attention import ATTENTION, interface
from forerun.runtime.torch.support import PROBE, recording_attention, recording_mask

__all__ = ["ATTENTION", "PROBE", "register"]


@cache
def register() -> None:
    """Make the names known to transformers. Ours has no mask function: a model then builds no mask at all."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(ATTENTION, interface)
    AttentionInterface.register(PROBE, recording_attention)
    AttentionMaskInterface.register(PROBE, recording_mask)
