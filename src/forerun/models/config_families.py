"""What the config.json of each model type that is served may say, and what transformers assumes where it does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forerun.models.decoder_model import NORMS_AFTER, NORMS_BEFORE, Activation, HeadNorms

_PLAIN = """
    model_type architectures transformers_version torch_dtype dtype use_cache initializer_range attention_dropout
    bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id pretraining_tp resid_pdrop embd_pdrop
    auto_map id2label label2id problem_type finetuning_task task_specific_params name_or_path output_attentions
    output_hidden_states return_dict cache_implementation attn_implementation chunk_size_feed_forward generation_config
    tokenizer_class is_llama_config max_sequence_length max_length min_length temperature top_k top_p typical_p
    do_sample num_beams num_beam_groups num_return_sequences repetition_penalty length_penalty diversity_penalty
    torchscript max_window_layers vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads
    num_key_value_heads head_dim max_position_embeddings rms_norm_eps tie_word_embeddings rope_theta rope_scaling
    rope_parameters partial_rotary_factor original_max_position_embeddings rope_interleaved hidden_act sliding_window
"""
KEYS = frozenset(_PLAIN.split())
"""What every config.json may say: what is read here, and what does not change a row of logits."""
HARMLESS_PREFIXES = ("_", "unsloth", "transformers")

ACTIVATIONS: Mapping[str, Activation] = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_ATTENTION, _FEED_FORWARD = frozenset({"q", "k", "v", "o"}), frozenset({"gate", "up", "down"})
BIASES: Mapping[str, frozenset[str]] = {"attention_bias": _ATTENTION, "mlp_bias": _FEED_FORWARD}
"""Settings that give matrices biases."""

_LAYER = {
    "self_attn.q_proj": ("q",), "self_attn.k_proj": ("k",), "self_attn.v_proj": ("v",), "self_attn.o_proj": ("o",),
    "mlp.gate_proj": ("gate",), "mlp.up_proj": ("up",), "mlp.down_proj": ("down",),
    "self_attn.q_norm": ("q_norm",), "self_attn.k_norm": ("k_norm",),
}  # fmt: skip
_FUSED = {
    "self_attn.qkv_proj": ("q", "k", "v"), "self_attn.o_proj": ("o",), "mlp.gate_up_proj": ("gate", "up"),
    "mlp.down_proj": ("down",),
}  # fmt: skip
_BEFORE = {"input_layernorm": ("attention_norm",), "post_attention_layernorm": ("ffn_norm",)}
_AFTER = {"post_attention_layernorm": ("attention_post_norm",), "post_feedforward_layernorm": ("ffn_post_norm",)}
_AROUND = _AFTER | {"input_layernorm": ("attention_norm",), "pre_feedforward_layernorm": ("ffn_norm",)}


@dataclass(frozen=True, slots=True)
class ConfigFamily:
    """`architecture`: the class that config.json must name, if it names one. `parts` as in Names; `defaults`: what
    transformers assumes; `biases`: matrices that always have one. `keys`: settings beyond KEYS; `is_gemma`: norms are
    stored without their 1, embeddings scaled by the root of their width. transformers does not read all of `keys`."""

    architecture: str
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _LAYER | _BEFORE)
    norms: tuple[str, ...] = NORMS_BEFORE
    head_norms: HeadNorms = "none"
    biases: frozenset[str] = frozenset()
    is_gemma: bool = False
    keys: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)


_WINDOWED = ("use_sliding_window", "layer_types")
_BIASED = ("attention_bias", "mlp_bias")
_QWEN: dict[str, Any] = {
    "num_key_value_heads": 32, "max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28,
}  # fmt: skip
_GEMMA: dict[str, Any] = {
    "parts": _LAYER | _AROUND, "norms": (*NORMS_BEFORE, *NORMS_AFTER), "is_gemma": True,
    "keys": (
        "attention_bias", "hidden_activation", "query_pre_attn_scalar", "layer_types", "final_logit_softcapping",
        "sliding_window_pattern", "sliding_window_size", "rope_local_base_freq",
    ),
}  # fmt: skip
_GEMMA_DEFAULTS: dict[str, Any] = {
    "head_dim": 256, "num_key_value_heads": 4, "sliding_window": 4096, "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
}  # fmt: skip
CONFIG_FAMILIES: Mapping[str, ConfigFamily] = {
    "llama": ConfigFamily("LlamaForCausalLM", keys=_BIASED, defaults={"max_position_embeddings": 2048}),
    "mistral": ConfigFamily(
        "MistralForCausalLM",
        defaults={"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096},
    ),
    "qwen2": ConfigFamily("Qwen2ForCausalLM", biases=frozenset({"q", "k", "v"}), keys=_WINDOWED, defaults=_QWEN),
    "qwen3": ConfigFamily(
        "Qwen3ForCausalLM", head_norms="each head", keys=(*_WINDOWED, "attention_bias"),
        defaults={**_QWEN, "head_dim": 128},
    ),
    "gemma2": ConfigFamily(
        "Gemma2ForCausalLM", **_GEMMA | {"keys": (*_GEMMA["keys"], "attn_logit_softcapping")},
        defaults={
            **_GEMMA_DEFAULTS, "max_position_embeddings": 8192, "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
    ),
    "gemma3_text": ConfigFamily(
        "Gemma3ForCausalLM", **_GEMMA, head_norms="each head",
        defaults={**_GEMMA_DEFAULTS, "max_position_embeddings": 131072},
    ),
    "phi3": ConfigFamily(
        "Phi3ForCausalLM", parts=_FUSED | _BEFORE, keys=("interpolate_factor", "full_attn_mod"),
        defaults={"max_position_embeddings": 4096, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    ),
    "olmo2": ConfigFamily(
        "Olmo2ForCausalLM", parts=_LAYER | _AFTER, norms=NORMS_AFTER, head_norms="all heads", keys=("attention_bias",),
        defaults={"max_position_embeddings": 2048, "rms_norm_eps": 1e-5},
    ),
    "granite": ConfigFamily(
        "GraniteForCausalLM",
        keys=(*_BIASED, "embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier"),
        defaults={"max_position_embeddings": 2048},
    ),
    "smollm3": ConfigFamily(
        "SmolLM3ForCausalLM", keys=(*_BIASED, *_WINDOWED, "no_rope_layers", "no_rope_layer_interval"),
        defaults={
            "num_key_value_heads": 4, "max_position_embeddings": 32768, "tie_word_embeddings": True,
            "rope_theta": 2000000.0,
        },
    ),
}  # fmt: skip
