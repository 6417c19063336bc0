"""Tiny GGUF models, written in milliseconds: random weights, and a tokenizer that works.

    write_tiny_gguf(path)                                  a qwen2-shaped model with byte-level BPE
    write_tiny_gguf(path, kind="llama", architecture="llama")   SentencePiece
    write_tiny_gguf(path, num_tokens=1000, padding=64)     1,000 real ids and 64 rows beyond them
    write_tiny_gguf(path, seed=1, perturb=0.1)             a draft near the model of seed 1

The vocabulary depends on `kind` and `num_tokens` only, so calls that agree in both make models that fit each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

TEXT = (
    "the and of to in is it that for was on are with as be at this have from or had by not but what all were when we "
    "there can an your which their said if do will each about how up out them then she many some so these would other "
    "into has more her two like him see time could no make than first been its who now people my made over did down "
    "only way find use may water long little very after words called just where most know return def self import None"
)
WORDS = TEXT.split()
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def write_tiny_pair(folder: Path) -> tuple[Path, Path]:
    """Files of a target, and of a draft that often agrees with it."""
    target = write_tiny_gguf(folder / "target.gguf", seed=3, tensor_type="Q8_0")
    return target, write_tiny_gguf(folder / "draft.gguf", seed=3, perturb=0.2)


def write_tiny_gguf(
    path: Path | str,
    *,
    kind: str = "gpt2",
    architecture: str = "qwen2",
    num_tokens: int = 600,
    padding: int = 0,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    feed_forward: int = 96,
    context_length: int = 256,
    seed: int = 0,
    perturb: float = 0.0,
    tied: bool = True,
    tensor_type: str = "F32",
    swap: Sequence[tuple[int, int]] = (),
    swap_merges: Sequence[tuple[int, int]] = (),
    types: Mapping[int, int] | None = None,
    metadata: Mapping[str, Any] | None = None,
    vocabulary_only: bool = False,
    tensors_per_shard: int = 0,
) -> Path:
    """Write a model and return its path.

    `num_tokens` counts real ids (special tokens are the last five of "gpt2", the first three of "llama"), `padding`
    rows follow. `swap` and `swap_merges` exchange tokens and merges, `types` sets token types by id, `metadata` adds
    or replaces keys ("tokenizer.ggml.pre"), and None as its value leaves a key out. `perturb` adds noise of that many
    standard deviations, drawn with another seed. `tensor_type` is F32, F16, BF16, Q4_0 or Q8_0 for the matrices.
    `tensors_per_shard` splits the file: NAME-00001-of-0000N.gguf and so on, by the `gguf` package; returns the first.
    """
    path = Path(path)
    values: dict[str, Any] = {
        "general.name": "tiny",
        f"{architecture}.block_count": layers,
        f"{architecture}.context_length": context_length,
        f"{architecture}.embedding_length": hidden,
        f"{architecture}.feed_forward_length": feed_forward,
        f"{architecture}.attention.head_count": heads,
        f"{architecture}.attention.head_count_kv": kv_heads,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.rope.freq_base": 10000.0,
        f"{architecture}.rope.dimension_count": hidden // heads,
        f"{architecture}.vocab_size": num_tokens + padding,
        "tokenizer.chat_template": CHAT_TEMPLATE,
        **tokenizer_metadata(kind, num_tokens, padding, swap, swap_merges, types),
        **(metadata or {}),
    }
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=tensors_per_shard)
    for key, value in values.items():
        add_value(writer, key, value)
    if not vocabulary_only:
        shapes = tensor_shapes(architecture, num_tokens + padding, layers, hidden, heads, kv_heads, feed_forward, tied)
        for name, shape in shapes.items():
            _add_tensor(writer, name, _weights(name, shape, seed, perturb), tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if tensors_per_shard:
        return min(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))
    return path


def tokenizer_metadata(
    kind: str,
    num_tokens: int,
    padding: int = 0,
    swap: Sequence[tuple[int, int]] = (),
    swap_merges: Sequence[tuple[int, int]] = (),
    types: Mapping[int, int] | None = None,
) -> dict[str, Any]:
    """The tokenizer.* keys of a GGUF file."""
    tokens, marks, merges = byte_level(num_tokens) if kind == "gpt2" else sentencepiece(num_tokens)
    for one, other in swap:
        tokens[one], tokens[other] = tokens[other], tokens[one]
    for one, other in swap_merges:
        merges[one], merges[other] = merges[other], merges[one]
    for index, mark in (types or {}).items():
        marks[index] = mark
    tokens += [f"[PAD{len(tokens) + i}]" for i in range(padding)]
    values: dict[str, Any] = {
        "tokenizer.ggml.model": kind,
        "tokenizer.ggml.pre": "qwen2" if kind == "gpt2" else "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [*marks, *[UNUSED] * padding],
    }
    if kind == "gpt2":
        first = num_tokens - len(SPECIALS)
        return values | {
            "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.bos_token_id": first,
            "tokenizer.ggml.eos_token_id": first + 2,
            "tokenizer.ggml.padding_token_id": first,
            "tokenizer.ggml.add_bos_token": False,
        }
    scores = [-float(max(i - 258, 0)) for i in range(len(tokens))]
    return values | {
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def byte_level(num_tokens: int) -> tuple[list[str], list[int], list[str]]:
    """(tokens, types, merges): 256 bytes, then pieces of words, then SPECIALS."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = [chr(byte) for byte in printable] + [chr(0x100 + i) for i in range(len(others))]
    space, newline = chr(0x100 + others.index(32)), chr(0x100 + others.index(10))
    pairs = _pairs(space, num_tokens - len(alphabet) - len(SPECIALS), (newline, "1", "2", ".", "'"))
    tokens = [*alphabet, *(left + right for left, right in pairs), *SPECIALS]
    types = [NORMAL] * (num_tokens - 5) + [CONTROL] * 3 + [USER_DEFINED] * 2
    return tokens, types, [f"{left} {right}" for left, right in pairs]


