"""Lark's notation of grammars: `start: "a" b*`. What is read here is checked; the library reads the same text again."""

from __future__ import annotations

import re

from forerun.constraints.checks import check_pattern, short
from forerun.constraints.notation import NAME, Node, Notation, Reader, Ref, Repeat, Seq, Terminal, Token
from forerun.errors import ParameterError


class Lark(Reader):
    """The part of Lark's notation that can be followed: no attributes, templates, priorities, control tokens."""

    definition = ":"
    pattern = re.compile(
        r"""(?P<space>[ \t\r\n]+|//[^\n]*|\#[^\n]*)|(?P<string>"(?:[^"\\\n]|\\.)*"i?)
        |(?P<regex>/(?:[^/\\\n]|\\.)+/[a-z]*)|(?P<directive>%(?:ignore|import)\b)|(?P<name>[A-Za-z_][\w-]*)
        |(?P<count>\{\s*\d*\s*(?:,\s*\d*\s*)?\}|~\s*\d+(?:\s*\.\.\s*\d+)?)|(?P<sign>->|\.\.|[:|()\[\]*+?!.&~,])""",
        re.VERBOSE | re.ASCII,
    )
    refused = (
        (r"%\w*", "$ is not supported (json_schema takes schemas, regex patterns)"),
        ("<", "a token in angle brackets is not supported: a grammar describes text"),
        ("@", "a grammar of another name is not supported"),
        ("'", "a text stands between double quotes"),
        ("/", "a pattern without an end"),
        (r"\{", "a count is {n}, {n,} or {n,m}, and templates are not supported"),
    )

    def __init__(self, notation: Notation) -> None:
        self.notation = notation
        found = re.search(r"^[ \t]*[?!]*\w+[ \t]*(\[[^\]\n\"]*\])[ \t]*:", notation.text, re.MULTILINE | re.ASCII)
        if found:
            raise self.fail(f"the attribute {short(found[1])} of a rule is not supported", found.start(1))
        super().__init__(notation)

    def _statement(self) -> None:
        token = self.token
        if token.kind != "directive":
            while self._take("?") or self._take("!"):
                pass
            super()._statement()
            return
        self.at += 1
        if token.text == "%ignore":
            self._alternatives()
        else:
            self._import()

    def _import(self) -> None:
        names = self._names()
        if self._take("->"):
            names = self._names()
        elif self._take("("):
            names = self._names()
            while self._take(","):
                names += self._names()
            if not self._take(")"):
                raise self.fail("a list of imports has no ')'")
        else:
            names = names[-1:]
        self.notation.imported.update(names)

    def _names(self) -> list[str]:
        """Names with dots between them."""
        names = []
        while self.token.kind == "name":
            names.append(self.token.text)
            self.at += 1
            if not self._take("."):
                break
        if not names:
            raise self.fail("a name is needed")
        return names

    def _is_modifier(self) -> bool:
        """Whether a ? at the beginning of a line belongs to the rule that follows."""
        before = self.notation.text[: self.token.place].rpartition("\n")[2]
        return self.token.text == "?" and not before.strip() and self.tokens[self.at + 2].text == ":"

    def _item(self) -> Node | None:
        token = self.token
        if self._begins_rule() or token.kind in ("end", "directive"):
            return None
        if token.kind in ("string", "regex"):
            return self._terminal(token)
        if token.kind == "name":
            self.at += 1
            return Ref(token.text, token.place)
        if self._take("("):
            return self._group(")")
        if self._take("["):
            return Repeat(self._group("]"), 0, 1)
        if self._take("~") or self._take("&"):
            return self._item()
        if self._take("->"):
            self._names()
            return self._item()
        if token.text in ("|", ")", "]", "!") or (token.text == "?" and self._is_modifier()):
            if token.text in ("]", ")") and not self.depth:
                raise self.fail("a group that was never begun ends")
            return None
        raise self.fail(f"{short(token.text)} cannot stand here")

    def _terminal(self, token: Token) -> Node:
        self.at += 1
        if token.kind == "regex":
            body, _, flags = token.text[1:].rpartition("/")
            try:
                check_pattern(NAME, body)
            except ParameterError as error:
                raise self.fail(f"in the pattern {short(token.text)}: {error.reason}", token.place) from error
            if "x" in flags:
                raise self.fail("verbose patterns are not supported", token.place)
        elif self._take(".."):
            if self.token.kind != "string":
                raise self.fail("a range ends with a character between quotes")
            self.at += 1
        elif token.text.rstrip("i") == '""':
            return Seq(())
        return Terminal()
