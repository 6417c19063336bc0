"""Where the prompt of `generate` comes from: the argument, standard input, or token ids. All of it before any model."""

from __future__ import annotations

import sys
from typing import Any

from forerun.cli import values
from forerun.errors import ParameterError, PromptError


def read_prompt(prompt: str | None, prompt_ids: str | None, as_chat: bool) -> Any:
    """Text, token ids or one chat message; InputError if there is none, two, or it is not valid UTF-8."""
    if prompt_ids is not None:
        if prompt is not None or as_chat:
            raise ParameterError("prompt_ids", "was given together with a PROMPT or --chat", "give one of them")
        return values.prompt_ids(prompt_ids)
    if prompt is None:
        if sys.stdin is None or sys.stdin.isatty():
            raise PromptError("there is no PROMPT", "", "give one in quotes, or - to read it from standard input")
        prompt = "-"
    text = _read_stdin() if prompt == "-" else prompt
    check_text(text, "the prompt")
    if not text:
        raise PromptError(
            "the prompt is empty", "a model needs at least one token to start from", "give a PROMPT in quotes"
        )
    return [{"role": "user", "content": text}] if as_chat else text


def check_text(text: str, what: str) -> None:
    """Refuse text that holds bytes which were no UTF-8 (the shell and the terminal hand them on as surrogates)."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptError(
            f"{what} is not valid UTF-8", f"at character {error.start}", "convert it, for example with iconv -t utf-8"
        ) from None


def decode(data: bytes, what: str) -> str:
    """UTF-8 bytes as text, exactly; PromptError names the first bad byte."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(
            f"{what} is not valid UTF-8",
            f"byte 0x{data[error.start]:02x} at offset {error.start}",
            "convert it, for example with iconv -t utf-8",
        ) from None


def _read_stdin() -> str:
    if sys.stdin is None:
        raise PromptError("standard input is closed", "", "give the prompt as an argument")
    return decode(sys.stdin.buffer.read(), "standard input")
