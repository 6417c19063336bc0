"""Text to token ids and back, for any model that can be loaded.

Defaults are those of raw completion: what the model wants before a prompt (its BOS token, if the file says so) is
added, and the text of control tokens in the prompt is read as those tokens, as llama.cpp's
`llama_tokenize(add_special=true, parse_special=true)` and transformers do. One thing differs from both: a prompt that
already begins with BOS does not get another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from forerun.errors import ParameterError, PromptError
from forerun.models.chat import ChatTemplate, map_strings, no_template, plain, plain_messages
from forerun.models.detokenizer import Detokenizer
from forerun.models.gguf_shards import is_split_model
from forerun.models.tokenizer_parts import GUARD, TokenizerParts

FROM_USERS = ("tools", "documents")
"""Template variables that, like messages, may hold what strangers wrote."""

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a GGUF file (or its shards) or of a transformers directory. No weights are read.

    Raises UnknownModelError, FileFormatError or UnsupportedModelError, each with what to do about it.
    """
    path = Path(path)
    if path.is_dir() and not is_split_model(path):
        from forerun.models.directory_tokenizer import read_directory_tokenizer

        return Tokenizer(read_directory_tokenizer(path))
    from forerun.models.gguf import open_gguf
    from forerun.models.gguf_tokenizer import read_gguf_tokenizer

    with open_gguf(path) as file:
        return Tokenizer(read_gguf_tokenizer(file))


