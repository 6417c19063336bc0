"""Tokenizers as the files of the native runtime's families have them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.models.tiny_gguf import CONTROL, USER_DEFINED, sentencepiece, write_tiny_gguf

from forerun.models.pretokenizers import PRE_TOKENIZERS
from forerun.models.tokenizer import load_tokenizer

NAMES = {
    "llama": ("llama-bpe", "smaug-bpe", "tekken", "falcon3"), "mistral3": ("tekken",), "qwen2": ("qwen2",),
    "qwen3": ("qwen2",), "phi3": ("gpt-4o", "dbrx"), "olmo2": ("dbrx",),
    "granite": ("refact", "dbrx", "granite-docling"), "smollm3": ("smaug-bpe", "llama-bpe"),
}  # fmt: skip
"""tokenizer.ggml.pre of their published files; gemma's, and older ones of llama and phi3, are SentencePiece."""


@pytest.mark.parametrize("family", NAMES)
def test_every_familys_rule_is_known(family: str, tmp_path: Path) -> None:
    for name in NAMES[family]:
        assert name in PRE_TOKENIZERS
        tokenizer = load_tokenizer(write_tiny_gguf(tmp_path / "m.gguf", metadata={"tokenizer.ggml.pre": name}))
        text = "def water(self):\n    return 12345 and more  \n"
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_gemma_takes_spaces_as_they_are(tmp_path: Path) -> None:
    """SentencePiece without a space put in front, and runs of white space as tokens of their own, with real spaces."""
    tokens, types, _ = sentencepiece(600)
    special = {20: "  ", 21: "    ", 22: "\n\n", 23: "<start_of_turn>", 24: "<end_of_turn>"}
    for index, token in special.items():
        tokens[index], types[index] = token, USER_DEFINED if index < 23 else CONTROL
    path = write_tiny_gguf(
        tmp_path / "m.gguf",
        kind="llama",
        metadata={
            "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types,
            "tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.eos_token_id": 2,
        },
    )  # fmt: skip
    tokenizer = load_tokenizer(path)
    for text in ("water", " water", "  water", "the water and\n\n    so  up ", "\n\n", " ", "a\n\n\nb", ""):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert ids[0] == tokenizer.bos_id
        assert (20 in ids) == ("  water" in text or "so  up" in text)
        assert (21 in ids) == ("    so" in text)
        assert (22 in ids) == ("\n\n" in text)
    assert tokenizer.encode("<start_of_turn>the", add_special=False)[0] == 23
    assert 24 in tokenizer.eos_ids
    first, second = tokenizer.encode("the", add_special=False), tokenizer.encode(" the", add_special=False)
    assert first != second
