"""Which transformers models can be served, decided before any weight is read.

Two steps. `check_config` reads the configuration and the model class. `probe` runs the model on the meta device
(shapes, no numbers) with an attention function that records how every layer attends: which mask pattern it was
given, and every argument. What is not understood exactly is refused, never ignored.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch

from forerun.errors import UnsupportedModelError
from forerun.runtime.torch.cache import LayerShape

PROBE = "forerun-probe"
"""The recording function's name in transformers' attention and mask registries."""

SERVED = (
    "served: decoder-only text models whose layers use full or sliding-window attention, with grouped key/value "
    "heads, soft-capped scores and attention sinks"
)
_LAYER_TYPES = {"full_attention", "sliding_attention", "attention"}
_HARMLESS = {
    *("cache", "past_key_values", "past_key_value", "use_cache", "cache_position", "position_ids"),
    *("output_attentions", "output_hidden_states", "output_router_logits", "return_dict", "position_embeddings"),
}
"""Attention arguments that never change a layer's result when there is no transformers cache."""


def refused(config: Any, fact: str) -> UnsupportedModelError:
    """The one way a model is turned down."""
    return UnsupportedModelError(f"{config.model_type} models cannot be served: {fact}", "", SERVED)


def setting(config: Any, name: str) -> Any:
    """A configuration's attribute, or None where it has none, or one that differs from layer to layer (newer
    configurations raise an error of their own then)."""
    try:
        return getattr(config, name, None)
    except Exception:
        return None


def check_config(config: Any) -> type[Any]:
    """The causal-LM class for `config`, or UnsupportedModelError. Reads no weights."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    if setting(config, "is_encoder_decoder"):
        raise refused(config, "they have an encoder")
    if config.get_text_config(decoder=True) is not config:
        raise refused(config, "they are wrappers for images, sound or video around a text model")
    try:
        model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    except KeyError:
        raise refused(config, "transformers has no causal language model class for them") from None
    others = sorted(set(setting(config, "layer_types") or ()) - _LAYER_TYPES)
    if others:
        raise refused(config, f"they have layers of type {', '.join(map(repr, others))}")
    if getattr(model_class, "_is_stateful", False):
        raise refused(config, "they keep a recurrent state")
    if not getattr(model_class, "_supports_attention_backend", False):
        raise refused(config, f"{model_class.__name__} does not go through transformers' attention interface")
    if any(rope.get("rope_type") == "dynamic" for rope in ropes(config)):
        raise refused(config, "their dynamic rotary scaling makes one sequence's positions depend on another's length")
    return model_class  # type: ignore[no-any-return]


def ropes(config: Any) -> list[dict[str, Any]]:
    """The rotary settings: one dictionary, or one per layer type."""
    found = setting(config, "rope_parameters") or setting(config, "rope_scaling")
    if not isinstance(found, dict):
        return []
    nested = [value for value in found.values() if isinstance(value, dict)]
    return nested if nested and "rope_type" not in found else [found]


def context_length_of(config: Any) -> int | None:
    """Positions the model may use. longrope switches its frequencies where the original context ends, which would
    give cached keys another meaning, so such models are served up to there."""
    length = setting(config, "max_position_embeddings")
    for rope in ropes(config):
        original = rope.get("original_max_position_embeddings") or setting(config, "original_max_position_embeddings")
        if rope.get("rope_type") == "longrope" and original:
            length = min(length or original, original)
    return int(length) if length is not None else None


class _Recorder:
    """What a forward pass told the attention function: LayerShape by layer index."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.layers: dict[int, LayerShape] = {}
        # Marker masks, and the patterns they stand for: a window, None (all before), or -1 (something else).
        self._windows: list[tuple[torch.Tensor, int | None]] = []

    def mask(self, mask_function: Callable[..., torch.Tensor], local_size: int | None = None, **_: Any) -> torch.Tensor:
        """Stands in for a mask: remembers which pattern it would have held."""
        windows = {w for w in (local_size, setting(self.config, "sliding_window")) if isinstance(w, int) and w > 0}
        reach = max(windows, default=8)
        matching = (window for window in (None, *sorted(windows)) if _shows(mask_function, window, reach))
        marker = torch.zeros(1, 1, 1, 1)
        self._windows.append((marker, next(matching, -1)))
        return marker

    def attention(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        **arguments: Any,
    ) -> tuple[torch.Tensor, None]:
        """Stands in for attention: checks the call and returns a tensor of the right shape."""
        layer = getattr(module, "layer_idx", None)
        if not isinstance(layer, int) or layer in self.layers:
            raise refused(self.config, "a layer attends twice, or does not say which layer it is")
        windows = [window for marker, window in self._windows if marker is mask]
        if not windows or windows[0] == -1:
            raise refused(self.config, f"the mask of layer {layer} is neither causal nor a sliding window")
        if not getattr(module, "is_causal", True) or arguments.get("is_causal") is False:
            raise refused(self.config, f"layer {layer} is not causal")
        known = {"scaling", "softcap", "s_aux", "sliding_window", "is_causal", "dropout"} | _HARMLESS
        unknown = sorted(k for k, v in arguments.items() if k not in known and v is not None and v is not False)
        if unknown:
            raise refused(self.config, f"layer {layer} attends with {', '.join(unknown)}")
        heads, kv_heads, rows = query.shape[1], key.shape[1], query.shape[2]
        if query.shape[0] != 1 or heads % kv_heads or key.shape[2] != rows or value.shape[:3] != key.shape[:3]:
            raise refused(self.config, f"layer {layer} attends to keys of shape {tuple(key.shape)}")
        if (sinks := arguments.get("s_aux")) is not None and tuple(sinks.shape) != (heads,):
            raise refused(self.config, f"layer {layer} has attention sinks of shape {tuple(sinks.shape)}")
        self.layers[layer] = LayerShape(kv_heads, key.shape[3], value.shape[3], windows[0])
        return query.new_zeros((1, rows, heads, value.shape[3])), None


