"""What is refused in a pattern before the library sees it, and the library's own refusals in one line."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from forerun.errors import ParameterError

MAX_PATTERN = 100_000
"""Characters in a regular expression."""

MAX_TEXTS = 10_000
"""Texts in a list of those that are legal."""

PATTERN_HELP = "use classes, groups, alternatives and repetition, in the syntax of Rust's regex crate"

PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[*+?}]\+|.", re.DOTALL)
"""A pattern cut as far as the table below needs it: an escape, a class, a possessive quantifier or one character."""

UNSUPPORTED = (
    (re.compile(r"\(\?<?[=!]"), "look-arounds"),
    (re.compile(r"\\[1-9]|\\k|\(\?P="), "back-references"),
    (re.compile(r"\\[bB<>]"), "word boundaries"),
    (re.compile(r"\(\?>"), "atomic groups"),
    (re.compile(r"\(\?\("), "conditional groups"),
    (re.compile(r"\(\?#"), "comments"),
    (re.compile(r"\(\?[a-wyzA-Z]*x"), "verbose patterns"),
    (re.compile(r"[*+?}]\+"), "possessive quantifiers"),
)
"""Refused by name. The library would read the last two otherwise: a line break is an escape by then, and a possessive
quantifier two quantifiers."""

ZERO_WIDTH = {"Start": "^", "End": "$", "StartLF": "(?m)^", "EndLF": "(?m)$"}


def check_pattern(name: str, pattern: str) -> None:
    """Refuse, naming the construct, what a pattern cannot say here. `name` is the request's parameter."""
    try:
        pattern.encode()
    except UnicodeEncodeError as error:
        raise ParameterError(name, f"the pattern is not valid Unicode: {error}") from error
    if len(pattern) > MAX_PATTERN:
        raise ParameterError(name, f"the pattern has {len(pattern):,} characters", f"at most {MAX_PATTERN:,} are taken")
    for piece in PIECE.finditer(pattern):
        if piece[0].startswith("["):
            continue
        if piece[0] == "\\":
            raise ParameterError(name, f"{short(pattern)} ends inside an escape", "a backslash is written \\\\")
        for syntax, what in UNSUPPORTED:
            if found := syntax.match(pattern, piece.start()):
                where = f"{found[0]!r} at {piece.start()} in {short(pattern)}"
                raise ParameterError(name, f"{what} are not supported: {where}", PATTERN_HELP)


def check_texts(name: str, texts: Any) -> tuple[str, ...]:
    """The texts of a list, each once."""
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Sequence) or not texts:
        raise ParameterError(name, f"a list of texts is needed, not {short(texts)}", 'for example ["yes", "no"]')
    for text in texts:
        if not isinstance(text, str) or not text:
            raise ParameterError(
                name, f"{short(text)} is no text that can be written", "give texts of a character or more"
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ParameterError(name, f"{short(text)} is not valid Unicode: {error}") from error
    if len(texts) > MAX_TEXTS or (length := sum(map(len, texts))) > MAX_PATTERN:
        size = f"{len(texts):,} texts" if len(texts) > MAX_TEXTS else f"{length:,} characters"
        raise ParameterError(
            name, f"it has {size}", f"at most {MAX_TEXTS:,} texts of {MAX_PATTERN:,} characters are taken"
        )
    return tuple(dict.fromkeys(texts))


def as_pattern(text: str) -> str:
    """A pattern that a text matches, and no other, in the library's syntax and between slashes too."""
    return re.sub(r"[^A-Za-z0-9]", lambda sign: f"\\x{{{ord(sign[0]):x}}}", text)


def explain(message: str) -> str:
    """The library's reason in one line: without its listing of a grammar that the user has not written, and with the
    part of a pattern that it points at."""
    head = message.split("\n   1 | ", 1)[0].split("\n<non-verbose/>", 1)[0]
    if found := re.search(r"regex parse error:\n {4}(.*)\n {4}( *)(\^+)\nerror: (.*)", head):
        construct = found[1][len(found[2]) : len(found[2]) + len(found[3])]
        return f"{found[4]}, at {short(construct)} in {short(found[1])}"
    if found := re.search(r"lookarounds not supported yet; (\w+)", head):
        return f"look-arounds are not supported, and {ZERO_WIDTH.get(found[1], found[1])} inside a pattern is one"
    if "oneOf constraints are not supported" in head:
        return "oneOf is supported only where its alternatives cannot overlap; anyOf always is"
    head = re.sub(r"^at \d+\(\d+\): ", "", head)
    head = re.sub(r"^(failed to compile JSON schema: |invalid regex .* \(in regex\): )", "", head, flags=re.DOTALL)
    return " ".join(head.split())[:200]


def short(value: Any) -> str:
    """A value as an error message shows it."""
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 80 else text[:77] + "..."
