"""Cost curves: measured on any Model, in bounded time, leaving nothing behind."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
from tests.runtime.contract import check_model_contract
from tests.runtime.tiny import tiny

from forerun.runtime.base import Rows
from forerun.runtime.cost import ROWS, measure_cost
from forerun.runtime.torch import TorchModel
from forerun.runtime.torch import model as model_module
from forerun.runtime.toy import ToyModel
from forerun.types import Span


class Slow(ToyModel):
    """Takes a millisecond a pass and two more a row."""

    def forward(self, spans: Sequence[Span]) -> Rows:
        time.sleep(1e-3 + 2e-3 * sum(span.num_rows for span in spans))
        return super().forward(spans)


def test_the_curve_is_the_models() -> None:
    model = Slow(lambda tokens: np.zeros(5), 5)
    curve = measure_cost(model, context=20, rows=(1, 4, 8), budget_s=0.2)
    assert curve.context == 20
    assert list(curve.milliseconds) == [1, 4, 8]
    for rows, milliseconds in curve.milliseconds.items():
        assert milliseconds >= 1 + 2 * rows
    assert model.num_sequences == 0


def test_passes_are_interleaved() -> None:
    """A machine whose speed drifts must not tilt the curve."""
    fed: list[int] = []

    class Watched(ToyModel):
        def forward(self, spans: Sequence[Span]) -> Rows:
            fed.append(len(spans[0].tokens))
            return super().forward(spans)

    measure_cost(Watched(lambda tokens: np.zeros(5), 5), context=9, rows=(1, 2, 3), budget_s=0.0)
    assert fed == [9, 1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize("limit, context, rows", [(64, 48, ROWS), (10, 2, (1, 2, 3, 4, 5, 6, 8)), (2, 1, (1,))])
def test_short_contexts(limit: int, context: int, rows: tuple[int, ...]) -> None:
    curve = measure_cost(ToyModel(lambda tokens: np.zeros(5), 5, context_length=limit), budget_s=0.0)
    assert curve.context == context
    assert tuple(curve.milliseconds) == rows


def test_a_failure_frees_the_sequence() -> None:
    model = ToyModel(lambda tokens: np.zeros(5) if len(tokens) < 22 else 1 / 0, 5)
    with pytest.raises(ZeroDivisionError):
        measure_cost(model, context=20, rows=(1, 4), budget_s=0.0)
    assert model.num_sequences == 0


def test_a_torch_model_measures_itself_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_module, "measure_cost", partial(measure_cost, budget_s=0.0))
    model = TorchModel.from_transformers(tiny("llama"))
    curve = model.cost()
    assert set(curve.milliseconds) == set(ROWS)
    assert all(milliseconds > 0 for milliseconds in curve.milliseconds.values())
    assert model.cost() is curve
    assert model.cache.num_bytes == 0


def test_the_toy_model_keeps_the_contract() -> None:
    check_model_contract(lambda: ToyModel.random(7, order=2, context_length=40))