def _shows(mask_function: Callable[..., torch.Tensor], window: int | None, reach: int) -> bool:
    """Whether a mask function over indices is causal with this window, on positions around every edge it could have."""
    edges = {0, 1, 2, 5, reach - 1, reach, reach + 1, 2 * reach + 3, 8192, 3 * 8192 + 1}
    queries = torch.tensor(sorted(q for q in edges if q >= 0))[:, None]
    offsets = [0, 1, 2, 3, 7, reach - 1, reach, reach + 1, 2 * reach, 8192]
    keys = torch.cat([queries - torch.tensor(offsets), queries + 1, queries + reach], dim=1).clamp(min=0)
    rows = [mask_function(*_indices(q, k)) for q, k in zip(queries, keys, strict=True)]
    seen = torch.stack([row.reshape(-1).expand(keys.shape[1]) for row in rows])
    expected = keys <= queries
    if window is not None:
        expected &= queries - keys < window
    return bool(torch.equal(seen, expected))


def _indices(query: torch.Tensor, keys: torch.Tensor) -> tuple[torch.Tensor, ...]:
    zero = torch.zeros(1, 1, 1, 1, dtype=torch.long)
    return zero, zero, query.view(1, 1, 1, 1), keys.view(1, 1, 1, -1)


_RECORDER: ContextVar[_Recorder] = ContextVar("forerun_recorder")


def recording_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **arguments: Any,
) -> tuple[torch.Tensor, None]:
    """The registered attention function of a probe."""
    return _RECORDER.get().attention(module, query, key, value, attention_mask, **arguments)


def recording_mask(*_: Any, mask_function: Callable[..., torch.Tensor], **arguments: Any) -> torch.Tensor:
    """The registered mask function of a probe."""
    return _RECORDER.get().mask(mask_function, **arguments)


def probe(model: Any) -> tuple[LayerShape, ...]:
    """How each layer attends. `model` is on any device, meta included, with its attention set to `PROBE`.

    Raises UnsupportedModelError, or whatever the model itself raises (a mixture of experts that looks at numbers
    cannot run on meta).
    """
    config, device = model.config, next(model.parameters()).device
    if "logits_to_keep" not in inspect.signature(model.forward).parameters:
        raise refused(config, f"{type(model).__name__} cannot compute the logits of chosen rows alone")
    recorder = _Recorder(config)
    token = _RECORDER.set(recorder)
    try:
        ids = torch.zeros((1, 4), dtype=torch.long, device=device)
        positions = torch.arange(4, device=device)[None]
        # An explicit mask of ones: without it transformers looks for packed sequences in the positions' values.
        with torch.no_grad():
            model(
                input_ids=ids,
                position_ids=positions,
                attention_mask=torch.ones_like(ids),
                use_cache=False,
                logits_to_keep=positions[0, 1:3],  # as at run time: some models drop the other rows before the end
            )
    finally:
        _RECORDER.reset(token)
    if sorted(recorder.layers) != list(range(config.num_hidden_layers)):
        raise refused(config, f"only {len(recorder.layers)} of their {config.num_hidden_layers} layers are attention")
    return tuple(shape for _, shape in sorted(recorder.layers.items()))
