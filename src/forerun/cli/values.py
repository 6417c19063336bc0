"""Values that a command line can only hold as text: token ids, biases, texts with escapes, a schema or its file.

What is read here is as `SamplingParams` takes it, which checks the ranges.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from forerun.errors import ParameterError, PromptError

ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}
"""What may follow a backslash in a text, and what it then stands for."""


def token_ids(name: str, text: str, example: str) -> list[int]:
    """Token ids between commas, spaces or both. ParameterError names the first part that is none."""
    ids = []
    for part in text.replace(",", " ").split():
        try:
            ids.append(int(part))
        except ValueError:
            raise ParameterError(name, f"{part!r} is not a token id", f"for example {example}") from None
    return ids


def biases(pairs: Sequence[str]) -> list[tuple[str, float]]:
    """Each ID=VALUE as a pair. The id stays text: `SamplingParams` knows which spellings are plain numbers."""
    found = []
    for pair in pairs:
        token, equals, value = pair.partition("=")
        try:
            found.append((token.strip(), float(value)))
        except ValueError:
            fact = f"{value!r} is not a number" if equals else f"{pair!r} is not ID=VALUE"
            raise ParameterError("logit_bias", fact, "for example --logit-bias 1234=-100") from None
    return found


def texts(name: str, given: Sequence[str]) -> list[str]:
    """Each text with its escapes read."""
    return [unescaped(name, require_utf8(name, text)) for text in given]


def unescaped(name: str, text: str) -> str:
    r"""`\n`, `\t`, `\r` and `\\` as the characters they stand for; any other backslash is refused, so that none is lost
    unnoticed."""

    def character(found: re.Match[str]) -> str:
        if found[1] not in ESCAPES:
            what = f"{found[0]} is not an escape" if found[1] else "it ends with half an escape"
            raise ParameterError(name, what, r"\n, \t, \r and \\ are: write \\ for a backslash")
        return ESCAPES[found[1]]

    return re.sub(r"\\(.?)", character, text, flags=re.DOTALL)


def schema(text: str) -> str:
    """JSON as it was typed, or the content of the file named after an @."""
    name = "json_schema"
    if not text.startswith("@") and text.endswith(".json"):
        raise ParameterError(name, f"{text!r} is no JSON", f"for the content of a file: --json-schema @{text}")
    return _or_file(name, text, "@FILE names a file that holds JSON")


def grammar(text: str) -> str:
    """A grammar as it was typed, or the content of the file named after an @."""
    name = "grammar"
    if text.endswith((".gbnf", ".lark", ".ebnf")) and not text.startswith("@"):
        raise ParameterError(name, f"{text!r} is no grammar", f"for the content of a file: --grammar @{text}")
    return _or_file(name, text, "@FILE names a file that holds a grammar")


def _or_file(name: str, text: str, remedy: str) -> str:
    if not text.startswith("@"):
        return require_utf8(name, text)
    path = Path(text[1:])
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ParameterError(name, f"{path} is not valid UTF-8, at byte {error.start}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ParameterError(name, f"{path} cannot be read: {reason}", remedy) from None


def require_utf8(name: str, text: str) -> str:
    """Refuse text that holds bytes which were no UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ParameterError(name, f"it is not valid UTF-8, at character {error.start}") from None
    return text


def prompt_ids(text: str) -> list[int]:
    """The token ids of a prompt: at least one."""
    example = '--prompt-ids "1, 2, 3"'
    ids = token_ids("prompt_ids", text, example)
    if not ids:
        raise PromptError("the prompt is empty", "--prompt-ids holds no token id", f"for example {example}")
    return ids
