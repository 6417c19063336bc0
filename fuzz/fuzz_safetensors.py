"""Transformers directories: safetensors headers, configurations and indices edited, then read, loaded and run.

python fuzz/fuzz_safetensors.py [corpus folder] [libFuzzer options]; `make fuzz` builds what it needs.
"""

from __future__ import annotations

import copy
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["forerun"]):
    from forerun.models.safetensors_file import open_safetensors
    from forerun.runtime.native import load_native_model

sys.path.insert(0, str(Path(__file__).parent.parent))
from fuzz import common, edits

INDEX = "model.safetensors.index.json"
WORDS = """
    model_type architectures hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim rope_theta
    intermediate_size vocab_size max_position_embeddings rms_norm_eps tie_word_embeddings rope_scaling rope_parameters
    rope_type factor sliding_window layer_types hidden_act attention_bias mlp_bias quantization_config torch_dtype dtype
    llama qwen2 qwen3 gemma2 gemma3_text phi3 olmo2 granite smollm3 mixtral linear yarn longrope llama3 silu gelu
    dynamic F32 F16 BF16 F64 I8 F8_E4M3 U4 shape data_offsets __metadata__ lm_head.weight model.embed_tokens.weight
    model.norm.weight model.layers.0.self_attn.q_proj.weight model.layers.9.self_attn.q_proj.weight full_attention
"""
TEXTS = (*WORDS.split(), "", "\0", "é", "\ud800", "../x", "x" * 3000)
ODD = (None, True, False, -1, 1.5, 1e300, float("nan"), float("inf"), [], {}, [0], [[1]], {"a": 1}, 10**30, "1")
FOLDER = common.scratch("directory")
FOLDER.mkdir(exist_ok=True)


def split(path: Path) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """(configuration, header, data) of a directory."""
    raw = (path / "model.safetensors").read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    return json.loads((path / "config.json").read_text()), json.loads(raw[8:end]), raw[end:]


BASES = [split(path.parent) for path in sorted(common.BASES.glob("*/model.safetensors"))]


def one(data: bytes) -> None:
    """Edit a base as `data` says, then read it all."""
    take = atheris.FuzzedDataProvider(data)
    config, header, body = BASES[take.ConsumeIntInRange(0, len(BASES) - 1)]
    config, header = json.loads(json.dumps(config)), json.loads(json.dumps(header))
    for _ in range(take.ConsumeIntInRange(0, 3)):
        edit(header if take.ConsumeIntInRange(0, 2) == 0 else config, take)
    text, settings = json.dumps(header).encode(), json.dumps(config).encode()
    how = take.ConsumeIntInRange(0, 9)
    if how == 0:
        text = damage(text, take)
    elif how == 1:
        settings = damage(settings, take)
    elif how == 2:
        body = body[: take.ConsumeIntInRange(0, len(body))]
    length = edits.NUMBERS[take.ConsumeIntInRange(0, len(edits.NUMBERS) - 1)] if how == 3 else len(text)
    weights = (length & ((1 << 64) - 1)).to_bytes(8, "little") + text + body
    for old in FOLDER.iterdir():
        old.unlink()
    (FOLDER / "config.json").write_bytes(settings)
    if how == 4:
        names = {name: TEXTS[take.ConsumeIntInRange(0, len(TEXTS) - 1)] for name in list(header)[:1]}
        index: dict[str, Any] = {"weight_map": {**dict.fromkeys(header, "a.safetensors"), **names}}
        for _ in range(take.ConsumeIntInRange(0, 2)):
            edit(index, take)
        (FOLDER / INDEX).write_bytes(
            damage(json.dumps(index).encode(), take) if take.ConsumeBool() else json.dumps(index).encode()
        )
        (FOLDER / "a.safetensors").write_bytes(weights)
    else:
        (FOLDER / "model.safetensors").write_bytes(weights)
        file = open_safetensors(FOLDER / "model.safetensors")
        for tensor in file.tensors.values():
            assert 0 <= tensor.offset <= tensor.offset + tensor.num_bytes <= len(weights)
        file.close()
    before = common.mapped()
    rounding = (None, None, "q4", "q8_0", "bf16")[take.ConsumeIntInRange(0, 4)]
    model = load_native_model(FOLDER, quantize=rounding, context_length=(None, 16)[take.ConsumeIntInRange(0, 1)])
    common.check_mapped(before, len(weights))
    common.use(model, take)


def edit(value: Any, take: Any, depth: int = 0) -> None:
    """One change somewhere inside an object or a list."""
    places = list(value) if isinstance(value, dict) else list(range(len(value)))
    if not places:
        return
    at = places[take.ConsumeIntInRange(0, len(places) - 1)]
    how = take.ConsumeIntInRange(0, 7)
    if isinstance(value[at], (dict, list)) and how < 5 and depth < 4:
        edit(value[at], take, depth + 1)
    elif how == 5:
        del value[at]
    elif how == 6 and isinstance(value, dict):
        value[TEXTS[take.ConsumeIntInRange(0, len(TEXTS) - 1)]] = other(take)
    elif how == 7 and isinstance(value, dict):
        value[TEXTS[take.ConsumeIntInRange(0, len(TEXTS) - 1)]] = value.pop(at)
    else:
        value[at] = other(take)


def other(take: Any) -> Any:
    """Another value."""
    how = take.ConsumeIntInRange(0, 3)
    if how == 0:
        return TEXTS[take.ConsumeIntInRange(0, len(TEXTS) - 1)]
    if how == 1:
        return copy.deepcopy(ODD[take.ConsumeIntInRange(0, len(ODD) - 1)])
    if how == 2:
        return edits.NUMBERS[take.ConsumeIntInRange(0, len(edits.NUMBERS) - 1)]
    return take.ConsumeIntInRange(0, 130)


def damage(text: bytes, take: Any) -> bytes:
    """JSON text that no writer would write."""
    at, how = take.ConsumeIntInRange(0, len(text)), take.ConsumeIntInRange(0, 4)
    if how == 0:
        return text[:at]
    if how == 1:
        return b"[" * take.ConsumeIntInRange(0, 200_000)
    if how == 2:
        return text[:at] + b"9" * take.ConsumeIntInRange(0, 10_000) + text[at:]
    if how == 3:
        return text[:-1] + b"," + text[1:]
    return text[:at] + take.ConsumeBytes(4) + text[at:]


if __name__ == "__main__":
    try:
        common.main(one, "safetensors")
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)
