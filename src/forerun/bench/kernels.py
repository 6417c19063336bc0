"""What one product with a weight matrix costs, by format, rows and instruction set: `python -m forerun.bench.kernels`.

Each format has as many matrices of one shape as pass over the last cache many times, multiplied one after the other by
the native runtime's own loop, as a pass over a model's layers does; with M = 1 nothing but reading them should count.
The numbers of rows and a read of as many bytes take turns, in another order each time, so that all see the same
machine; the figures are medians of milliseconds per matrix (reading: per matrix's bytes). Weights are random codes,
whose values cost no time. Each instruction set that this machine runs has a process of its own, to which FORERUN_ISA
names it; FORERUN_THREADS holds as everywhere.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from forerun import _native
from forerun.bench.hardware import commit, hardware
from forerun.bench.probe import BandwidthProbe
from forerun.runtime.native.description import SERVED_TYPES

READ = 0
"""Stands for a read among the numbers of rows."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Matrices [outputs, inputs] of `megabytes` together; every measurement is made `repeats` times."""

    outputs: int
    inputs: int
    megabytes: int
    repeats: int


def stored_weights(type_name: str, outputs: int, inputs: int) -> np.ndarray:
    """Random weights of any type as a file stores them: uint8 [outputs, bytes of a row]."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    random = np.random.default_rng(0)
    if type_name in ("F32", "F16", "BF16"):
        weights = random.standard_normal((outputs, inputs), dtype=np.float32)
        if type_name == "BF16":
            return np.ascontiguousarray(weights.view(np.uint16)[:, 1::2]).view(np.uint8)
        return weights.astype(np.float32 if type_name == "F32" else np.float16).view(np.uint8)
    per_block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[type_name]]
    return random.integers(0, 256, (outputs, inputs // per_block * block_bytes), dtype=np.uint8)


def measure_format(type_name: str, rows: Sequence[int], shape: Shape) -> dict[str, Any]:
    """Milliseconds of a matrix by number of rows, and of reading its bytes; GB/s of reading and of the first number."""
    stored = stored_weights(type_name, shape.outputs, shape.inputs)
    matrices = [_native.pack_matrix(type_name, stored, shape.inputs)]
    num_bytes = matrices[0].num_bytes
    while len(matrices) * num_bytes < shape.megabytes * 1_000_000:
        matrices.append(_native.pack_matrix(type_name, stored, shape.inputs))
    x = np.random.default_rng(1).standard_normal((max(rows), shape.inputs), dtype=np.float32)
    probe = BandwidthProbe(num_bytes=len(matrices) * num_bytes, seconds=0.0)
    turns = [READ, *rows]
    seconds: dict[int, list[float]] = {turn: [] for turn in turns}
    for repeat in range(shape.repeats + 1):
        for turn in turns:
            if turn == READ:
                elapsed = probe.num_bytes / 1e9 / probe.measure()
            else:
                start = perf_counter()
                _native.multiply(matrices, x[:turn])
                elapsed = perf_counter() - start
            if repeat:  # the first round fills caches and pages
                seconds[turn].append(elapsed / len(matrices))
        turns = turns[1:] + turns[:1]
    probe.close()
    cost = {turn: median(values) for turn, values in seconds.items()}
    return {
        "megabytes": round(num_bytes / 1e6, 2),
        "bits_per_weight": round(num_bytes * 8 / shape.outputs / shape.inputs, 3),
        "read_ms": round(1_000 * cost[READ], 4),
        "read_gb_per_s": round(num_bytes / 1e9 / cost[READ], 1),
        "gb_per_s": round(num_bytes / 1e9 / cost[rows[0]], 1),
        "ms": {str(count): round(1_000 * cost[count], 4) for count in rows},
        "ratio": {str(count): round(cost[count] / cost[rows[0]], 2) for count in rows},
    }


def measure_here(formats: str, rows: str, *sizes: str) -> None:
    """Print the figures of this process's instruction set, {format: figures}, as JSON."""
    counts, shape = [int(count) for count in rows.split(",")], Shape(*map(int, sizes))
    print(json.dumps({name: measure_format(name, counts, shape) for name in formats.split(",")}))


