"""What the answer of a chat may be: its thoughts, its calls and the form that was asked for, as one grammar."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from forerun.constraints.cache import lookup_key
from forerun.constraints.calls import call_schema
from forerun.errors import ParameterError
from forerun.sampling import SamplingParams
from forerun.server import reasoning, tools
from forerun.server.tools import ToolWish

if TYPE_CHECKING:
    from forerun.constraints.forms import Thinking
    from forerun.llm import LLM


def ready_chat(
    llm: LLM, params: SamplingParams, wish: ToolWish, thinking: Thinking, warnings: list[str]
) -> SamplingParams:
    """`LLM.ready` of a chat: a form that was asked for comes after the model's thoughts, and a call that it begins
    where it may call is one of a tool that was given. May take seconds. What tools' schemas cannot have enforced is
    told in `warnings`, or refused where the tool is strict.
    """
    may_call = wish.may_call and not wish.forced
    if may_call and params.structure is not None and params.structure[0] != "json_schema":
        warnings.append(f"tools: none can be called, since the whole text is what {params.structure[0]} says")
        may_call = False
    if may_call and params.ignore_eos:
        raise ParameterError("ignore_eos", "cannot be combined with tools that may be called", "leave one of them out")
    if not may_call and (thinking == "never" or params.structure is None):
        return llm.ready(params)
    if not may_call:
        return _with_form(llm, params, thinking)
    if params.structure is not None:
        llm.ready(params)  # what is wrong with it alone is said of it, not of the tools
    loose: set[str] = set()
    while True:
        try:
            return _with_form(llm, params, thinking, json.dumps(_calls(wish, loose)), wish.only_one)
        except ParameterError as error:
            found = _at_fault(error, wish, loose)
            if not found:
                raise
            for name in sorted(found):
                warnings.append(f"tools.{name}.parameters: any object is taken for them, as {error.reason}")
            loose |= found


def _with_form(
    llm: LLM, params: SamplingParams, thinking: Thinking, call: str | None = None, only_one: bool = False
) -> SamplingParams:
    from forerun.constraints.forms import Form

    structure = params.structure
    form = Form(
        body=None if structure is None else (structure[0], lookup_key(*structure)),
        call=call,
        only_one=only_one,
        thinking=thinking,
        calls=(tools.OPEN, tools.CLOSE),
        thoughts=(reasoning.OPEN, reasoning.CLOSE),
        end_ids=params.stop_token_ids,
    )
    bare = replace(params, regex=None, json_schema=None, grammar=None, one_of=None)
    return replace(llm.ready(bare), constraint=llm.grammar("form", form))


def _calls(wish: ToolWish, loose: Collection[str]) -> dict[str, Any]:
    """The schema of a call. The parameters of `loose` tools are any object."""
    return call_schema(
        (tool.function.name, None if tool.function.name in loose else tool.function.parameters) for tool in wish.tools
    )


def _at_fault(error: ParameterError, wish: ToolWish, loose: set[str]) -> set[str]:
    """The tools whose schemas were refused and may be loosened; all of those where the library does not say which."""
    free = {tool.function.name for tool in wish.tools if not tool.function.strict and tool.function.parameters} - loose
    if error.name == "tools":
        return free
    return {name for name in free if error.name == f"tools.{name}.parameters"}
