"""The marks by which models set thoughts and calls of tools apart from the rest of an answer: the one table of them."""

from __future__ import annotations

from dataclasses import dataclass

THOUGHTS = ("<think>", "</think>")
"""What stands around thoughts."""

CALL_ID = "[A-Za-z0-9]{9}"
"""The ids that models write behind names, as a pattern."""


@dataclass(frozen=True, slots=True)
class CallMarks:
    """How the models of a family write calls.

    `begin` announces calls, `before` comes ahead of the first (blanks may stand around it), `between` ahead of every
    other, and `behind` after the last. Where the family may leave `begin` out, `bare` is the sign with which an answer
    that is a call begins.

    Without `name`, a call is JSON, the name first and then `arguments`, which is that key. `name` is what stands around
    a name outside JSON; behind it an id may come that `id_mark` announces, and then the arguments. Those are one JSON
    object, or, with `parameter`, written one at a time: it is what stands before a parameter's name, between the name
    and the value, and behind the value, and `closing` follows the last of them.

    A template that teaches all this holds all of `signs`. `call_id` makes ids of 32 hex digits: some templates take
    back no others than they are used to.
    """

    signs: tuple[str, ...]
    begin: str
    before: str = ""
    between: str = ""
    behind: str = ""
    bare: str = ""
    arguments: str = "arguments"
    name: tuple[str, str] | None = None
    id_mark: str = ""
    parameter: tuple[str, str, str] | None = None
    closing: str = ""
    call_id: str = "call_{:.24}"

    @property
    def texts(self) -> frozenset[str]:
        """Those that a vocabulary may have as control tokens."""
        return frozenset({self.begin, self.behind, self.id_mark, *(self.name or ())} - {""})

    @property
    def last(self) -> str:
        """What ends the last call, once its arguments are complete."""
        return self.behind or ("}" if self.name is None else "")


TAGGED = CallMarks(("<tool_call>",), begin="<tool_call>", behind="</tool_call>")
"""Qwen, Hermes and SmolLM; also where a template says nothing of tools."""

CALL_MARKS = (
    # Mistral from tokenizer v11 on: [TOOL_CALLS]NAME[ARGS]{...} for each call; v11 has [CALL_ID] and an id behind NAME
    CallMarks(
        ("[TOOL_CALLS]", "[ARGS]"), begin="[TOOL_CALLS]", name=("", "[ARGS]"), id_mark="[CALL_ID]", call_id="{:.9}"
    ),
    # Qwen3-Coder: <function=NAME>, then each of <parameter=KEY>\nVALUE\n</parameter>, then </function>
    CallMarks(
        ("<tool_call>", "<parameter="), begin="<tool_call>", behind="</tool_call>", name=("<function=", ">"),
        parameter=("<parameter=", ">", "\n</parameter>"), closing="</function>",
    ),
    TAGGED,
    # Mistral: [TOOL_CALLS] [{"name": ..., "arguments": ...}, ...]; ids of nine letters and digits
    CallMarks(("[TOOL_CALLS]",), begin="[TOOL_CALLS]", before="[", between=",", behind="]", call_id="{:.9}"),
    # Llama 3: {"name": ..., "parameters": ...}, with <|python_tag|> before it or without
    CallMarks(('"parameters": dictionary',), begin="<|python_tag|>", bare="{", arguments="parameters"),
)  # fmt: skip
"""The first that fits a template is the one."""


def call_marks_of(template: str | None) -> CallMarks:
    """How a model with this chat template writes calls."""
    fitting = (marks for marks in CALL_MARKS if all(sign in (template or "") for sign in marks.signs))
    return next(fitting, TAGGED)