def sentencepiece(num_tokens: int) -> tuple[list[str], list[int], list[str]]:
    """(tokens, types, []): <unk>, <s>, </s>, 256 bytes, characters, then pieces of words, best first."""
    head = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    letters = ["▁", *map(chr, range(0x21, 0x7F)), "é", "日", "本"]
    pairs = _pairs("▁", num_tokens - len(head) - len(letters), ("1", "2", ".", "'"))
    tokens = [*head, *(left + right for left, right in pairs), *letters]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (num_tokens - 259)]
    return tokens, types, []


def _pairs(space: str, count: int, others: Sequence[str]) -> list[tuple[str, str]]:
    """`count` merges: words letter by letter, then runs of spaces, then any two letters."""
    if count < 0:
        raise ValueError("num_tokens is too small for the bytes and the special tokens")
    made: dict[str, tuple[str, str]] = {}
    for word in WORDS:
        for end in range(1, len(word) + 1):
            left = space + word[: end - 1]
            made.setdefault(left + word[end - 1], (left, word[end - 1]))
    for width in (1, 2, 4, 8):
        made.setdefault(space * 2 * width, (space * width, space * width))
    letters = [*others, *map(chr, range(0x61, 0x7B))]
    for left in letters:
        for right in letters:
            made.setdefault(left + right, (left, right))
    if count > len(made):
        raise ValueError(f"num_tokens can be {len(made) - count} more at most")
    return list(made.values())[:count]


def tensor_shapes(
    architecture: str, rows: int, layers: int, hidden: int, heads: int, kv_heads: int, feed_forward: int, tied: bool
) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a llama or qwen2 model's tensors, in numpy order."""
    size = hidden // heads
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (rows, hidden)}
    for i in range(layers):
        block = {
            "attn_norm.weight": (hidden,),
            "attn_q.weight": (heads * size, hidden),
            "attn_k.weight": (kv_heads * size, hidden),
            "attn_v.weight": (kv_heads * size, hidden),
            "attn_output.weight": (hidden, heads * size),
            "ffn_norm.weight": (hidden,),
            "ffn_gate.weight": (feed_forward, hidden),
            "ffn_up.weight": (feed_forward, hidden),
            "ffn_down.weight": (hidden, feed_forward),
        }
        if architecture == "qwen2":
            block |= {"attn_q.bias": (heads * size,), "attn_k.bias": (kv_heads * size,)}
            block |= {"attn_v.bias": (kv_heads * size,)}
        shapes |= {f"blk.{i}.{name}": shape for name, shape in block.items()}
    shapes["output_norm.weight"] = (hidden,)
    return shapes if tied else shapes | {"output.weight": (rows, hidden)}


def _weights(name: str, shape: tuple[int, ...], seed: int, perturb: float) -> np.ndarray:
    """Weights that depend on the tensor's name and the seed, not on the order of writing."""
    label = [seed, *name.encode()]
    base = np.random.default_rng(label).normal(size=shape)
    noise = np.random.default_rng([*label, 1]).normal(size=shape)
    drawn = base + perturb * noise
    if name.endswith("norm.weight"):
        return (1 + 0.05 * drawn).astype(np.float32)
    scale = 1.0 if name == "token_embd.weight" else 0.1 if name.endswith("bias") else 1.5 / np.sqrt(shape[-1])
    return (scale * drawn).astype(np.float32)


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray, tensor_type: str) -> None:
    kind = gguf.GGMLQuantizationType[tensor_type if values.ndim > 1 else "F32"]
    writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """One key of any type; None leaves it out."""
    if value is None:
        return
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
