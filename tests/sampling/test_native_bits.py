"""The native row processor computes the same bits on every instruction set, and for a row alone as among others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forerun.randomness import derive_key
from forerun.runtime.base import Rows
from forerun.sampling import Distribution, SamplingParams

native = pytest.importorskip("forerun._native", reason="the native extension is not built")
ROOT = Path(__file__).parents[2]


def digests(isa: str, num_threads: int) -> dict[str, Any]:
    environment = {**os.environ, "FORERUN_ISA": isa, "FORERUN_THREADS": str(num_threads)}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *sys.path])
    command = [sys.executable, "-m", "tests.sampling.row_digest"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=ROOT)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_instruction_set_computes_the_same_bits() -> None:
    expected = digests("portable", 1)
    assert expected["isa"] == "portable"
    assert len(expected["digests"]) >= 6
    for isa in native.usable_isas():
        found = digests(isa, 2)
        assert found["isa"] == isa
        assert found["digests"] == expected["digests"], isa


def everything(row: Distribution, other: Distribution) -> list[Any]:
    left = row.mass.minus(other.mass, 0.8)
    return [
        row.argmax, row.confidence, row.mass.total, row.probs.tobytes(), left.total, left.pool[1].tobytes(),
        [row.draw(u) for u in (0.1, 0.6, 0.99)], [row.race(derive_key(i)) for i in range(5)], left.draw(0.5),
    ]  # fmt: skip


@pytest.mark.parametrize("params", [{}, {"temperature": 0.7, "top_k": 30}, {"top_p": 0.9}, {"min_p": 0.01}], ids=str)
@pytest.mark.parametrize("width", [33, 1_500, 5_003])
def test_a_row_alone_has_the_bits_it_has_among_others(width: int, params: dict[str, Any]) -> None:
    """Whatever the neighbours, the place in the matrix (and with it the alignment) and the padding behind it."""
    random = np.random.default_rng(width)
    alone = random.normal(0.0, 3.0, (2, width)).astype(np.float32)
    asked = SamplingParams(**params)
    rows = Rows(alone, [2])
    expected = everything(*(Distribution(rows, i, asked, width) for i in range(2)))
    for padding in (0, 1, 7):
        crowd = np.full((9, width + padding), np.nan, dtype=np.float32)
        for i, j in ((0, 1), (3, 4), (7, 2)):
            crowd[:] = np.nan
            crowd[i, :width], crowd[j, :width] = alone
            rows = Rows(crowd, [9])
            assert everything(*(Distribution(rows, place, asked, width) for place in (i, j))) == expected


def test_rows_of_the_array_path_are_taken_without_the_extension() -> None:
    """A checkout without a compiler: nothing else changes."""
    code = """
import sys
sys.modules["forerun._native"] = None
import numpy as np
from forerun.runtime.base import Rows
from forerun.sampling import Distribution, SamplingParams, kinds
assert kinds.KINDS == (kinds.ARRAYS,)
row = Distribution(Rows(np.arange(4, dtype=np.float32)[None], [1]), 0, SamplingParams(top_k=2), 4)
assert row.draw(0.999) == 3 and row.race(1) in (2, 3) and "forerun.sampling.native" not in sys.modules
"""
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
