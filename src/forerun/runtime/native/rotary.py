"""Rotary positions as the decoder takes them: radians a position for each pair of coordinates."""

from __future__ import annotations

import math

import numpy as np

from forerun.models.decoder_model import Rope


def rotary_frequencies(rope: Rope, context_length: int) -> np.ndarray:
    """Radians a position [num_rotated / 2] float64, by the formulas of transformers: linear divides; yarn (arXiv
    2309.00071, section 3.2 to 3.4) and llama3 blend by wavelength; longrope divides each by a factor of its own, the
    long ones where `context_length`, which the model is run with, exceeds the original one (as llama.cpp: a sequence
    keeps its factors as it grows, where transformers would change them under its cached keys)."""
    size = rope.num_rotated
    with np.errstate(all="ignore"):  # what is no usable number is the decoder's to refuse
        return _scaled(rope, size, context_length)


def _scaled(rope: Rope, size: int, context_length: int) -> np.ndarray:
    frequencies = rope.base ** (-np.arange(0, size, 2) / size)
    if rope.kind == "linear":
        frequencies = frequencies / rope.factor
    elif rope.kind == "yarn":
        kept = 1.0 - _yarn_ramp(rope)
        frequencies = frequencies * (kept + (1.0 - kept) / rope.factor)
    elif rope.kind == "llama3":
        turns = rope.original_context_length * frequencies / (2 * math.pi)
        kept = ((turns - rope.low_factor) / (rope.high_factor - rope.low_factor)).clip(0.0, 1.0)
        frequencies = frequencies * (kept + (1.0 - kept) / rope.factor)
    elif rope.kind == "longrope":
        is_long = context_length > rope.original_context_length
        frequencies = frequencies / np.array(rope.long_factors if is_long else rope.short_factors)
    return frequencies if rope.factors is None else frequencies / np.array(rope.factors)


def _yarn_ramp(rope: Rope) -> np.ndarray:
    """How far each frequency is interpolated, 0 to 1 [num_rotated / 2]: not at all where it turns `beta_fast` times and
    more within the original context, wholly where it turns `beta_slow` times or less."""
    size = rope.num_rotated

    def place(turns: float) -> float:
        turns = min(max(turns, 1e-9), 1e9)  # beyond these every frequency is on one side
        return size * math.log(rope.original_context_length / (turns * 2 * math.pi)) / (2 * math.log(rope.base))

    low, high = place(rope.beta_fast), place(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramp = (np.arange(size // 2) - low) / (high - low if high != low else 1e-3)
    clipped: np.ndarray = ramp.clip(0.0, 1.0)
    return clipped
