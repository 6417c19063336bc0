"""Tiny models of every family that the native runtime serves, with what their GGUF files say."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tests.runtime.tiny import WINDOW


@dataclass(frozen=True)
class Case:
    """A model of `tiny.MODELS` with `changes`, its GGUF `architecture`, and the metadata that `as_gguf` cannot know.
    `loading`: settings that both sides need to be alike."""

    name: str
    architecture: str
    changes: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    loading: dict[str, Any] = field(default_factory=dict)

    @property
    def family(self) -> str:
        return self.name.partition(",")[0]


LAYERS = 6
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
SLIDING, FULL = "sliding_attention", "full_attention"
GLOBAL_LINEAR = {
    FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 50000.0},
    SLIDING: {"rope_type": "default", "rope_theta": 500.0},
}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 500.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.5, 2.0, 3.0, 4.0, 6.0, 8.0],
    "partial_rotary_factor": 0.75,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 24}
YARN_KEYS: dict[str, Any] = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 24,
}  # fmt: skip
BETAS = {"beta_fast": 16.0, "beta_slow": 2.0, "mscale": 1.0, "mscale_all_dim": 0.5}
BETA_KEYS = {
    "rope.scaling.yarn_beta_fast": 16.0, "rope.scaling.yarn_beta_slow": 2.0, "rope.scaling.yarn_log_multiplier": 0.5,
}  # fmt: skip
WINDOWED = {"attention.sliding_window": WINDOW}

CASES: dict[str, Case] = {
    "llama": Case("llama", "llama"),
    "llama, biased": Case("llama, biased and tied", "llama"),
    "llama, wide heads": Case("llama", "llama", {"head_dim": 32}),
    "llama, linear": Case(
        "llama", "llama", {"rope_parameters": LINEAR}, {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    ),
    "llama, yarn": Case("llama", "llama", {"rope_parameters": YARN | BETAS}, YARN_KEYS | BETA_KEYS),
    "mistral": Case("mistral, windows", "llama", {"sliding_window": None}),
    "mistral, windows": Case("mistral, windows", "llama", {}, WINDOWED),
    "mistral3": Case("mistral, windows", "mistral3", {}, WINDOWED),
    "qwen2": Case("qwen2", "qwen2"),
    "qwen3": Case("qwen3", "qwen3", {"head_dim": 32}),
    "gemma2": Case("gemma2, soft caps and alternating windows", "gemma2", {"num_hidden_layers": 3}),
    "gemma3": Case(
        "gemma3", "gemma3", {"num_hidden_layers": LAYERS + 1, "layer_types": None, "query_pre_attn_scalar": 16}
    ),
    "gemma3, scaled": Case(
        "gemma3",
        "gemma3",
        {"num_hidden_layers": LAYERS, "rope_parameters": GLOBAL_LINEAR, "layer_types": [SLIDING] * 5 + [FULL],
         "query_pre_attn_scalar": 16, "final_logit_softcapping": 5.0},
        {"final_logit_softcapping": 5.0},
    ),
    "gemma3, a pattern of its own": Case(
        "gemma3",
        "gemma3",
        {"num_hidden_layers": 3, "layer_types": [FULL, SLIDING, SLIDING], "query_pre_attn_scalar": 16},
        {"attention.sliding_window_pattern": [False, True, True]},
    ),
    "phi3": Case("phi3", "phi3"),
    "phi3, windows": Case("phi3", "phi3", {"sliding_window": WINDOW, "num_key_value_heads": 4}),
    "phi3, long": Case(
        "phi3", "phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 32, "tie_word_embeddings": True}
    ),
    "phi3, short": Case(
        "phi3",
        "phi3",
        {"rope_parameters": LONG | {"original_max_position_embeddings": 80}, "original_max_position_embeddings": 80},
        loading={"context_length": 80},
    ),
    "olmo2": Case("olmo2", "olmo2"),
    "olmo2, one kv head": Case("olmo2", "olmo2", {"num_key_value_heads": 1}),
    "granite": Case("granite, scaled logits", "granite"),
    "granite, biased": Case("granite, scaled logits", "granite", {"attention_bias": True, "mlp_bias": True}),
    "smollm3": Case("smollm3, layers without positions", "smollm3", {"num_hidden_layers": 4, "no_rope_layers": None}),
}  # fmt: skip


def save_tokenizer(folder: Path, vocabulary_size: int) -> None:
    """The byte-level tokenizer of tiny_gguf.py as a transformers directory has it."""
    from tests.models.tiny_gguf import SPECIALS, byte_level
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, _, merges = byte_level(vocabulary_size)
    pairs = [tuple(merge.split(" ")) for merge in merges]
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS[:3]])
    backend.save(str(folder / "tokenizer.json"))


def perturbed(module: Any, share: float, seed: int = 9) -> Any:
    """The same model with noise of so many standard deviations on every weight: a draft that often agrees."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * weight.std() * share)
    return module
