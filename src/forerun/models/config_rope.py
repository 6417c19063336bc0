"""Rotary positions as a config.json says them, and as transformers understands them.

The words are those of transformers 4 (rope_theta, rope_scaling) or 5 (rope_parameters).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from forerun.models.config_values import Config
from forerun.models.decoder_model import Rope, is_off, unsupported, yarn_scale

_OF_KIND: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "yarn": (
        "factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate",
        "original_max_position_embeddings",
    ),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "longrope": ("factor", "attention_factor", "short_factor", "long_factor", "original_max_position_embeddings"),
}  # fmt: skip
_OF_ALL = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
_SHORT_MSCALE, _LONG_MSCALE = "short_mscale", "long_mscale"  # of phi3's su scaling; transformers reads neither


def read_ropes(config: Config, head_size: int, windows: tuple[int, ...]) -> tuple[tuple[Rope, ...], tuple[int, ...]]:
    """The rotary positions, and which of them each layer takes."""
    num_layers = len(windows)
    if config.model_type == "gemma3_text":
        return _of_gemma3(config, head_size, windows)
    given = config.table("rope_scaling") or config.table("rope_parameters")
    layers = [0] * num_layers
    if config.model_type == "smollm3":
        layers = [0 if rotates else -1 for rotates in rotating_layers(config, num_layers)]
    return (_rope(config, given, head_size, config.real("rope_theta", 10000.0)),), tuple(layers)


def rotating_layers(config: Config, num_layers: int) -> list[bool]:
    """Which layers of smollm3 know positions (despite its name, no_rope_layers has 1 for those)."""
    interval = config.whole("no_rope_layer_interval", 4)
    default = [int((layer + 1) % interval != 0) for layer in range(num_layers)]
    return [bool(rotates) for rotates in config.layers("no_rope_layers", num_layers, default)]


def _of_gemma3(config: Config, head_size: int, windows: tuple[int, ...]) -> tuple[tuple[Rope, ...], tuple[int, ...]]:
    """Layers with a window have positions of their own; an older file's scaling is of the others."""
    given = config.table("rope_parameters")
    if not given.keys() <= {"full_attention", "sliding_attention"}:
        raise unsupported(config, "rope_parameters", "they are not full_attention and sliding_attention")
    full, local = (given.get(f"{kind}_attention") or {} for kind in ("full", "sliding"))
    if not isinstance(full, dict) or not isinstance(local, dict):
        raise config.invalid("rope_parameters", f"found {given!r}"[:200])
    ropes = (
        _rope(config, {**full, **config.table("rope_scaling")}, head_size, config.real("rope_theta", 1000000.0)),
        _rope(config, local, head_size, config.real("rope_local_base_freq", 10000.0)),
    )
    return ropes, tuple(int(window > 0) for window in windows)


def _rope(config: Config, given: Mapping[str, Any], head_size: int, base: float) -> Rope:
    """One table of rotary positions; what is not understood in it is refused."""
    kind = given.get("rope_type", given.get("type", "default"))
    if config.model_type == "phi3" and kind in ("su", "yarn"):
        kind = "longrope"
    if not isinstance(kind, str) or kind not in _OF_KIND:
        raise unsupported(
            config, f"the rotary scaling {kind!r}"[:200], "it is not known", f"known: {', '.join(_OF_KIND)}"
        )
    where = Config(config.path, config.model_type, given)
    for key, value in given.items():
        is_odd = key not in (*_OF_ALL, *_OF_KIND[kind]) and not is_off(value)
        if is_odd and not (config.model_type == "phi3" and key in (_SHORT_MSCALE, _LONG_MSCALE)):
            if kind == "default" and any(key in known for known in _OF_KIND.values()):
                continue  # transformers reads nothing but the base then
            raise unsupported(config, f"the setting {key} of its rotary positions", f"it is not understood for {kind}")
    share = where.real("partial_rotary_factor", config.real("partial_rotary_factor", 1.0))
    num_rotated = int(min(head_size * share, head_size + 1))
    if num_rotated % 2 or not 2 <= num_rotated <= head_size or (share != 1.0 and config.model_type != "phi3"):
        raise unsupported(config, "partial_rotary_factor", f"{num_rotated} of {head_size} coordinates would be rotated")
    base = where.real("rope_theta", base)
    if kind == "default":
        return Rope(base, num_rotated)
    if kind == "linear":
        return Rope(base, num_rotated, "linear", where.real("factor"))
    own = where.whole("original_max_position_embeddings", config.whole("max_position_embeddings"))
    original = config.whole("original_max_position_embeddings", own)
    if kind == "llama3":
        low, high = where.real("low_freq_factor"), where.real("high_freq_factor")
        if low >= high:
            raise config.invalid("low_freq_factor", f"it is not below {high}")
        return Rope(base, num_rotated, "llama3", where.real("factor"), original, low_factor=low, high_factor=high)
    factor = where.real("factor", config.whole("max_position_embeddings") / original)
    if kind == "yarn":
        if base <= 1:
            raise config.invalid("rope_theta", f"found {base!r}, with yarn")
        mscale, all_dims = where.real("mscale", 0.0), where.real("mscale_all_dim", 0.0)
        scale = yarn_scale(factor, mscale, all_dims) if mscale and all_dims else yarn_scale(factor)
        return Rope(
            base, num_rotated, "yarn", factor, original, where.real("attention_factor", 0.0) or scale,
            where.real("beta_fast", 32.0), where.real("beta_slow", 1.0), where.flag("truncate", True),
        )  # fmt: skip
    short, long = (where.reals(f"{name}_factor", num_rotated // 2) for name in ("short", "long"))
    if factor > 1.0 and original < 2:
        raise config.invalid("original_max_position_embeddings", f"found {original}")
    grown = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1.0 else 1.0
    scale = where.real("attention_factor", 0.0) or grown
    return Rope(
        base, num_rotated, "longrope", 1.0, original, scale, short_factors=tuple(short), long_factors=tuple(long)
    )
