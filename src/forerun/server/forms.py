"""What the answer of a chat may be: its thoughts, its calls and the form that was asked for, as one grammar."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from forerun.constraints.cache import lookup_key
from forerun.constraints.calls import call_schema, named_calls
from forerun.constraints.marks import CallMarks, call_marks_of
from forerun.constraints.parameters import Parameter, parameters_of
from forerun.errors import ParameterError
from forerun.sampling import SamplingParams
from forerun.server.sampling import Asked
from forerun.server.tools import ToolWish

if TYPE_CHECKING:
    from forerun.constraints.forms import Thinking
    from forerun.llm import LLM
    from forerun.models.tokenizer import Tokenizer


def marks_of(llm: LLM) -> CallMarks:
    """How the model writes calls."""
    return call_marks_of(None if llm.tokenizer is None else llm.tokenizer.chat_template)


def mark_ids(tokenizer: Tokenizer | None, marks: Iterable[str]) -> frozenset[int]:
    """Control tokens that are marks: their text has to be shown, to find what they stand around."""
    if tokenizer is None:
        return frozenset()
    wanted = {mark.encode() for mark in marks}
    return frozenset(token for token in tokenizer.parts.control_ids if tokenizer.token_bytes(token) in wanted)


def left_over(wish: ToolWish, asked: Asked) -> ToolWish:
    """What is left of a wish beside the form that was asked for; what is not is told in the warnings."""
    structure = asked.params.structure
    if not wish.may_call or structure is None or structure[0] == "json_schema":
        return wish
    asked.warnings.append(f"tools: none can be called, since the whole text is what {structure[0]} says")
    return replace(wish, may_call=False)


def ready_chat(
    llm: LLM, params: SamplingParams, wish: ToolWish, thinking: Thinking, warnings: list[str]
) -> SamplingParams:
    """`LLM.ready` of a chat: a form that was asked for comes after the model's thoughts, and a call that it begins
    where it may call, or must, is one of a tool that was given. May take seconds. What tools' schemas cannot have
    enforced is told in `warnings`, or refused where the tool is strict or must be called.
    """
    if not wish.may_call:
        if thinking == "never" or params.structure is None:
            return llm.ready(params)
        return _with_form(llm, params, thinking)
    if params.ignore_eos:
        raise ParameterError("ignore_eos", "cannot be combined with tools that may be called", "leave one of them out")
    if params.structure is not None:
        llm.ready(params)  # what is wrong with it alone is said of it, not of the tools
    loose: set[str] = set()
    while True:
        try:
            return _with_form(llm, params, thinking, wish, loose)
        except ParameterError as error:
            found = _at_fault(error, wish, loose, marks_of(llm))
            if not found:
                raise
            for name in sorted(found):
                warnings.append(f"tools.{name}.parameters: any object is taken for them, as {error.reason}")
            loose |= found


def _with_form(
    llm: LLM, params: SamplingParams, thinking: Thinking, wish: ToolWish | None = None, loose: Collection[str] = ()
) -> SamplingParams:
    from forerun.constraints.forms import Form

    structure, marks = params.structure, marks_of(llm)
    form = Form(
        body=None if structure is None else (structure[0], lookup_key(*structure)),
        thinking=thinking,
        marks=marks,
        end_ids=params.stop_token_ids,
    )
    if wish is not None:
        call = json.dumps(_call(wish, loose, marks))
        form = replace(form, call=call, must_call=bool(wish.forced), only_one=wish.only_one)
    bare = replace(params, regex=None, json_schema=None, grammar=None, one_of=None)
    return replace(llm.ready(bare), constraint=llm.grammar("form", form))


def _call(wish: ToolWish, loose: Collection[str], marks: CallMarks) -> dict[str, Any]:
    """The schema of a call, or those of each tool's arguments. The parameters of `loose` tools are any object."""
    functions = [tool.function for tool in wish.forced or wish.tools]
    tools = [(one.name, None if one.name in loose else one.parameters) for one in functions]
    return call_schema(tools, marks.arguments) if marks.name is None else named_calls(tools, marks)


def written_parameters(wish: ToolWish, marks: CallMarks) -> dict[str, tuple[Parameter, ...]]:
    """Each tool's parameters, where the model writes them one at a time: what `CallReader` reads calls by. Raises
    ParameterError as `ready_chat` does."""
    if not wish.may_call or marks.parameter is None:
        return {}
    end = marks.parameter[2]
    calls = _call(wish, (), marks)
    return {name: parameters_of(f"tools.{name}.parameters", schema, end) for name, schema in calls.items()}


def _at_fault(error: ParameterError, wish: ToolWish, loose: set[str], marks: CallMarks) -> set[str]:
    """The tools whose schemas were refused and may be loosened; all of those where the library does not say which. What
    a parameter that nothing is known of was meant to be, a text that is no JSON does not say."""
    if wish.forced or marks.parameter is not None:
        return set()
    free = {tool.function.name for tool in wish.tools if not tool.function.strict and tool.function.parameters} - loose
    if error.name == "tools":
        return free
    return {name for name in free if error.name == f"tools.{name}.parameters"}
