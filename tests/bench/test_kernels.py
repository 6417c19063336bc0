"""The table of products: every format and instruction set is measured, and what cannot be is refused."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from forerun import _native
from forerun.bench.kernels import stored_weights
from forerun.runtime.native.description import SERVED_TYPES

SMALL = ["--outputs", "64", "--inputs", "512", "--megabytes", "1", "--repeats", "2"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "forerun.bench.kernels", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_format_and_instruction_set_is_measured() -> None:
    document = json.loads(run(*SMALL, "--rows", "1,3", "--json").stdout)
    assert set(document["kernels"]) == set(_native.usable_isas())
    for figures in document["kernels"].values():
        assert tuple(figures) == SERVED_TYPES
        for each in figures.values():
            assert set(each["ms"]) == {"1", "3"}
            assert min(each["ms"].values()) > 0.0
            assert each["ratio"]["1"] == 1.0
            assert each["read_ms"] > 0.0
    bits = {name: each["bits_per_weight"] for name, each in document["kernels"]["portable"].items()}
    assert (bits["F32"], bits["Q2_K"], bits["Q3_K"], bits["Q5_K"], bits["IQ4_XS"]) == (32, 2.625, 3.438, 5.5, 4.25)
    assert document["hardware"]["cpu"]
    assert document["commit"]


def test_the_table_has_a_line_for_each() -> None:
    lines = run(*SMALL, "--formats", "Q4_K,MXFP4", "--isas", "portable").stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["portable", "Q4_K"], ["portable", "MXFP4"]]


@pytest.mark.parametrize("arguments, message", [
    (["--formats", "Q4_K,Q9"], "--formats: Q9 cannot be measured here; take some of F32"),
    (["--isas", "mmx"], "--isas: mmx cannot be measured here; take some of"),
    (["--rows", "1,x"], "--rows: 1,x is no list"),
    (["--inputs", "100"], "--inputs a multiple of 256"),
])  # fmt: skip
def test_what_cannot_be_measured_is_refused(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_weights_have_the_size_that_a_file_gives_them() -> None:
    for name in SERVED_TYPES:
        stored = stored_weights(name, 3, 256)
        assert _native.decode(name, stored, 256).shape == (3, 256)
