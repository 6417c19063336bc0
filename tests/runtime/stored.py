"""Float weights as the bytes of any type that the native runtime serves, and back: what `gguf` lacks is Q4_K and Q6_K.

The two are rounded in the plainest way (no search for better scales); which weights a file holds is all that matters.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K")


def store(values: np.ndarray, type_name: str) -> np.ndarray:
    """Rows [n, k] float32 as stored bytes [n, bytes per row]."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    if type_name in ("Q4_K", "Q6_K"):
        blocks = values.reshape(len(values), -1, 256)
        return (_q4_k if type_name == "Q4_K" else _q6_k)(blocks).reshape(len(values), -1)
    return np.ascontiguousarray(quantize(values, GGMLQuantizationType[type_name])).view(np.uint8)


def restore(data: np.ndarray, type_name: str) -> np.ndarray:
    """Stored bytes [n, bytes per row] as float32 [n, k]."""
    return dequantize(data, GGMLQuantizationType[type_name])


def rounded(module: Any, type_of: Any) -> Any:
    """A transformers model whose matrices are what a file would hold: `type_of(name, values)` names each one's type."""
    import torch

    with torch.no_grad():
        for name, weight in module.named_parameters():
            if weight.ndim == 2:
                values, kind = weight.numpy(), type_of(name)
                weight.copy_(torch.from_numpy(restore(store(values, kind), kind)))
    return module


def _q4_k(blocks: np.ndarray) -> np.ndarray:
    """[n, blocks, 256] -> [n, blocks, 144]: float16 d and dmin, 8 groups' 6-bit scales and minima, 4-bit codes."""
    groups = blocks.reshape(*blocks.shape[:2], 8, 32)
    low = np.minimum(groups.min(-1), 0.0)
    step = (groups.max(-1) - low) / 15
    d, dmin = _half(step.max(-1, keepdims=True) / 63), _half((-low).max(-1, keepdims=True) / 63)
    scales, minima = _codes(step / _safe(d), 63), _codes(-low / _safe(dmin), 63)
    base = (dmin * minima)[..., None]
    codes = _codes((groups + base) / _safe((d * scales)[..., None]), 15)
    packed = np.zeros((*blocks.shape[:2], 12), dtype=np.uint8)
    packed[..., 0:4] = scales[..., :4] | (scales[..., 4:] >> 4) << 6
    packed[..., 4:8] = minima[..., :4] | (minima[..., 4:] >> 4) << 6
    packed[..., 8:12] = (scales[..., 4:] & 15) | (minima[..., 4:] & 15) << 4
    pairs = codes.reshape(*blocks.shape[:2], 4, 2, 32)
    nibbles = (pairs[..., 0, :] | pairs[..., 1, :] << 4).reshape(*blocks.shape[:2], 128)
    return np.concatenate([_bytes(d), _bytes(dmin), packed, nibbles], axis=-1)


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    """[n, blocks, 256] -> [n, blocks, 210]: low 4 bits, high 2 bits, int8 scales of 16 groups, float16 d."""
    groups = blocks.reshape(*blocks.shape[:2], 16, 16)
    step = np.abs(groups).max(-1) / 31
    d = _half(step.max(-1, keepdims=True) / 127)
    scales = np.rint(step / _safe(d)).clip(1, 127)
    codes = (np.rint(groups / _safe((d * scales)[..., None])).clip(-32, 31) + 32).astype(np.uint8)
    quarters = codes.reshape(*blocks.shape[:2], 2, 4, 32)  # [half, quarter, 32]
    first, second, third, fourth = (quarters[..., i, :] for i in range(4))
    low = np.concatenate([(first & 15) | (third & 15) << 4, (second & 15) | (fourth & 15) << 4], axis=-1)
    high = first >> 4 | (second >> 4) << 2 | (third >> 4) << 4 | (fourth >> 4) << 6
    shape = blocks.shape[:2]
    return np.concatenate(
        [low.reshape(*shape, 128), high.reshape(*shape, 64), scales.astype(np.int8).view(np.uint8), _bytes(d)], axis=-1
    )


def _half(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16).astype(np.float32)


def _safe(values: np.ndarray) -> np.ndarray:
    return np.where(values == 0, 1, values)


def _codes(values: np.ndarray, largest: int) -> np.ndarray:
    return np.rint(values).clip(0, largest).astype(np.uint8)


def _bytes(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values.astype(np.float16)).view(np.uint8)
