"""Answers of chats: thoughts, then text with calls of tools in it, or a text that a grammar describes.

What is free up to a mark is a lazy lexeme of the library: it ends where the mark is complete for the first time, be it
in the middle of a token, and from there on the grammar rules. So a call that begins is a whole one, a text without a
call is any text, and a token may end a call and go on with free text. A mark that is a control token is that token:
free text holds none of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from forerun.constraints.grammar import NOTATIONS, REMEDIES, CompiledGrammar
from forerun.constraints.marks import TAGGED, THOUGHTS, CallMarks
from forerun.constraints.named import named_rules, quoted
from forerun.constraints.vocabulary import Vocabulary

Thinking = Literal["never", "maybe", "begun"]
"""Whether thoughts may come first: not at all, if the text begins with their opening mark, or the prompt has opened
them."""

GAP = r"/[ \n\r\t]{0,2}/"
"""Blanks inside the marks of a call, and between two calls where no other text is."""


@dataclass(frozen=True)
class Form:
    """What an answer may be. Everything in it can be hashed, so that equal forms are compiled once.

    `body`: what the text must be, as (parameter, what was given, a schema as JSON); None: any text, in which calls may
    begin where there is a `call`: the JSON schema of one or, of a family that writes names outside JSON, of each tool's
    arguments by its name, as JSON. With both, the text is calls or the body. `must_call`: it is
    calls and nothing else. `only_one`: it ends with its first call. `marks` are those of calls, `thoughts` those of
    thoughts. `end_ids`: control tokens that end any text.
    """

    body: tuple[str, Any] | None = None
    call: str | None = None
    must_call: bool = False
    only_one: bool = False
    thinking: Thinking = "never"
    marks: CallMarks = TAGGED
    thoughts: tuple[str, str] = THOUGHTS
    end_ids: tuple[int, ...] = ()

    @property
    def is_free(self) -> bool:
        """Whether any text will do, calls apart."""
        return self.body is None and not self.must_call


def compile_form(form: Form, vocabulary: Vocabulary) -> CompiledGrammar:
    """The texts of a form. Free text is every text but control tokens; thoughts are free, and a text that a body
    describes has to come after them. ParameterError names what cannot be enforced, calls as `tools`."""
    inner = {} if form.body is None else {"body": NOTATIONS[form.body[0]](form.body[1])}
    called = "call: @call"
    if form.call is not None and form.marks.name is None:
        inner["call"] = NOTATIONS["json_schema"](form.call)
    elif form.call is not None:
        called, more = named_rules(form.call, form.marks, vocabulary)
        inner |= more
    name, remedy = "tools", "simplify the schemas of their parameters, or give fewer tools"
    if form.call is None and form.body is not None:
        name, remedy = form.body[0], REMEDIES[form.body[0]]
    text = _library_text(form, vocabulary) + ("" if form.call is None else "\n" + called)
    return CompiledGrammar(name, text, vocabulary, remedy, inner)


def _library_text(form: Form, vocabulary: Vocabulary) -> str:
    marks, (opening, closing) = form.marks, form.thoughts
    rules = {
        "start": _start(form),
        "answer": _answer(form),
        "text": "TEXT",
        "group": _group(form, vocabulary),
        "calls": _calls(form, vocabulary),
        **_up_to("lead", "TEXT", marks.begin, vocabulary),
        **_up_to("opened", r"/\s*/", opening, vocabulary),
        **_up_to("closed", "TEXT", closing, vocabulary),
        "TEXT": r"/(.|\n)*/",
        "GAP": GAP,
        "LINES": r"/\n{0,2}/",
    }
    if marks.bare:
        rules["other"], rules["OTHER"] = "OTHER", rf"/\s*([^\s\x{{{ord(marks.bare):x}}}](.|\n)*)?/"
        rules |= _up_to("first", "OTHER", marks.begin, vocabulary)
    ends = sorted(vocabulary.control_ids.intersection(form.end_ids) - set(vocabulary.eos_ids))
    if ends:
        for name in {"text", "other"} & rules.keys():
            rules[name] += f" <[{','.join(map(str, ends))}]>?"
    return "\n".join(f"{name}: {rules[name]}" for name in _needed(rules))


def _start(form: Form) -> str:
    if form.thinking == "never":
        return "answer"
    # Whoever must write something of a certain form may not end in the middle of thoughts.
    thoughts = "(text | closed answer)" if form.is_free else "closed LINES answer"
    return thoughts if form.thinking == "begun" else f"opened {thoughts} | answer"


def _answer(form: Form) -> str:
    if not form.is_free:
        choices = [*(["calls"] if form.call is not None else []), *(["@body"] if form.body is not None else [])]
        return " | ".join(choices)
    if form.call is None:
        return "text"
    rest = "" if form.only_one else " (lead group)* text"
    if form.marks.bare:  # what begins as a call is one
        return f"group{rest} | other | first group{rest}"
    return "text | lead group" if form.only_one else "(lead group)* text"


def _group(form: Form, vocabulary: Vocabulary) -> str:
    """Calls behind one mark."""
    marks = form.marks
    before, between, behind = (quoted(mark, vocabulary) for mark in (marks.before, marks.between, marks.behind))
    more = f" (GAP {between} GAP call)*" if between and not form.only_one else ""
    return "".join((f"GAP {before} " if before else "", f"GAP call{more}", f" GAP {behind}" if behind else ""))


def _calls(form: Form, vocabulary: Vocabulary) -> str:
    """An answer that is calls alone."""
    begin = quoted(form.marks.begin, vocabulary)
    first = f"({begin})? group" if form.marks.bare else f"{begin} group"
    return first if form.only_one or form.marks.bare else f"{first} (GAP {begin} group)*"


def _up_to(name: str, text: str, mark: str, vocabulary: Vocabulary) -> dict[str, str]:
    """A rule for a text and the mark that ends it."""
    is_control = vocabulary.control_id(mark) is not None
    return {name if is_control else f"{name}[lazy]": f"{text} {quoted(mark, vocabulary)}"}


def _needed(rules: Mapping[str, str]) -> list[str]:
    """The rules that `start` needs: the library refuses some that are not used."""
    by_name = {name.partition("[")[0]: name for name in rules}
    found, waiting = ["start"], ["start"]
    while waiting:
        body = rules[by_name[waiting.pop()]]
        for word in body.replace("(", " ").replace(")", " ").replace("*", " ").split():
            if word in by_name and word not in found:
                found.append(word)
                waiting.append(word)
    return [by_name[name] for name in found]
