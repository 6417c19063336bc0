"""What a grammar needs to know of a vocabulary, and the library's prefix tree of it, built once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
from llguidance import LLTokenizer

from forerun.constraints.base import Mask
from forerun.errors import ParameterError

if TYPE_CHECKING:
    from forerun.models.tokenizer import Tokenizer


@dataclass(frozen=True)
class Vocabulary:
    """Ids 0 to `size` - 1, which is the width of every mask.

    `token_bytes` gives a token's bytes (a part of a character is fine; an empty one is never legal) and is asked for
    ids below `num_tokens` only (None: `size`): rows from there on are padding. `control_ids` are no text, `eos_ids` end
    it, and a token may be in both. Keep one of these per model: building the prefix tree takes about half a second for
    150,000 tokens. Equal vocabularies share it for as long as any of them, or a grammar, is alive.
    """

    size: int
    token_bytes: Callable[[int], bytes]
    control_ids: frozenset[int] = frozenset()
    eos_ids: tuple[int, ...] = ()
    num_tokens: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "control_ids", frozenset(self.control_ids))
        object.__setattr__(self, "eos_ids", tuple(dict.fromkeys(self.eos_ids)))
        if self.size < 1 or not 0 <= self.num_real <= self.size:
            raise ParameterError("vocabulary", f"{self.num_real} tokens cannot be numbered in {self.size} ids")
        outside = next((i for i in (*self.eos_ids, *self.control_ids) if not 0 <= i < self.size), None)
        if outside is not None:
            raise ParameterError("vocabulary", f"id {outside} is outside 0..{self.size - 1}")

    @classmethod
    def of(cls, tokenizer: Tokenizer, size: int | None = None) -> Vocabulary:
        """The vocabulary of `tokenizer`. `size` is the width of a model's rows where that is not the tokenizer's: a
        padded one has more ids, a smaller head fewer."""
        width, real = (tokenizer.vocabulary_size if size is None else size), tokenizer.vocabulary_size
        return cls(
            size=width,
            token_bytes=tokenizer.token_bytes,
            control_ids=frozenset(_below(tokenizer.parts.control_ids, width)),
            eos_ids=tuple(_below(tokenizer.eos_ids, width)),
            num_tokens=min(real, width),
        )

    @property
    def num_real(self) -> int:
        """Ids that stand for a token: 0 to `num_real` - 1."""
        return self.size if self.num_tokens is None else self.num_tokens

    def control_id(self, text: str) -> int | None:
        """The control token that is written like this, if there is one."""
        found = (
            token for token in self.control_ids if token < self.num_real and self.token_bytes(token) == text.encode()
        )
        return min(found, default=None)

    @cached_property
    def library(self) -> Library:
        """The library's view, shared with equal vocabularies."""
        key = (self.size, self.token_bytes, self.control_ids, self.eos_ids, self.num_real)
        with _BUILDING:
            found = _LIBRARIES.get(key)
            if found is None:
                found = _LIBRARIES[key] = Library(self)
            return found


class Library:
    """The prefix tree of a vocabulary and the masks that do not depend on a grammar."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        tokens = [vocabulary.token_bytes(i) for i in range(vocabulary.num_real)]
        tokens += [b""] * (vocabulary.size - vocabulary.num_real)
        # The library wants an end-of-text id. A model without one gets an id beyond every mask.
        eos_ids = list(vocabulary.eos_ids) or [vocabulary.size]
        tokens += [b""] * (eos_ids[0] - vocabulary.size + 1)
        special = sorted({*vocabulary.control_ids, *eos_ids})
        for token in special:  # names alone; one that "[7]" begins with would be legal where token 7 is
            tokens[token] = b"<%d>" % token
        wrapped: Any = _Tokens(tokens, special, eos_ids[0])
        self.tokenizer = LLTokenizer(wrapped, eos_token=eos_ids)
        self.eos_bit, self.num_eos = eos_ids[0], len(vocabulary.eos_ids)
        self.nothing: Mask = np.zeros(vocabulary.size, np.bool_)
        self.nothing.flags.writeable = False


class _Tokens:
    """The shape in which the library takes a vocabulary. It would call this to cut forced text into tokens, which
    grammars here forbid: the model chooses the tokens, and the mask leaves every spelling open."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokens: list[bytes], special: list[int], eos_id: int) -> None:
        self.tokens, self.special_token_ids, self.eos_token_id = tokens, special, eos_id

    def __call__(self, text: str) -> list[int]:
        raise NotImplementedError("the grammar must not force tokens")


_LIBRARIES: WeakValueDictionary[Any, Library] = WeakValueDictionary()
_BUILDING = Lock()


def _below(ids: Iterable[int], size: int) -> list[int]:
    return [i for i in ids if i < size]
