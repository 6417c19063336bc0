"""Which flags of `forerun bench` go together: a flag that a mode does not use is refused, never ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forerun.bench.cells.definitions import choose_cells
from forerun.bench.depth import PATTERNS
from forerun.bench.modes import NUM_SETS, Modes
from forerun.bench.variants import DRAFT_MODELS
from forerun.checks import listed, real, some_of
from forerun.drafting import COPIERS
from forerun.errors import InputError, ParameterError

ACCEPTANCE = "acceptance"
_MODELS = {
    "target", "device", "dtype", "quantize", "runtime", "draft_runtime", "strict", "mirror", "output", "report",
}  # fmt: skip
_DRAFT = {"draft", "draft_context", "draft_vocabulary", "drafters"}
USED = {
    "cells": _MODELS | _DRAFT | {"cells", "minutes", "append", "max_tokens", "prompts", "seed", "context"},
    "phases": _MODELS | _DRAFT | {"phases", "max_tokens"},
    "depth": (_MODELS - {"draft_runtime"})
    | {"depth", "pattern", "drafters", "minutes", "max_tokens", "k", "temperature", "seed"},
    ACCEPTANCE: _MODELS | _DRAFT | {ACCEPTANCE, "workloads", "prompts", "max_tokens", "k", "seed"},
    "load": _DRAFT | {"target", "mirror", "output", "load", "minutes", "rounds", "prompts", "servers", "texts"},
}
"""What each mode makes use of."""
ONLY_MODES = {
    "minutes": ("cells", "depth", "load"), "append": ("cells",), "pattern": ("depth",), "servers": ("load",),
    "texts": ("load",),
}  # fmt: skip
DEPTH_K, ACCEPTANCE_K = "8", "4"
LOAD_PROMPTS, LOAD_ROUNDS = 256, 2
MIN_TOKENS = 24


def is_given(context: Any, name: str) -> bool:
    """Whether somebody gave a flag, rather than leaving it at its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def modes_of(context: Any, given: Mapping[str, Any]) -> Modes:
    """The mode that was asked for, with everything that does not go with it refused. `given` has the values of the
    modes' own flags."""
    asked = {
        "cells": given["cells"] is not None, "phases": given["phases"], "depth": given["depth"] is not None,
        ACCEPTANCE: given[ACCEPTANCE], "load": given["load"] is not None,
    }  # fmt: skip
    wanted = [name for name, is_asked in asked.items() if is_asked]
    if len(wanted) > 1:
        raise ParameterError(wanted[1], f"cannot be measured beside {wanted[0]}", "run the bench once for each")
    for parameter in [one for one in context.command.params if is_given(context, one.name)]:
        homes = ONLY_MODES.get(parameter.name)
        if wanted and parameter.name not in USED[wanted[0]]:
            raise _unused(parameter, f"is not used with --{wanted[0]}", "leave it out")
        if not wanted and homes is not None:
            raise _unused(parameter, "is not used for workloads", f"give it with --{' or --'.join(homes)}")
    real("minutes", given["minutes"], 0.0, 10_000.0, "a number of minutes, at least 0, for example 5")
    return Modes(
        choose_cells(given["cells"]) if given["cells"] is not None else (), given["phases"],
        _numbers("depth", given["depth"], 2, "whole numbers of tokens, for example 512,2048,8192"),
        some_of("pattern", given["pattern"], PATTERNS), given[ACCEPTANCE],
        _numbers("load", given["load"], 1, "whole numbers of clients, for example 1,4,16,64"), given["minutes"],
        given["append"],
    )  # fmt: skip


def adjusted(modes: Modes, context: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """drafters, k and prompts as a mode takes them; drafters () where the workloads' own rule holds."""
    values = {"drafters": (), "k": given["k"], "prompts": given["prompts"]}
    asked = modes.name
    if asked is None:
        return values
    if is_given(context, "max_tokens") and context.params["max_tokens"] < MIN_TOKENS:
        raise ParameterError(
            "max_tokens", f"{context.params['max_tokens']} are too few to be timed", f"at least {MIN_TOKENS}"
        )
    if asked in ("cells", "load") and not is_given(context, "prompts"):
        values["prompts"] = NUM_SETS if asked == "cells" else LOAD_PROMPTS
    if not is_given(context, "k"):
        values["k"] = DEPTH_K if asked == "depth" else ACCEPTANCE_K
    elif len(listed(given["k"])) > 1:
        raise ParameterError("k", f"{given['k']!r} are several, and --{asked} has one", "for example --k 4")
    if asked == "cells" and given["draft"] is None and all(cell.draft != "given" for cell in modes.cells):
        cells = ", ".join(cell.name for cell in modes.cells)
        raise ParameterError("cells", f"{cells}: nothing drafts there without a draft model", "give --draft MODEL")
    if asked == "depth":
        values["drafters"] = some_of("drafters", given["drafters"] or "lookup", COPIERS)
        return values
    names = listed(given["drafters"] or ("model" if given["draft"] is not None else "adaptive"))
    if given["drafters"] is not None and (len(names) != 1 or names[0] not in DRAFT_MODELS):
        fact = f"{given['drafters']!r} does not say which draft model --{asked} is for"
        raise ParameterError("drafters", fact, f"one of {', '.join(DRAFT_MODELS)}")
    if asked == "load":
        if given["drafters"] is not None and given["draft"] is None:
            raise ParameterError("drafters", "no draft model is given", "give --draft MODEL, or leave it out")
        values["drafters"] = names if given["draft"] is not None else ()
        return values
    if asked == ACCEPTANCE and given["draft"] is None:
        raise ParameterError(ACCEPTANCE, "needs a draft model", "give --draft MODEL")
    values["drafters"] = names
    return values


def _unused(parameter: Any, fact: str, remedy: str) -> InputError:
    """By the name that was typed, which may differ from the function's: --server fills `servers`."""
    if parameter.param_type_name == "argument":
        return InputError(f"{parameter.name.upper().removesuffix('S')} {fact}", "", remedy)
    return ParameterError(parameter.opts[0].lstrip("-").replace("-", "_"), fact, remedy)


def _numbers(name: str, text: str | None, least: int, need: str) -> tuple[int, ...]:
    """The whole numbers of a list, () where it was not given."""
    if text is None:
        return ()
    items = listed(text)
    if not items or not all(item.isdecimal() and int(item) >= least for item in items):
        raise ParameterError(name, f"{text!r} is not allowed", need)
    return tuple(int(item) for item in items)
