"""cases.md C16 (whole kind): extreme sampling numbers give the limit they stand for, or a refusal; never NaN, an empty
text or a dead engine."""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from tests.verification.laws import finish

from forerun.control import FixedLength
from forerun.drafting import LookupDrafter, ModelDrafter
from forerun.engine import Engine
from forerun.errors import NumericalError, ParameterError
from forerun.runtime.base import Rows
from forerun.runtime.toy import ToyModel
from forerun.sampling import Distribution, SamplingParams

SIZE = 8
TEMPERATURES: list[Any] = [0, 1e-30, 1e-4, 1.0, 100, 1e6, "inf", -1, math.nan]
TOP_PS: list[Any] = [0, 1e-4, 1, 1.0000001]
TOP_KS: list[Any] = [-1, 0, 1, SIZE, SIZE + 1, 10**7]
MIN_PS: list[Any] = [0, 1, 1.5]
FINE = {"temperature": TEMPERATURES[:6], "top_p": [1e-4, 1], "top_k": TOP_KS, "min_p": [0, 1]}
GRID = list(itertools.product(TEMPERATURES, TOP_PS, TOP_KS, MIN_PS))

INF = math.inf
ROWS = {
    "ordinary": [0.1, 2.0, -1.0, 0.5, 1.9, -3.0, 0.0, 1.0],
    "range 60000": [-30000.0, 30000.0, 29999.0, 0.0, -5.0, 12.0, 29000.0, -29999.0],
    "half floats": np.array([6e4, -6e4, 65504, 1e-7, 0, 65504, -65504, 3], dtype=np.float16).tolist(),
    "ties": [1.0, 3.0, 3.0, 1.0, 3.0, 1.0, 0.0, 3.0],
    "flat": [7.0] * SIZE,
    "mostly masked": [-INF, -INF, 1.0, -INF, -INF, 0.5, -INF, -INF],
    "one left": [-INF] * 5 + [-40000.0] + [-INF] * 2,
    "tiny": [5e-324, 0.0, -5e-324, 1e-300, 0.0, 0.0, 0.0, 0.0],
}
BAD_ROWS = {
    "all masked": [-INF] * SIZE,
    "nan": [0.0, 1.0, math.nan, 0.5] + [0.0] * 4,
    "nan first": [math.nan] + [0.0] * 7,
    "infinite": [0.0, INF] + [1.0] * 6,
    "two infinite": [INF, INF] + [0.0] * 6,
}


def refused(temperature: Any, top_p: Any, top_k: Any, min_p: Any) -> list[str]:
    """The parameters out of range, by the documented ranges."""
    values = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p}
    return [name for name, value in values.items() if not any(value is fine or value == fine for fine in FINE[name])]


def parameters(values: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(("temperature", "top_p", "top_k", "min_p"), values, strict=True))


def test_the_grid_is_taken_or_refused_by_name() -> None:
    for values in GRID:
        out = refused(*values)
        if not out:
            SamplingParams(**parameters(values))
            continue
        with pytest.raises(ParameterError) as caught:
            SamplingParams(**parameters(values))
        assert caught.value.name in out


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("name", ROWS)
def test_every_allowed_combination_gives_a_distribution(name: str, library: str) -> None:
    row = np.array(ROWS[name], dtype=np.float32 if name == "half floats" else np.float64)
    matrix = torch.from_numpy(row)[None, :] if library == "torch" else row[None, :]
    best = int(np.argmax(row))
    best_ties = np.flatnonzero(row >= row[best] - 1e-15)  # closer than rounding can tell apart
    for values in itertools.product(*(FINE[key] for key in ("temperature", "top_p", "top_k", "min_p"))):
        temperature, top_p, top_k, min_p = values
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            distribution = Distribution(Rows(matrix, [1]), 0, SamplingParams(**parameters(values)), SIZE)
            probs = np.asarray(distribution.probs)
        assert np.isfinite(probs).all()
        assert (probs >= 0).all()
        assert probs.sum() == pytest.approx(1.0, abs=1e-12)
        assert distribution.argmax == best
        assert np.argmax(probs) in best_ties
        assert not probs[np.isneginf(row)].any()
        if temperature in (0, 1e-30):
            assert probs[best] == 1.0
        if top_p == 1e-4:
            assert (probs > 0).sum() == 1  # the nucleus is never empty, and ties do not widen it
        if top_k == 1 or min_p == 1:
            assert set(np.flatnonzero(probs)) <= {*best_ties}
        if temperature == 1e-4 and name in ("ordinary", "range 60000"):
            assert probs[best] == 1.0  # a tiny temperature is greedy
        if temperature == 1e6 and name == "ordinary" and (top_p, min_p) == (1, 0) and top_k != 1:
            np.testing.assert_allclose(probs, 1 / SIZE, rtol=1e-5)  # a huge one forgets the row
        if top_k in (-1, 0, SIZE, SIZE + 1, 10**7):
            off = Distribution(Rows(matrix, [1]), 0, SamplingParams(**parameters((temperature, top_p, 0, min_p))), SIZE)
            assert (np.asarray(off.probs) == probs).all()


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("name", BAD_ROWS)
def test_rows_without_a_finite_best_are_refused_under_every_combination(name: str, library: str) -> None:
    row = np.array(BAD_ROWS[name])
    matrix = torch.from_numpy(row)[None, :] if library == "torch" else row[None, :]
    for values in itertools.product(*(FINE[key] for key in ("temperature", "top_p", "top_k", "min_p"))):
        for look in ("probs", "argmax", "support", "confidence"):
            distribution = Distribution(Rows(matrix, [1]), 0, SamplingParams(**parameters(values)), SIZE)
            with pytest.raises(NumericalError, match="largest value"):
                getattr(distribution, look)
    # Beyond the real vocabulary nothing matters.
    padded = Distribution(Rows(matrix, [1]), 0, SamplingParams(), 1)
    if np.isfinite(row[0]):
        assert padded.probs.tolist() == [1.0]


@pytest.mark.parametrize("drafter", ["none", "lookup", "model"])
@pytest.mark.parametrize("name", ["ordinary", "range 60000", "half floats", "ties", "flat", "mostly masked"])
def test_the_engine_writes_full_texts_under_every_combination_and_stays_alive(name: str, drafter: str) -> None:
    """Each cell of the grid is a request of one batch; a normal request follows in the same engine."""
    table = np.array([np.roll(ROWS[name], shift) for shift in range(SIZE)])
    drafters = {"none": None, "lookup": LookupDrafter(2, 1), "model": ModelDrafter(ToyModel.random(SIZE, seed=3))}
    engine = Engine(ToyModel.from_table(table), drafters[drafter], FixedLength(3))
    combinations = list(itertools.product(*(FINE[key] for key in ("temperature", "top_p", "top_k", "min_p"))))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = [engine.add([1, 1], SamplingParams(max_tokens=5, **parameters(values))) for values in combinations]
        finish(engine)
        normal = engine.add([1], SamplingParams(max_tokens=5))
        finish(engine)
    assert {(len(sequence.tokens), sequence.finish_reason) for sequence in made} == {(7, "length")}
    assert (len(normal.tokens), normal.finish_reason) == (6, "length")
    greedy = {
        tuple(sequence.tokens)
        for sequence, (temperature, top_p, top_k, min_p) in zip(made, combinations, strict=True)
        if temperature in (0, 1e-30) or (name in ("ordinary", "range 60000") and temperature == 1e-4)
    }
    assert len(greedy) == 1
