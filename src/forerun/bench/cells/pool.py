"""Runs of cells as lines of a file, so that several short runs are worth a long one.

`python -m forerun.bench.cells FILE...` prints the pooled figures of files that `forerun bench --cells --append` wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from forerun.bench.cells.definitions import Cell
from forerun.bench.cells.entries import Entry, entry_of
from forerun.bench.cells.figures import cell_figures, overall
from forerun.bench.cells.run import CellRun
from forerun.errors import FileFormatError

KIND = "forerun-cell-run"
_BEGINNING = json.dumps({"kind": KIND})[:-1].encode()
COMPARED = ("target", "draft", "sampling", "num_tokens")
"""What must be the same, beside the cell's own definition and how models are loaded, for runs to be pooled."""
LOADING = (
    "drafters", "device", "dtype", "quantize", "strict", "runtime", "draft_runtime", "draft_vocabulary",
    "draft_context",
)  # fmt: skip
"""The settings by which models are loaded: one draft model at another price is another one."""


def line_of(run: CellRun, cell: Cell, about: dict[str, Any]) -> dict[str, Any]:
    """The JSON object of one run of one cell; `about` has what the run depends on and where it was made."""
    return {
        "kind": KIND,
        "cell": cell.to_dict(),
        **about,
        "dropped": run.dropped,
        "interrupted": run.interrupted,
        "probes": [[round(at, 2), float(f"{reading:.5g}")] for at, reading in run.probes],
        "entries": [entry.to_dict() for entry in run.entries],
    }


def append(path: Path, line: dict[str, Any]) -> None:
    """Add one run to a file. What a run left that was stopped while it wrote is dropped: on one line with this one it
    would spoil it."""
    text = json.dumps(line, allow_nan=False) + "\n"
    with path.open("a+b") as file:
        file.seek(0)
        before, end, last = file.read().rpartition(b"\n")
        if _is_cut_short(last):
            file.truncate(len(before) + len(end))
        elif last:
            file.write(b"\n")
        file.write(text.encode())


def _is_cut_short(last: bytes) -> bool:
    """Whether the end of a file behind its last whole line is the beginning of a run's line."""
    try:
        json.loads(last)
    except ValueError:
        return bool(last) and (last.startswith(_BEGINNING) or _BEGINNING.startswith(last))
    return False


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The runs of a file. A last line that was cut short is left out; any other that is no run is a FileFormatError."""
    found = []
    try:
        rows = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is no text: {error}", "", "name a file that --append wrote") from error
    for number, row in enumerate(rows, start=1):
        if not row.strip():
            continue
        try:
            line = json.loads(row)
            if line["kind"] != KIND:
                raise ValueError("no run of a cell")
            [entry_of(entry) for entry in line["entries"]]
        except (ValueError, KeyError, TypeError) as error:
            if number == len(rows):  # without the end of its line: a run that was stopped while it wrote
                continue
            raise FileFormatError(
                f"line {number} of {path} is not a run of a cell: {error}", "", "take it out, or name another file"
            ) from error
        found.append(line)
    return found


def pooled(lines: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Figures of every cell over all its runs, {name: figures}, and the two claims over all of them. Runs of one cell
    that are not alike (models, how they are loaded, sampling, definition) are kept apart under names of their own."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        groups.setdefault(_kind_of(line), []).append(line)
    cells: dict[str, Any] = {}
    for alike in groups.values():
        cell = alike[0]["cell"]
        name = cell["name"] if cell["name"] not in cells else f"{cell['name']} ({alike[0].get('target')})"
        while name in cells:
            name += "'"
        entries = entries_of(alike)
        if entries:
            cells[name] = {
                "cell": cell,
                **{key: alike[0].get(key) for key in COMPARED},
                "runs": len(alike),
                "commits": list(dict.fromkeys(str(line.get("commit")) for line in alike)),
                "dropped": {key: turn for line in alike for key, turn in line["dropped"].items()},
                "interrupted": any(line["interrupted"] for line in alike),
                "probes": alike[-1]["probes"],
                **cell_figures(entries),
            }
    return {"cells": cells, "verdict": overall(cells)}


def entries_like(lines: Iterable[dict[str, Any]], cell: Cell, about: dict[str, Any]) -> list[Entry]:
    """The blocks of the runs that one of `cell` would be pooled with; `about` as in `line_of`."""
    kind = _kind_of({"cell": cell.to_dict(), **about})
    return entries_of([line for line in lines if _kind_of(line) == kind])


def _kind_of(line: dict[str, Any]) -> str:
    settings = line.get("settings") or {}
    loaded = [settings.get(name) for name in LOADING]
    return json.dumps([line["cell"], *(line.get(name) for name in COMPARED), *loaded])


def entries_of(lines: Sequence[dict[str, Any]]) -> list[Entry]:
    """The blocks of several runs, each run's told apart."""
    return [
        entry_of(entry, str(line.get("run", number))) for number, line in enumerate(lines) for entry in line["entries"]
    ]