def measure(isas: Sequence[str], formats: Sequence[str], rows: Sequence[int], shape: Shape) -> dict[str, Any]:
    """{instruction set: {format: figures}}, each set in a process of its own."""
    figures = {}
    for isa in isas:
        settings = [",".join(formats), ",".join(map(str, rows)), *map(str, _fields(shape))]
        done = subprocess.run(
            [sys.executable, "-m", "forerun.bench.kernels", "--measure-here", *settings],
            env={**os.environ, "FORERUN_ISA": isa}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"measuring {isa} failed:\n{done.stderr}")
        figures[isa] = json.loads(done.stdout)
    return figures


def table(figures: dict[str, Any], rows: Sequence[int]) -> str:
    """The figures as text, a line for each format and instruction set."""
    costs = "".join(f" {f'M = {count}':>16}" for count in rows)
    lines = [f"{'':19} {'bits':>5} {'MB':>6} {'read ms':>8}{costs} {'GB/s':>5} {'read':>5}"]
    for isa, formats in figures.items():
        for name, each in formats.items():
            costs = "".join(f" {each['ms'][str(m)]:8.3f} ({each['ratio'][str(m)]:5.2f})" for m in rows)
            start = f"{isa:12} {name:6} {each['bits_per_weight']:5.2f} {each['megabytes']:6.1f} {each['read_ms']:8.3f}"
            lines.append(f"{start}{costs} {each['gb_per_s']:5.1f} {each['read_gb_per_s']:5.1f}")
    return "\n".join(lines)


def main() -> None:
    """Print a table, or with --json one JSON document."""
    if sys.argv[1:2] == ["--measure-here"]:
        measure_here(*sys.argv[2:])
        return
    usable = _native.usable_isas()
    parser = argparse.ArgumentParser(prog="python -m forerun.bench.kernels", description=__doc__)
    parser.add_argument("--isas", default=",".join(usable), help=f"instruction sets (default: {','.join(usable)})")
    parser.add_argument("--formats", default=",".join(SERVED_TYPES), help="types of weights (default: all served)")
    parser.add_argument("--rows", default="1,5,8", help="numbers of rows; ratios are to the first (default: 1,5,8)")
    parser.add_argument("--outputs", type=int, default=8_960, help="rows of a matrix (default: 8960)")
    parser.add_argument("--inputs", type=int, default=1_536, help="its columns, by 256 (default: 1536)")
    parser.add_argument("--megabytes", type=int, default=320, help="of all matrices of a format (default: 320)")
    parser.add_argument("--repeats", type=int, default=9, help="measurements of each (default: 9)")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    given = parser.parse_args()
    isas, formats = given.isas.split(","), given.formats.split(",")
    for names, known, what in ((isas, usable, "--isas"), (formats, SERVED_TYPES, "--formats")):
        unknown = [name for name in names if name not in known]
        if unknown:
            parser.error(f"{what}: {', '.join(unknown)} cannot be measured here; take some of {', '.join(known)}")
    rows = [int(count) for count in given.rows.split(",") if count.isdigit() and int(count) > 0]
    if len(rows) != len(given.rows.split(",")):
        parser.error(f"--rows: {given.rows} is no list of numbers such as 1,5,8")
    if min(given.outputs, given.inputs, given.megabytes, given.repeats) < 1 or given.inputs % 256:
        parser.error("sizes must be positive, and --inputs a multiple of 256")
    shape = Shape(given.outputs, given.inputs, given.megabytes, given.repeats)
    figures = measure(isas, formats, rows, shape)
    about = {"shape": _fields(shape), "hardware": hardware(), "commit": commit()}
    print(json.dumps({"kernels": figures, **about}) if given.json else table(figures, rows))


def _fields(shape: Shape) -> list[int]:
    return [shape.outputs, shape.inputs, shape.megabytes, shape.repeats]


if __name__ == "__main__":
    main()