class Tokenizer:
    """Made by `load_tokenizer`.

    `vocabulary_size` counts the real ids, 0 to n - 1: rows that a model has beyond them are padding and have no
    text. `eos_ids` are all ids that end generation. `parts` is what the file says.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self.parts = parts
        self.vocabulary_size = parts.vocabulary_size
        self.bos_id = parts.bos_id
        self.eos_ids = parts.eos_ids
        self.chat_template = parts.chat_template
        self._bytes: dict[int, bytes] = {}

    # -- text to ids ---------------------------------------------------------------------------------------------------

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """The ids of a prompt. Without `add_special` nothing is put around it; without `parse_special` the text of
        control tokens ("<|im_end|>") is ordinary text, as anything a stranger wrote should be. Other added tokens
        ("<tool_call>" in Qwen's vocabularies) are recognised in both cases, as in llama.cpp.
        """
        if not isinstance(text, str):
            raise PromptError(f"text is expected, not {type(text).__name__}")
        ids = self._ids(text if parse_special else self._guard(text), may_have_control=parse_special)
        return self._surround(ids) if add_special else ids

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        parse_special: bool = False,
        **extra: Any,
    ) -> list[int]:
        """The ids of a conversation. Control tokens come from the template only: their text inside a message is
        ordinary text unless `parse_special`, so nobody can forge a turn. BOS is there once if the model wants it,
        whether or not the template writes it. `extra` as in `render_chat`.
        """
        template, extra = self._template(), plain(extra)
        given = {"messages": plain_messages(messages), **{name: extra[name] for name in FROM_USERS if name in extra}}
        settings = {"add_generation_prompt": add_generation_prompt, **extra}
        text = template.render(**{**settings, **given})
        guarded = given if parse_special else map_strings(given, self._guard)
        if guarded != given:
            marked = template.render(**{**settings, **guarded})
            if marked.replace(GUARD, "") != text.replace(GUARD, ""):
                raise PromptError(
                    "the chat template rewrites a control token's text that stands in a message",
                    "so it cannot be kept apart from the template's own control tokens",
                    "take the text out of the message, or allow it with parse_special=True",
                )
            text = marked
        return self._surround(self._ids(text), suffix=False)

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **extra: Any
    ) -> str:
        """The conversation as the model's own template writes it, up to where the assistant's next turn begins.
        `extra` goes to the template: tools, documents, enable_thinking and the like."""
        return self._template().render(messages, add_generation_prompt=add_generation_prompt, **extra)

    # -- ids to text ---------------------------------------------------------------------------------------------------

    def decode(self, ids: Iterable[int], *, skip_special: bool = True, continues: bool = False) -> str:
        """The text of `ids`, control tokens left out unless `skip_special` is off. Bytes that are no UTF-8 become
        U+FFFD. SentencePiece vocabularies put a space before the first word of a text, which is dropped unless the
        text `continues` another, such as a prompt."""
        return self.detokenizer(skip_special=skip_special, continues=continues).decode(ids)

    def detokenizer(
        self, *, skip_special: bool = True, continues: bool = False, shown: frozenset[int] = frozenset()
    ) -> Detokenizer:
        """`decode`, one id at a time; `shown` control tokens are never left out."""
        skip = self.parts.control_ids - shown if skip_special else frozenset()
        return Detokenizer(self.token_bytes, skip, self.parts.strips_space and not continues)

    def token(self, token_id: int) -> str:
        """The token as the vocabulary spells it ("Ġthe", "▁the"); empty for an id the file leaves out."""
        return self.tokens[self._check(token_id)]

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes the token stands for. A control token stands for its own text."""
        known = self._bytes.get(token_id)
        if known is None:
            text = self.token(token_id)
            known = self._bytes[token_id] = text.encode() if token_id in self.parts.added_ids else self._meaning(text)
        return known

    @cached_property
    def tokens(self) -> list[str]:
        """Every token as the vocabulary spells it, by id."""
        tokens = [""] * self.vocabulary_size
        for text, index in self.parts.backend.get_vocab(with_added_tokens=True).items():
            tokens[index] = text
        return tokens

    # -- plumbing ------------------------------------------------------------------------------------------------------

    def _ids(self, text: str, may_have_control: bool = True) -> list[int]:
        """The ids of a text and nothing around it."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:  # half a surrogate pair is no character
            raise PromptError(
                f"the text is not valid Unicode: {error}", "", "decode it with errors='replace'"
            ) from error
        ids: list[int] = self.parts.backend.encode(text, add_special_tokens=False).ids
        if not may_have_control and not self.parts.control_ids.isdisjoint(ids):
            raise PromptError(
                "a control token's text cannot be kept apart from the token itself in this vocabulary",
                "its tokenizer.json looks for it after normalising the text",
                "take it out of the text, or allow it with parse_special=True",
            )
        return ids

    def _surround(self, ids: list[int], suffix: bool = True) -> list[int]:
        """Add what the model wants around a prompt, where it is not there yet."""
        before, after = list(self.parts.prefix), list(self.parts.suffix) if suffix else []
        if ids[: len(before)] != before:
            ids = before + ids
        if after and ids[-len(after) :] != after:
            ids = ids + after
        return ids

    def _guard(self, text: str) -> str:
        """Make the text of control tokens ordinary: GUARD between its characters keeps it from being recognised."""
        return self._control_pattern.sub(lambda match: GUARD.join(match[0]), text)

    @cached_property
    def _control_pattern(self) -> re.Pattern[str]:
        texts = sorted({self.tokens[i] for i in self.parts.control_ids}, key=len, reverse=True)
        return re.compile("|".join(re.escape(text) for text in texts if text) or "(?!)")

    def _template(self) -> ChatTemplate:
        if self.chat_template is None:
            raise no_template()
        if self._compiled is None or self._compiled.source != self.chat_template:
            self._compiled = ChatTemplate(self.chat_template, self.parts.special_tokens)
        return self._compiled

    _compiled: ChatTemplate | None = None

    def _check(self, token_id: int) -> int:
        if not 0 <= token_id < self.vocabulary_size:
            raise ParameterError("token id", f"{token_id} is outside 0..{self.vocabulary_size - 1}")
        return token_id

    def _meaning(self, text: str) -> bytes:
        """The bytes that an ordinary token's string stands for."""
        if self.parts.style == "byte-level":
            try:
                return bytes(map(BYTE_OF.__getitem__, text))
            except KeyError:  # not in the alphabet: the string stands for itself
                return text.encode()
        byte = BYTE_TOKEN.fullmatch(text)
        return bytes([int(byte[1], 16)]) if byte else text.replace("▁", " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 characters stand for their own byte, the other 68 bytes are written as the
    characters from U+0100 on, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


BYTE_OF = _byte_alphabet()
