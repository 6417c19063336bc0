"""The marks by which models set thoughts and calls of tools apart from the rest of an answer: the one table of them."""

from __future__ import annotations

from dataclasses import dataclass

THOUGHTS = ("<think>", "</think>")
"""What stands around thoughts."""


@dataclass(frozen=True, slots=True)
class CallMarks:
    """How the models of a family write calls: as JSON, the name first and then `arguments`, which is that key.

    `begin` announces calls, `before` comes ahead of the first (blanks may stand around it), `between` ahead of every
    other, and `behind` after the last. Where the family may leave `begin` out, `bare` is the sign with which an answer
    that is a call begins. `sign` is what chat templates hold that teach all this. `call_id` makes ids of 32 hex digits:
    some templates take back no others than they are used to.
    """

    sign: str
    begin: str
    before: str = ""
    between: str = ""
    behind: str = ""
    bare: str = ""
    arguments: str = "arguments"
    call_id: str = "call_{:.24}"

    @property
    def texts(self) -> frozenset[str]:
        """Those that a vocabulary may have as control tokens."""
        return frozenset({self.begin, self.behind} - {""})


TAGGED = CallMarks("<tool_call>", begin="<tool_call>", behind="</tool_call>")
"""Qwen, Hermes and SmolLM; also where a template says nothing of tools."""

CALL_MARKS = (
    TAGGED,
    # Mistral: [TOOL_CALLS] [{"name": ..., "arguments": ...}, ...]; ids of nine letters and digits
    CallMarks("[TOOL_CALLS]", begin="[TOOL_CALLS]", before="[", between=",", behind="]", call_id="{:.9}"),
    # Llama 3: {"name": ..., "parameters": ...}, with <|python_tag|> before it or without
    CallMarks('"parameters": dictionary', begin="<|python_tag|>", bare="{", arguments="parameters"),
)


def call_marks_of(template: str | None) -> CallMarks:
    """How a model with this chat template writes calls."""
    return next((marks for marks in CALL_MARKS if template is not None and marks.sign in template), TAGGED)
