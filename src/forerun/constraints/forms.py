"""Answers of chats: thoughts, then text with calls of tools in it, or a text that a grammar describes.

What is free up to a mark is a lazy lexeme of the library: it ends where the mark is complete for the first time, be it
in the middle of a token, and from there on the grammar rules. So a call that begins is a whole one, a text without a
call is any text, and a token may end a call and go on with free text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from forerun.constraints.grammar import NOTATIONS, REMEDIES, CompiledGrammar
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
    begin where there is a `call`, the JSON schema of one. With both, the text is calls or the body. `only_one`: it ends
    with its first call. `calls` and `thoughts` are the marks around them. `end_ids`: control tokens that end any text.
    """

    body: tuple[str, Any] | None = None
    call: str | None = None
    only_one: bool = False
    thinking: Thinking = "never"
    calls: tuple[str, str] = ("<tool_call>", "</tool_call>")
    thoughts: tuple[str, str] = ("<think>", "</think>")
    end_ids: tuple[int, ...] = ()


def compile_form(form: Form, vocabulary: Vocabulary) -> CompiledGrammar:
    """The texts of a form. Free text is every text but control tokens; thoughts are free, and a text that a body
    describes has to come after them. ParameterError names what cannot be enforced, calls as `tools`."""
    inner = {} if form.body is None else {"body": NOTATIONS[form.body[0]](form.body[1])}
    if form.call is not None:
        inner["call"] = NOTATIONS["json_schema"](form.call)
    name, remedy = "tools", "simplify the schemas of their parameters, or give fewer tools"
    if form.call is None and form.body is not None:
        name, remedy = form.body[0], REMEDIES[form.body[0]]
    return CompiledGrammar(name, _library_text(form, vocabulary), vocabulary, remedy, inner)


def _library_text(form: Form, vocabulary: Vocabulary) -> str:
    (begin_call, end_call), (begin_thoughts, end_thoughts) = map(_quoted, form.calls), map(_quoted, form.thoughts)
    rules = {
        "start": _start(form),
        "answer": _answer(form),
        "text": "TEXT",
        "lead[lazy]": f"TEXT {begin_call}",
        "calls": f"{begin_call} call" if form.only_one else f"{begin_call} call (GAP {begin_call} call)*",
        "call": f"GAP @call GAP {end_call}",
        "opened[lazy]": f"/\\s*/ {begin_thoughts}",
        "closed[lazy]": f"TEXT {end_thoughts}",
        "TEXT": r"/(.|\n)*/",
        "GAP": GAP,
        "LINES": r"/\n{0,2}/",
    }
    ends = sorted(vocabulary.control_ids.intersection(form.end_ids) - set(vocabulary.eos_ids))
    if ends:
        rules["text"] = f"TEXT <[{','.join(map(str, ends))}]>?"
    return "\n".join(f"{name}: {rules[name]}" for name in _needed(rules))


def _start(form: Form) -> str:
    if form.thinking == "never":
        return "answer"
    # Whoever must write something of a certain form may not end in the middle of thoughts.
    thoughts = "(text | closed answer)" if form.body is None else "closed LINES answer"
    return thoughts if form.thinking == "begun" else f"opened {thoughts} | answer"


def _answer(form: Form) -> str:
    if form.body is not None:
        return "@body" if form.call is None else "calls | @body"
    if form.call is None:
        return "text"
    return "text | lead call" if form.only_one else "(lead call)* text"


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


def _quoted(mark: str) -> str:
    return json.dumps(mark, ensure_ascii=False)
