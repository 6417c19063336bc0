"""The command line. `forerun --help` imports no model, no tokenizer and no torch: commands import what they use.

Exit codes: 0 done; 1 unexpected; 2 the request cannot be served as written; 3 a model cannot be found, fetched, read or
paired; 4 NaN; 5 a part broke its protocol; 6 an extra is missing; 130 Ctrl-C; 141 the reader of the output went away.
Standard output holds what was asked for (the text, one JSON document, a path), everything else goes to standard error.
"""

from __future__ import annotations

from typing import Annotated

import typer

from forerun.cli.chat import chat
from forerun.cli.flags import flat
from forerun.cli.generate import generate
from forerun.cli.group import Commanded, Root, add_lazy
from forerun.cli.models import models, pull
from forerun.cli.plan import plan
from forerun.cli.serve import serve
from forerun.version import __version__

app = typer.Typer(
    cls=Root,
    help="Exact speculative decoding: a draft proposes, the target checks, the text is the target's own.",
    add_completion=False,
    invoke_without_command=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"forerun {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        text = context.get_help()  # rich prints it and returns nothing
        if text:
            print(text)


for _command in (generate, chat, serve, pull, models, plan):
    app.command(cls=Commanded)(flat(_command))
add_lazy("bench", "Compare plain, speculative and peer decoding on real workloads.", "forerun.bench.cli:bench_command")


def main() -> None:
    """The `forerun` command."""
    app(prog_name="forerun")
