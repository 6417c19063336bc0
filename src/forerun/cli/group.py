"""How commands are found, parsed and guarded: unknown names get near matches, every error becomes a line and a code."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from forerun.cli.report import report
from forerun.errors import InputError, ParameterError

_lazy: dict[str, Lazy] = {}


class Root(TyperGroup):
    """The `forerun` group: the one place where exceptions turn into messages and exit codes."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except Exception as error:
            code = report(error)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        # Here and not in `main`, because the base class answers Ctrl-C and broken pipes in its own way.
        try:
            return super().invoke(ctx)
        except (Exception, KeyboardInterrupt) as error:
            raise typer.Exit(report(error)) from error

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands.update(_lazy)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)  # in the order they were registered, not by letter

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            known = self.list_commands(ctx)
            near = difflib.get_close_matches(args[0], known)
            raise InputError(
                f"there is no command {args[0]!r}",
                f"perhaps you meant {' or '.join(near)}" if near else f"the commands are {', '.join(known)}",
                "see forerun --help",
            )
        return super().resolve_command(ctx, args)


class Commanded(TyperCommand):
    """A command that knows the sampling parameters it has no flag for, and says why it has none."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            option = getattr(error, "option_name", None)
            if option is not None and getattr(error, "param", None) is None:
                _refuse_by_name(str(option), {name for known in self.params for name in known.opts})
            raise


class Lazy(TyperCommand):
    """A command whose module is imported when it runs or is asked for its options, not for `forerun --help`."""

    def __init__(self, name: str, help: str, home: str) -> None:
        self._home = home
        super().__init__(name, help=help)

    def load(self) -> Any:
        """The real command."""
        module, _, function = self._home.partition(":")
        alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
        alone.command(self.name, cls=Commanded)(getattr(importlib.import_module(module), function))
        return typer.main.get_command(alone)

    @property
    def params(self) -> Any:
        """The real command's parameters: what documents a command reads them."""
        return self.load().params

    @params.setter
    def params(self, value: Any) -> None:
        """The base class sets an empty list first."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self.load().make_context(info_name, args, parent=parent, **extra)


def add_lazy(name: str, help: str, home: str) -> None:
    """Register the function `home` ("module:function") as command `name` without importing it."""
    _lazy[name] = Lazy(name, help, home)


def _refuse_by_name(option: str, known: set[str]) -> None:
    """Refuse a sampling parameter that is not built, belongs to Python, or has another name here; return for anything
    else. `known` are the command's own flags."""
    from forerun.cli.options import PYTHON_ONLY, flag_names
    from forerun.sampling.params import ELSEWHERE, NOT_BUILT, SamplingParams

    name = option.lstrip("-").replace("-", "_")
    if name in NOT_BUILT:
        SamplingParams.from_keywords({name: None})
    if name in PYTHON_ONLY:
        raise ParameterError(
            name, "takes Python objects, which no flag can hold", f"give it in Python: llm.generate(PROMPT, {name}=...)"
        )
    flag = flag_names().get(ELSEWHERE.get(name, name))
    if flag in known and flag != option:
        raise InputError(f"{option}: unknown parameter", "", f"did you mean {flag}")
