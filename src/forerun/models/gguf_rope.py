"""Rotary positions as a GGUF file says them, for each layer."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from forerun.errors import FileFormatError
from forerun.models.decoder_model import ANOTHER_FILE, Rope, unsupported, yarn_scale
from forerun.models.gguf import GGUFFile
from forerun.models.gguf_families import FINETUNED, LOCAL_BASE, Family
from forerun.models.gguf_values import number, real

ROPE_FACTORS = "rope_freqs.weight"
"""Divisors of the rotary frequencies [num_rotated / 2], where the converter worked a scaling out (llama3)."""
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
"""The same for longrope: beyond the context that the model was first trained with, and within it."""
FACTORS = frozenset({ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS})


def read_ropes(
    file: GGUFFile, family: Family, num_rotated: int, windows: tuple[int, ...]
) -> tuple[tuple[Rope, ...], tuple[int, ...]]:
    """The rotary positions, and which of them each layer takes."""
    rope, num_layers = _rope(file, num_rotated), len(windows)
    local = real(file, LOCAL_BASE, family.local_base or rope.base)
    ropes: tuple[Rope, ...] = (rope,)
    layers = [0] * num_layers
    own_of_windows = Rope(local, num_rotated) if family.unscaled_locals else replace(rope, base=local)
    if any(windows) and own_of_windows != rope:
        if FACTORS & file.tensors.keys():
            raise unsupported(file, min(FACTORS & file.tensors.keys()), "rotary positions differ from layer to layer")
        ropes, layers = (rope, own_of_windows), [int(window > 0) for window in windows]
    if family.rotates_but:
        layers = [-1 if (layer + 1) % family.rotates_but == 0 else 0 for layer in range(num_layers)]
    if file.architecture == "granite" and file.metadata.get(f"granite.{FINETUNED}") is False:
        layers = [-1] * num_layers  # llama.cpp's way to say that granite's positions are not rotated
    return ropes, tuple(layers)


def _rope(file: GGUFFile, num_rotated: int) -> Rope:
    """Rotary base and scaling; a kind that is not known is refused rather than ignored."""
    arch, where = file.architecture, "rope.scaling."
    base = real(file, "rope.freq_base", 10000.0)
    original = number(file, f"{where}original_context_length", number(file, "context_length"))
    kind = file.metadata.get(f"{arch}.{where}type", "linear")
    old = real(file, "rope.scale_linear", 1.0, may_be_off=True)
    factor = real(file, f"{where}factor", old, may_be_off=True) or 1.0
    scale = real(file, f"{where}attn_factor", 1.0)
    factors = {name: _factors(file, name, num_rotated) for name in FACTORS if name in file.tensors}
    long, short = factors.get(LONG_FACTORS, ()), factors.get(SHORT_FACTORS, ())
    if bool(long) != bool(short):
        raise FileFormatError(f"{file.path} lacks 1 tensor", SHORT_FACTORS if long else LONG_FACTORS, ANOTHER_FILE)
    own = factors.get(ROPE_FACTORS)
    if long and own is None:
        if kind == "yarn":
            raise unsupported(file, f"{arch}.{where}type", "yarn together with longrope's factors")
        if kind != "none" and factor != 1.0:
            raise unsupported(file, f"{arch}.{where}factor", "longrope has factors of its own")
        return Rope(base, num_rotated, "longrope", 1.0, original, scale, short_factors=short, long_factors=long)
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return Rope(base, num_rotated, original_context_length=original, scale=scale, factors=own)
    if kind == "linear":
        return Rope(base, num_rotated, "linear", factor, original, scale, factors=own)
    if kind == "yarn":
        if base <= 1:
            fact = f"{file.path} has no valid {arch}.rope.freq_base"
            raise FileFormatError(fact, f"found {base!r}, with yarn", ANOTHER_FILE)
        all_dims = real(file, f"{where}yarn_log_multiplier", 0.0, may_be_off=True)
        fast = real(file, f"{where}yarn_beta_fast", 32.0)
        slow = real(file, f"{where}yarn_beta_slow", 1.0)
        scale *= yarn_scale(factor, 1.0, all_dims)
        return Rope(base, num_rotated, "yarn", factor, original, scale, fast, slow, factors=own)
    why = f"the rotary scaling {kind!r} is not known"[:200]
    if kind == "longrope":
        why = f"the rotary scaling longrope needs {LONG_FACTORS}"
    raise unsupported(file, f"{arch}.{where}type", why)


def _factors(file: GGUFFile, name: str, num_rotated: int) -> tuple[float, ...]:
    """The divisors of the rotary frequencies that a tensor holds."""
    num_factors = prod(file.tensors[name].shape)
    if num_factors != num_rotated // 2:
        fact = f"{file.path} has {num_factors} rotary factors"
        raise FileFormatError(fact, f"{num_rotated // 2} are needed: {name}", ANOTHER_FILE)
    values = file.dequantise(name).reshape(-1)
    if not (np.isfinite(values) & (values > 0)).all():
        fact = f"{file.path} has rotary factors that are no positive numbers"
        raise FileFormatError(fact, f"tensor {name}", ANOTHER_FILE)
    return tuple(values.tolist())
