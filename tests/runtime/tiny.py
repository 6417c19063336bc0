"""Tiny transformers models with random weights, one per kind of layer that the torch runtime serves.

Weights are large enough that attention, windows, soft caps and biases all matter to the logits: with the small
initial weights of a fresh model, a forgotten mask would hide in the rounding.
"""

from __future__ import annotations

from typing import Any

import torch

VOCABULARY = 67
CONTEXT = 96
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = 5
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, biased and tied": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama, llama3 rope": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "qwen2": ("qwen2", {}),
    "qwen2, windows above a layer": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "mistral, windows": ("mistral", {"sliding_window": WINDOW, "head_dim": 16}),
    "gemma2, soft caps and alternating windows": (
        "gemma2",
        {
            "head_dim": 16,
            "sliding_window": WINDOW,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 4.0,
            "query_pre_attn_scalar": 16,
        },
    ),
    "gemma3": (
        "gemma3_text",
        {"head_dim": 16, "sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "phi3": ("phi3", {}),
    "olmo2": ("olmo2", {}),
    "granite, scaled logits": (
        "granite",
        {
            "residual_multiplier": 0.3,
            "logits_scaling": 2.0,
            "attention_multiplier": 0.2,
            "embedding_multiplier": 3.0,
        },
    ),
    "smollm3, layers without positions": ("smollm3", {"no_rope_layers": [1, 0]}),
    "gpt_oss, sinks and experts": (
        "gpt_oss",
        {"head_dim": 16, "sliding_window": WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "deepseek_v3, latent attention and experts": (
        "deepseek_v3",
        {
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "kv_lora_rank": 16,
            "q_lora_rank": 16,
            "qk_rope_head_dim": 16,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
        },
    ),
    "gpt2": ("gpt2", {"n_positions": CONTEXT, "n_embd": 64, "n_layer": 2, "n_head": 4}),
}


def tiny(name: str, dtype: torch.dtype = torch.float32, seed: int = 0, **changes: Any) -> Any:
    """A random model of `MODELS`, with transformers' own eager attention."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, settings = MODELS[name]
    return randomised(
        AutoModelForCausalLM.from_config(
            AutoConfig.for_model(model_type, **COMMON | settings | changes), attn_implementation="eager"
        ),
        dtype,
        seed,
    )


def randomised(model: Any, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """Weights drawn so that every part of the model moves the logits."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if "norm" in name or ".ln_" in name:
                weight.copy_(0.2 * noise if "gemma" in model.config.model_type else 1 + 0.2 * noise)
            elif weight.ndim == 1:
                weight.copy_(0.3 * noise)
            elif weight.ndim == 2 and ("embed" in name or "lm_head" in name or ".wte" in name):
                weight.copy_(0.5 * noise)
            else:
                weight.copy_(noise * weight.shape[-1] ** -0.5)
    return model.to(dtype).eval()
