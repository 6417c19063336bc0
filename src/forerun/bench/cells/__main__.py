"""Pooled figures of several runs of cells: `python -m forerun.bench.cells FILE...`, the last line one JSON document."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from forerun.bench.cells.pool import pooled, read_lines
from forerun.bench.cells.table import print_cells
from forerun.bench.page.page import check_page, write_page
from forerun.checks import writable
from forerun.errors import ForerunError


def main(arguments: Sequence[str] | None = None) -> None:
    """Read, pool, print."""
    parser = argparse.ArgumentParser(prog="python -m forerun.bench.cells", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="files that `forerun bench --cells --append` wrote")
    parser.add_argument("--report", type=Path, help="write the figures as one HTML page too")
    given = parser.parse_args(arguments)
    try:
        check_page(given.report)
        if given.report is not None:
            writable("report", given.report)
        lines = [line for path in given.files for line in read_lines(path)]
    except (ForerunError, OSError) as error:
        parser.error(str(error))
    document = pooled(lines)
    for name in ("command", "commit", "date", "hardware", "versions", "settings", "policy"):
        document[name] = lines[-1].get(name) if lines else None  # of the latest run; commits are told for each cell
    print_cells(document, sys.stdout)
    print(json.dumps(document, allow_nan=False), flush=True)
    if given.report is not None:
        write_page(document, given.report)


if __name__ == "__main__":
    main()
