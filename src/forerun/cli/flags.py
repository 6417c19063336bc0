"""How flags are declared: groups of settings that several commands share, one field and one flag for each setting.

A flag left unset is not passed on: defaults live in `SamplingParams` and `forerun.load`, and the help repeats them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, get_args, get_type_hints

import typer


def flag(name: str, help: str, panel: str, metavar: str | None = None) -> Any:
    """One flag, in a panel of the help."""
    return typer.Option(name, help=help, rich_help_panel=panel, metavar=metavar, show_default=False)


@dataclass(frozen=True)
class Group:
    """Settings that belong together, under their Python names."""

    def given(self) -> dict[str, Any]:
        """The settings that were typed."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None and value != []}


def options_of(group: type[Group]) -> dict[str, Any]:
    """Python name of each setting of a group -> typer's option."""
    hints = get_type_hints(group, include_extras=True)
    return {field.name: get_args(hints[field.name])[1] for field in fields(group)}


def spelling(option: Any) -> str:
    """An option as it is typed."""
    declared = option.param_decls or (option.default,)  # typer keeps a lone declaration as its "default"
    return str(declared[0]).split("/")[0]


def flat(function: Callable[..., None]) -> Callable[..., None]:
    """`function` with its option-group parameters replaced by their fields, which is what typer can read."""
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    hints = get_type_hints(function, include_extras=True)
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        if not is_dataclass(hint):
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hint))
            continue
        groups[parameter.name] = hint
        group_hints = get_type_hints(hint, include_extras=True)
        for field in fields(hint):
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            parameters.append(
                inspect.Parameter(
                    field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=group_hints[field.name]
                )
            )

    def command(**values: Any) -> None:
        built = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        function(**values, **built)

    command.__name__, command.__doc__, command.__module__ = function.__name__, function.__doc__, function.__module__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command
