"""How the GGUF files of each architecture that is served are to be read: FAMILIES, and the keys that they may hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from forerun.models.decoder_model import NORMS_AFTER, NORMS_BEFORE, Activation, HeadNorms

_KEYS = """
    block_count context_length embedding_length feed_forward_length vocab_size tensor_data_layout
    attention.head_count attention.head_count_kv attention.key_length attention.value_length
    attention.layer_norm_rms_epsilon attention.layer_norm_epsilon
    rope.dimension_count rope.freq_base rope.scale_linear rope.scaling.type rope.scaling.factor
    rope.scaling.attn_factor rope.scaling.original_context_length rope.scaling.finetuned
    rope.scaling.yarn_log_multiplier rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow
"""
KEYS = frozenset(_KEYS.split())
"""What every architecture may say. vocab_size (the embedding has it), tensor_data_layout, layer_norm_epsilon (of norms
with a mean) and, but for granite, finetuned change nothing."""
WINDOW, PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
LOCAL_BASE, FINETUNED = "rope.freq_base_swa", "rope.scaling.finetuned"
LOGIT_CAP, TEMPERATURE = "final_logit_softcapping", "attention.temperature_scale"
TEMPERED_FROM = "attention.temperature_length"
FILE_MATRICES: Mapping[str, tuple[str, ...]] = {
    "attn_q": ("q",), "attn_k": ("k",), "attn_v": ("v",), "attn_output": ("o",), "ffn_gate": ("gate",),
    "ffn_up": ("up",), "ffn_down": ("down",),
}  # fmt: skip
FILE_VECTORS: Mapping[str, tuple[str, ...]] = {
    "attn_norm": ("attention_norm",), "ffn_norm": ("ffn_norm",), "post_attention_norm": ("attention_post_norm",),
    "post_ffw_norm": ("ffn_post_norm",), "attn_q_norm": ("q_norm",), "attn_k_norm": ("k_norm",),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Family:
    """How the files of one GGUF architecture differ. `interleaved`, `biases` (always there; others are read where the
    file has them), `norms`, `head_norms` and `activation` as in DecoderModel. `fused_ffn`: ffn_up holds the gate first.

    `windows`: no layer has one, all have, or all but each `period`-th (unless the file says which); `window` is assumed
    where the file names none. `local_base`: of rotary positions in layers with a window (0: as in the others), which
    no scaling touches with `unscaled_locals`. `scales_embedding`: by the root of its width. `rotates_but`: every N-th
    layer rotates nothing (0: all do). `softcaps`: assumed for attention and logits. `scale_by_width`: a model of so
    many layers scales attention by hidden size / heads, not by the size of a head. `keys`: what only these files say.
    """

    interleaved: bool = False
    biases: frozenset[str] = frozenset()
    norms: tuple[str, ...] = NORMS_BEFORE
    head_norms: HeadNorms = "none"
    fused_ffn: bool = False
    activation: Activation = "silu"
    windows: Literal["none", "all", "but each period"] = "none"
    period: int = 1
    window: int = 0
    local_base: float = 0.0
    unscaled_locals: bool = False
    scales_embedding: bool = False
    rotates_but: int = 0
    softcaps: tuple[float, float] = (0.0, 0.0)
    scale_by_width: int = 0
    keys: frozenset[str] = frozenset()


_GEMMA: dict[str, Any] = {
    "norms": (*NORMS_BEFORE, *NORMS_AFTER), "activation": "gelu_tanh", "scales_embedding": True,
    "windows": "but each period",
}  # fmt: skip
FAMILIES = {
    "llama": Family(interleaved=True, windows="all", keys=frozenset({WINDOW})),
    "mistral3": Family(
        interleaved=True, windows="all", keys=frozenset({WINDOW, TEMPERATURE, TEMPERED_FROM})
    ),
    "qwen2": Family(biases=frozenset({"q", "k", "v"})),
    "qwen3": Family(head_norms="each head"),
    "gemma2": Family(
        **_GEMMA, period=2, window=4096, softcaps=(50.0, 30.0), scale_by_width=46,
        keys=frozenset({WINDOW, PATTERN, LOCAL_BASE, LOGIT_CAP, "attn_logit_softcapping"}),
    ),
    "gemma3": Family(
        **_GEMMA, period=6, head_norms="each head", local_base=10000.0, unscaled_locals=True, scale_by_width=62,
        keys=frozenset({WINDOW, PATTERN, LOCAL_BASE, LOGIT_CAP}),
    ),
    "phi3": Family(fused_ffn=True, windows="all", keys=frozenset({WINDOW})),
    "olmo2": Family(
        norms=NORMS_AFTER, head_norms="all heads", windows="but each period", period=4, unscaled_locals=True,
        keys=frozenset({WINDOW, PATTERN, LOCAL_BASE}),
    ),
    "granite": Family(
        interleaved=True, keys=frozenset({"logit_scale", "residual_scale", "embedding_scale", "attention.scale"})
    ),
    "smollm3": Family(interleaved=True, rotates_but=4),
}  # fmt: skip
