"""What a transformers directory says of its model: the same data as a GGUF file (decoder_model.py), from config.json.

Missing settings are what transformers' configurations assume (config_families.py). A setting that is not known is
refused unless it is off.
"""

from __future__ import annotations

from forerun.errors import FileFormatError, UnsupportedModelError
from forerun.models.config_families import (
    ACTIVATIONS,
    BIASES,
    CONFIG_FAMILIES,
    HARMLESS_PREFIXES,
    KEYS,
    ConfigFamily,
)
from forerun.models.config_rope import read_ropes, rotating_layers
from forerun.models.config_values import Config
from forerun.models.decoder_model import (
    ANOTHER_FILE,
    Activation,
    DecoderModel,
    Names,
    check_layers,
    contradiction,
    is_off,
    unsupported,
)
from forerun.models.transformers_files import TransformersFiles

SERVED = f"served: transformers directories of {', '.join(family.architecture for family in CONFIG_FAMILIES.values())}"
EMBEDDING, HEAD, FINAL_NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"


def read_config(files: TransformersFiles) -> DecoderModel:
    """The model that config.json describes; FileFormatError, UnsupportedModelError."""
    model_type = files.config.get("model_type")
    if not isinstance(model_type, str) or model_type not in CONFIG_FAMILIES:
        raise UnsupportedModelError(
            f"the model type {model_type!r} of {files.path} is not served", "not by the native runtime", SERVED
        )
    family = CONFIG_FAMILIES[model_type]
    given = {name: value for name, value in files.config.items() if value is not None}
    config = Config(files.path / "config.json", model_type, {**family.defaults, **_nulls(files, family), **given})
    _refuse_unknown(config, family)
    hidden_size, num_heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    head_size = config.whole("head_dim", max(hidden_size // num_heads, 1))
    num_kv_heads = config.whole("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        fact = f"{num_heads} query heads cannot share {num_kv_heads} key and value heads"
        raise contradiction(config, fact)
    num_layers = config.whole("num_hidden_layers")
    check_layers(files, num_layers)
    windows = _windows(config, num_layers)
    ropes, layer_ropes = read_ropes(config, head_size, windows)
    biases = family.biases.union(*(BIASES[name] for name in BIASES if name in family.keys and config.flag(name)))
    attention_scale = head_size**-0.5
    if family.is_gemma:
        attention_scale = config.real("query_pre_attn_scalar") ** -0.5
    elif model_type == "granite":
        attention_scale = config.real("attention_multiplier", 1.0)
    is_tied = HEAD not in files.tensors
    if is_tied and not config.flag("tie_word_embeddings"):
        raise FileFormatError(f"{files.path} lacks 1 tensor", f"{HEAD}, for its embeddings are not tied", ANOTHER_FILE)
    return DecoderModel(
        family=model_type,
        names=Names(EMBEDDING, HEAD, FINAL_NORM, "model.layers.{}.", family.parts),
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=config.whole("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        num_embeddings=config.whole("vocab_size"),
        context_length=config.whole("max_position_embeddings"),
        epsilon=config.real("rms_norm_eps", 1e-6),
        is_tied=is_tied,
        ropes=ropes,
        layer_ropes=layer_ropes,
        layer_windows=windows,
        attention_scale=attention_scale,
        biases=biases,
        norms=family.norms,
        head_norms=family.head_norms,
        norm_offset=1.0 if family.is_gemma else 0.0,
        activation=_activation(config, family),
        embedding_scale=hidden_size**0.5 if family.is_gemma else config.real("embedding_multiplier", 1.0),
        residual_scale=config.real("residual_multiplier", 1.0),
        logit_scale=1.0 / config.real("logits_scaling", 1.0),
        attention_softcap=config.real("attn_logit_softcapping", 0.0),
        logit_softcap=config.real("final_logit_softcapping", 0.0),
    )


def _nulls(files: TransformersFiles, family: ConfigFamily) -> dict[str, None]:
    """Settings whose null means that there is no such thing, where the default is that there is."""
    names = ("sliding_window", "attn_logit_softcapping", "final_logit_softcapping", "head_dim", "num_key_value_heads")
    return {name: None for name in names if name in files.config and files.config[name] is None}


def _refuse_unknown(config: Config, family: ConfigFamily) -> None:
    """Refuse another class than the one that is served, quantised directories, and settings that might matter."""
    classes = config.values.get("architectures")
    if classes is not None and classes != [family.architecture]:
        raise unsupported(config, f"the class {classes}"[:200], "not by the native runtime", SERVED)
    for name, value in config.values.items():
        if name in KEYS or name in family.keys or name.startswith(HARMLESS_PREFIXES) or is_off(value):
            continue
        why = "its weights are quantised already" if name == "quantization_config" else "it is not understood"
        raise unsupported(config, f"the setting {name}"[:200], f"{why} for {config.model_type}")


def _activation(config: Config, family: ConfigFamily) -> Activation:
    name = "hidden_activation" if family.is_gemma else "hidden_act"
    given = config.values.get(name, "gelu_pytorch_tanh" if family.is_gemma else "silu")
    if not isinstance(given, str) or given not in ACTIVATIONS:
        raise unsupported(config, f"the {name} {given!r}"[:200], "", f"served: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[given]


def _windows(config: Config, num_layers: int) -> tuple[int, ...]:
    """How many tokens the tokens of each layer see, 0 for all."""
    kind, window = config.model_type, config.values.get("sliding_window")
    none = (0,) * num_layers
    if kind in ("llama", "olmo2", "granite") or window is None:
        return none  # transformers reads no window for these
    window = config.whole("sliding_window")
    if kind in ("mistral", "phi3"):
        return (window,) * num_layers
    if kind in ("qwen2", "qwen3", "smollm3") and not config.flag("use_sliding_window"):
        return none
    default = [bool((layer + 1) % (2 if kind == "gemma2" else _period(config))) for layer in range(num_layers)]
    if kind in ("qwen2", "qwen3"):
        first = config.values.get("max_window_layers")
        if type(first) is not int:
            raise config.invalid("max_window_layers", f"found {first!r}"[:200])
        default = [layer >= first for layer in range(num_layers)]
    elif kind == "smollm3":
        default = [not rotates for rotates in rotating_layers(config, num_layers)]
    words = ["sliding_attention" if is_local else "full_attention" for is_local in default]
    types = config.layers("layer_types", num_layers, words)
    odd = [one for one in types if one not in ("sliding_attention", "full_attention")]
    if odd:
        raise unsupported(config, f"the layer type {odd[0]!r}"[:200], "", "served: full_attention, sliding_attention")
    return tuple(window if one == "sliding_attention" else 0 for one in types)


def _period(config: Config) -> int:
    """Of so many layers of gemma3 the last sees everything."""
    return config.whole("sliding_window_pattern", 6)
