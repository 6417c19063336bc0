"""What a file says about its tokenizer, whichever file it was: the record that Tokenizer is made from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import tokenizers
from tokenizers import normalizers

from forerun.errors import FileFormatError

GUARD = "\U0010fffe\U0010ffff"
"""Two noncharacters that the normaliser deletes after control tokens were looked for. Put between the characters of
a control token's text they make it ordinary text; in any other text they are dropped."""


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """`backend` is never asked to add special tokens: `prefix` and `suffix` are what the model wants around a prompt.

    `style` says how a token's string stands for bytes: "byte-level" (GPT-2's alphabet of 256 characters) or
    "sentencepiece" (U+2581 for a space, <0xNN> for a byte). The strings of `added_ids` stand for themselves, and
    `control_ids` among them are no text. `special_tokens` are what templates call bos_token, eos_token and so on.
    """

    backend: tokenizers.Tokenizer
    style: Literal["byte-level", "sentencepiece"]
    vocabulary_size: int
    added_ids: frozenset[int]
    control_ids: frozenset[int]
    bos_id: int | None
    eos_ids: tuple[int, ...]
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    strips_space: bool
    source: Literal["gguf", "transformers"]
    chat_template: str | None = None
    special_tokens: Mapping[str, str] = field(default_factory=dict)


def guard_normalizer(inner: Any = None) -> Any:
    """A normaliser that drops GUARD, then does what `inner` does."""
    drop = normalizers.Replace(GUARD, "")
    return normalizers.Sequence([drop, inner]) if inner is not None else normalizers.Sequence([drop])


def check_id(value: Any, key: str, num_tokens: int, where: str) -> int | None:
    """A special token's id as a file gives it: None if missing or 2^32 - 1 (a -1 that lost its sign)."""
    if value is None or value == 0xFFFFFFFF:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < num_tokens:
        raise FileFormatError(f"{key} is {value!r} and the vocabulary has {num_tokens} tokens", f"in {where}")
    return value


def unique(ids: Iterable[int | None]) -> tuple[int, ...]:
    """The ids that are there, each once, in the order given."""
    return tuple(dict.fromkeys(i for i in ids if i is not None))
