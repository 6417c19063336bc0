"""The picture of a plan: its axes say what there is."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.figure import Figure

from forerun.planning.plot import _draw_by_k


@pytest.mark.parametrize("ks", [(0, 1), (0, 1, 2), (0, 3), tuple(range(9)), (0, 64)])
def test_speculation_lengths_have_no_fractions(ks: tuple[int, ...]) -> None:
    found = {str(k): {"speedup": 1.0 + k, "textbook_acceptance": 1.0 + k} for k in ks}
    document: dict[str, Any] = {"predicted": {"d": found}, "measured": None}
    axis = Figure().subplots()
    _draw_by_k(axis, document, {"d": ("#0072B2", "o")})
    assert all(float(tick).is_integer() for tick in axis.get_xticks()), axis.get_xticks()
