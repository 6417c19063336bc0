"""What the tests of the native row processor share: rows in both kinds. Importing it skips where nothing is built."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from tests.sampling.tools import INF

from forerun.sampling import SamplingParams
from forerun.sampling.kinds import ARRAYS, KINDS
from forerun.sampling.mass import Mass

pytest.importorskip("forerun._native", reason="the native extension is not built")
NATIVE = KINDS[0]
__all__ = ["ARRAYS", "NATIVE", "best", "both", "logits", "spread"]


def both(row: np.ndarray, **params: Any) -> tuple[Mass, Mass]:
    """(native, reference) masses of a row under sampling parameters."""
    asked = SamplingParams(**params)
    native, reference = (kind.mass(row, asked, lambda: best(row)) for kind in (NATIVE, ARRAYS))
    return native, reference


def best(row: Any) -> tuple[int, float]:
    return int(row.argmax()), float(row.max())


def spread(mass: Mass, size: int) -> np.ndarray:
    """Probabilities [size]."""
    ids, probs = mass.pool
    dense = np.zeros(size)
    dense[np.arange(len(probs)) if ids is None else ids] = probs
    return dense


@st.composite
def logits(draw: Any, max_size: int = 70) -> np.ndarray:
    """[size] float32: ties, both zeros, minus infinities, close values, extremes; the largest is finite."""
    special = st.sampled_from([-INF, -3e38, -80.0, -7.25, -1.0, -0.0, 0.0, 0.5, 1.0, 1.0, 3.5, 1e-45])
    value = special | st.floats(-30, 30, width=32)
    values = draw(st.lists(value, min_size=1, max_size=max_size).filter(lambda values: max(values) > -INF))
    return np.array(values * draw(st.sampled_from([1, 1, 1, 3])), dtype=np.float32)
