"""GBNF, llama.cpp's notation of grammars, which vLLM, SGLang and xgrammar call EBNF: `root ::= "a" b*`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from forerun.constraints.characters import ANY, Ranges, complement, merged
from forerun.constraints.checks import short
from forerun.constraints.notation import Chars, Node, Reader, Ref, Seq, Token

SURROGATES = range(0xD800, 0xE000)


class Gbnf(Reader):
    """A character is what it matches: there is no lexer."""

    definition = "::="
    pattern = re.compile(
        r"""(?P<space>[ \t\r\n]+|\#[^\n]*)|(?P<string>"(?:[^"\\\n]|\\.)*")
        |(?P<set>\[(?:[^\]\\\n]|\\.)*\])|(?P<name>[\w-]+)
        |(?P<count>\{\s*\d*\s*(?:,\s*\d*\s*)?\})|(?P<sign>::=|[|()*+?.])""",
        re.VERBOSE | re.ASCII,
    )
    refused = (
        (r"!?<", "a token in angle brackets is not supported: a grammar describes text"),
        (r"\[", "a set of characters without an end"),
        (r"\{", "a count is {n}, {n,} or {n,m}"),
    )

    def _item(self) -> Node | None:
        token = self.token
        if self._begins_rule() or token.kind == "end":
            return None
        if token.kind == "string":
            self.at += 1
            signs = [sign for sign, _ in self._characters(token.text[1:-1], token.place + 1)]
            parts = tuple(Chars(((sign, sign),)) for sign in signs)
            return parts[0] if len(parts) == 1 else Seq(parts)
        if token.kind == "set":
            self.at += 1
            return Chars(self._set(token))
        if token.kind == "name":
            self.at += 1
            return Ref(token.text, token.place)
        if self._take("."):
            return Chars(ANY)
        if self._take("("):
            return self._group(")")
        if token.text in ("|", ")"):
            if token.text == ")" and not self.depth:
                raise self.fail("a group that was never begun ends")
            return None
        raise self.fail(f"{short(token.text)} has nothing before it")

    def _set(self, token: Token) -> Ranges:
        inside, place = token.text[1:-1], token.place + 1
        is_negated = inside.startswith("^")
        signs = list(self._characters(inside[is_negated:], place + is_negated))
        ranges: list[tuple[int, int]] = []
        at = 0
        while at < len(signs):
            low = high = signs[at][0]
            # A line between two characters is a range, written as an escape or at either end it is itself.
            if at + 2 < len(signs) and signs[at + 1] == (ord("-"), False):
                high, at = signs[at + 2][0], at + 2
            if high < low:
                raise self.fail(f"the range {chr(low)!r} to {chr(high)!r} is the wrong way round", token.place)
            ranges.append((low, high))
            at += 1
        found = complement(merged(ranges)) if is_negated else merged(ranges)
        if not found:
            raise self.fail(f"no character is in {short(token.text)}", token.place)
        return found

    def _characters(self, text: str, place: int) -> Iterator[tuple[int, bool]]:
        """Code points of a text with escapes, and whether each was one."""
        at = 0
        while at < len(text):
            if text[at] != "\\":
                yield ord(text[at]), False
                at += 1
                continue
            kind = text[at + 1]
            digits = {"x": 2, "u": 4, "U": 8}.get(kind, 0)
            code = text[at + 2 : at + 2 + digits]
            if digits and not re.fullmatch(f"[0-9a-fA-F]{{{digits}}}", code):
                raise self.fail(f"\\{kind} needs {digits} hexadecimal digits", place + at)
            known = {"n": "\n", "r": "\r", "t": "\t"}.get(kind, kind if kind in '"\\[]-^' else "")
            if not digits and not known:
                raise self.fail(
                    f"\\{kind} is no escape", place + at, r"\n \r \t \\ \" \[ \] \xHH \uHHHH \UHHHHHHHH are"
                )
            value = int(code, 16) if digits else ord(known)
            if value > 0x10FFFF or value in SURROGATES:
                raise self.fail(f"\\{kind}{code} is no character", place + at)
            yield value, True
            at += 2 + digits
