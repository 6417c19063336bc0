"""The ladder: the five levels of proof of docs/exactness.md, section 8, in one command, `make ladder`.

1 exact enumeration, 2 sampled law, 3 texts on real weights, 4 invariance on real weights, 5 mutants that must be
caught. One line a cell; Ctrl-C ends it with a summary of what was done. Exit status: 0, 1 after a failure, 130 if
interrupted.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

DEFAULTS = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_WAIT_POLICY": "PASSIVE"}
"""Threads that spin while they wait make a pass ten times slower beside any other process."""


def several(parse: Callable[[str], Any], allowed: Sequence[Any] | None = None, low: int = 1) -> Callable[[str], Any]:
    """A parser of comma-separated values, each one of `allowed` or a number of at least `low`."""

    def values(text: str) -> tuple[Any, ...]:
        found = tuple(parse(part.strip()) for part in text.split(",") if part.strip())
        wrong = [value for value in found if (value not in allowed if allowed is not None else value < low)]
        if wrong or not found:
            need = f"any of {','.join(map(str, allowed))}" if allowed is not None else f"numbers of at least {low}"
            raise argparse.ArgumentTypeError(f"{text!r} is not allowed: give {need}, separated by commas")
        return found

    return values


def lengths(text: str) -> tuple[int | str, ...]:
    """Speculation lengths: numbers, trees by their widths, "adaptive"."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    wrong = [part for part in found if part != "adaptive" and not re.fullmatch("[1-9][0-9]?(x[1-9])*", part)]
    if wrong or not found:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not allowed: give numbers of tokens, trees such as 2x2x1 or adaptive, separated by commas"
        )
    return tuple(int(part) if part.isdigit() else part for part in found)


def one_number(text: str) -> int:
    (value,) = several(int)(text)
    return int(value)


def parser() -> argparse.ArgumentParser:
    from tests.ladder.cases import MODES
    from tests.ladder.cells import Options
    from tests.real.loaded import DRAFTERS

    default = Options()
    made = argparse.ArgumentParser(
        "python -m tests.ladder", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("--levels", type=several(int, (1, 2, 3, 4, 5)), default=default.levels)
    add("--sequences", type=one_number, default=default.num_sequences, help="of each case of level 2")
    add("--prompts", type=one_number, default=default.num_prompts, help="of HumanEval, levels 3 and 4")
    add("--tokens", type=one_number, default=default.num_tokens, help="of each text, levels 3 and 4")
    add("--modes", type=several(str, tuple(MODES)), default=default.modes, help=f"of {','.join(MODES)}")
    add("--drafters", type=several(str, DRAFTERS), default=default.drafters, help=f"of {','.join(DRAFTERS)}")
    add("--lengths", type=lengths, default=default.lengths, help="numbers of tokens, 2x2x1 (a tree), adaptive")
    add("--batches", type=several(int), default=default.batches)
    add("--dtype", choices=("native", "bfloat16", "float32"), default=default.dtype)
    add("--log", metavar="FILE", default="", help="append a dated section with the figures")
    return made


def main(arguments: Sequence[str]) -> int:
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    asked = parser().parse_args(arguments)

    from tests.ladder import exact, mutants, real, report, sampled
    from tests.ladder.cells import Options, climb

    options = Options(
        asked.levels, asked.sequences, asked.prompts, asked.tokens, asked.modes, asked.drafters, asked.lengths,
        asked.batches, asked.dtype,
    )  # fmt: skip
    bed = real.make_bed(options)
    by_level = {
        1: exact.cells,
        2: lambda: sampled.cells(options.num_sequences),
        3: lambda: real.cells(bed, options),
        4: lambda: real.invariance_cells(bed, options),
        5: mutants.cells,
    }
    cells = [cell for level in sorted(set(options.levels)) for cell in by_level[level]()]
    # Also where SIGINT came ignored (a shell's background job), and for whoever ends it politely.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    done = climb(cells, lambda line: print(line, flush=True))
    print()
    for line in report.summary(done):
        print(line)
    if asked.log and done.done:
        report.append(Path(asked.log), report.section(done, f"python -m tests.ladder {shlex.join(arguments)}".strip()))
        print(f"appended to {asked.log}")
    return 1 if done.failed else 130 if done.interrupted else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
