"""A byte-level vocabulary in which any two neighbours merge, so that ids show where text was cut."""

from __future__ import annotations

from pathlib import Path

from tests.models.tiny_gguf import CONTROL, NORMAL, byte_level, write_tiny_gguf

CHARACTERS = "aAbsStTlreE12'.,-/_(\n\r\t ~$éÉß日カ한аБα١²½Ⅷ\u0301\u00a0\u3000\u2003€🚀हि"


def write_probe(path: Path, pre_tokenizer: str) -> Path:
    """A GGUF file without tensors: bytes, CHARACTERS as one token each, and all pairs of them."""
    alphabet = byte_level(261)[0][:256]
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    codes = [*printable, *(byte for byte in range(256) if byte not in printable)]
    letter = dict(zip(codes, alphabet, strict=True))
    made: dict[str, tuple[str, str]] = {}
    wholes = []
    for character in CHARACTERS:
        spelled = [letter[byte] for byte in character.encode()]
        whole = spelled[0]
        for part in spelled[1:]:
            made.setdefault(whole + part, (whole, part))
            whole += part
        wholes.append(whole)
    for one in wholes:
        for other in wholes:
            made.setdefault(one + other, (one, other))
    for one in [pair for pair in made if pair.startswith("'")]:  # a contraction, and what may go on after it
        for other in wholes:
            made.setdefault(one + other, (one, other))
    tokens = [*alphabet, *made, "<|end|>"]
    keys = {
        "tokenizer.ggml.pre": pre_tokenizer,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [*[NORMAL] * (len(tokens) - 1), CONTROL],
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in made.values()],
        "tokenizer.ggml.bos_token_id": len(tokens) - 1,
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
        "tokenizer.ggml.padding_token_id": None,
    }
    return write_tiny_gguf(
        path, num_tokens=261, vocabulary_only=True, metadata=keys | {"qwen2.vocab_size": len(tokens)}
    )
