"""Float weights as the bytes of any type that the native runtime serves, and back: what `gguf` lacks are the K and IQ4
types.

They are rounded in the plainest way (no search for better scales); which weights a file holds is all that matters.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import IQ4_NL, dequantize, quantize

TYPES = (
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ4_NL", "IQ4_XS", "MXFP4"),
)


def store(values: np.ndarray, type_name: str) -> np.ndarray:
    """Rows [n, k] float32 as stored bytes [n, bytes per row]."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    if type_name in _ENCODERS:
        size, encode = _ENCODERS[type_name]
        return encode(values.reshape(len(values), -1, size)).reshape(len(values), -1)
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


def _q4_k(blocks: np.ndarray, bits: int = 4) -> np.ndarray:
    """[n, blocks, 256] -> [n, blocks, 144]: float16 d and dmin, 8 groups' 6-bit scales and minima, 4-bit codes; with
    5 bits, 32 bytes of fifth ones before these."""
    groups = blocks.reshape(*blocks.shape[:2], 8, 32)
    d, dmin, scales, minima, codes = _with_minima(groups, 63, 2**bits - 1)
    packed = np.zeros((*blocks.shape[:2], 12), dtype=np.uint8)
    packed[..., 0:4] = scales[..., :4] | (scales[..., 4:] >> 4) << 6
    packed[..., 4:8] = minima[..., :4] | (minima[..., 4:] >> 4) << 6
    packed[..., 8:12] = (scales[..., 4:] & 15) | (minima[..., 4:] & 15) << 4
    fifth = np.packbits(codes >> 4, axis=-2, bitorder="little")[..., 0, :][..., : 32 * (bits - 4)]
    pairs = codes.reshape(*blocks.shape[:2], 4, 2, 32) & 15
    nibbles = (pairs[..., 0, :] | pairs[..., 1, :] << 4).reshape(*blocks.shape[:2], 128)
    return np.concatenate([_bytes(d), _bytes(dmin), packed, fifth, nibbles], axis=-1)


def _q2_k(blocks: np.ndarray) -> np.ndarray:
    """[n, blocks, 256] -> [n, blocks, 84]: 16 groups' 4-bit scales and minima, 2-bit codes, float16 d and dmin."""
    d, dmin, scales, minima, codes = _with_minima(blocks.reshape(*blocks.shape[:2], 16, 16), 15, 3)
    return np.concatenate([scales | minima << 4, _two_bits(codes), _bytes(d), _bytes(dmin)], axis=-1)


def _q3_k(blocks: np.ndarray) -> np.ndarray:
    """[n, blocks, 256] -> [n, blocks, 110]: third bits, low 2 bits, 16 groups' 6-bit scales, float16 d."""
    groups = blocks.reshape(*blocks.shape[:2], 16, 16)
    step = np.abs(groups).max(-1) / 4
    d = _half(step.max(-1, keepdims=True) / 31)
    scales = np.rint(step / _safe(d)).clip(1, 31)
    codes = (np.rint(groups / _safe((d * scales)[..., None])).clip(-4, 3) + 4).astype(np.uint8)
    third = np.packbits((codes >> 2).reshape(*blocks.shape[:2], 8, 32), axis=-2, bitorder="little")[..., 0, :]
    six = (scales + 32).astype(np.uint8)
    low, high = six[..., :8] & 15 | (six[..., 8:] & 15) << 4, six.reshape(*six.shape[:2], 4, 4) >> 4
    high = high[..., 0, :] | high[..., 1, :] << 2 | high[..., 2, :] << 4 | high[..., 3, :] << 6
    return np.concatenate([third, _two_bits(codes & 3), low, high, _bytes(d)], axis=-1)


def _iq4_nl(blocks: np.ndarray) -> np.ndarray:
    """[n, blocks, 32] -> [n, blocks, 18]: float16 d, codes of the nearest values."""
    d = _half(np.abs(blocks).max(-1, keepdims=True) / 113)
    return np.concatenate([_bytes(d), _nearest(blocks, d)], axis=-1)


def _iq4_xs(blocks: np.ndarray) -> np.ndarray:
    """[n, blocks, 256] -> [n, blocks, 136]: float16 d, 8 groups' 6-bit scales (2 high bits first), nearest values."""
    groups = blocks.reshape(*blocks.shape[:2], 8, 32)
    step = np.abs(groups).max(-1) / 113
    d = _half(step.max(-1, keepdims=True) / 31)
    scales = np.rint(step / _safe(d)).clip(1, 31)
    six = (scales + 32).astype(np.uint16)
    high = ((six >> 4) << 2 * np.arange(8, dtype=np.uint16)).sum(-1, keepdims=True, dtype=np.uint16)
    low = (six[..., 0::2] & 15 | (six[..., 1::2] & 15) << 4).astype(np.uint8)
    codes = _nearest(groups, (d * scales)[..., None]).reshape(*blocks.shape[:2], 128)
    return np.concatenate([_bytes(d), high.view(np.uint8), low, codes], axis=-1)


def _with_minima(groups: np.ndarray, largest_scale: int, largest_code: int) -> tuple[np.ndarray, ...]:
    """Float16 d and dmin, scales and minima in steps of them, and codes, of groups [n, blocks, groups, inputs]."""
    low = np.minimum(groups.min(-1), 0.0)
    step = (groups.max(-1) - low) / largest_code
    d = _half(step.max(-1, keepdims=True) / largest_scale)
    dmin = _half((-low).max(-1, keepdims=True) / largest_scale)
    scales, minima = _codes(step / _safe(d), largest_scale), _codes(-low / _safe(dmin), largest_scale)
    base = (dmin * minima)[..., None]
    return d, dmin, scales, minima, _codes((groups + base) / _safe((d * scales)[..., None]), largest_code)


def _two_bits(codes: np.ndarray) -> np.ndarray:
    """256 codes of 2 bits as 64 bytes: four runs of 32 share 32 of them."""
    runs = codes.reshape(*codes.shape[:2], 2, 4, 32)
    packed = runs[..., 0, :] | runs[..., 1, :] << 2 | runs[..., 2, :] << 4 | runs[..., 3, :] << 6
    return packed.reshape(*codes.shape[:2], 64)


def _nearest(groups: np.ndarray, step: np.ndarray) -> np.ndarray:
    """32 codes of the IQ4 value nearest to each weight, as 16 bytes."""
    values = np.array(IQ4_NL.kvalues, np.float32)
    codes = np.abs((groups / _safe(step))[..., None] - values).argmin(-1).astype(np.uint8)
    return codes[..., :16] | codes[..., 16:] << 4


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


_ENCODERS = {
    "Q2_K": (256, _q2_k),
    "Q3_K": (256, _q3_k),
    "Q4_K": (256, _q4_k),
    "Q5_K": (256, lambda blocks: _q4_k(blocks, 5)),
    "Q6_K": (256, _q6_k),
    "IQ4_NL": (32, _iq4_nl),
    "IQ4_XS": (256, _iq4_xs),
}
