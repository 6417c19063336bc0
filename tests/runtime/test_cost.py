"""Cost curves: measured on any Model, in bounded time, leaving nothing behind."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
from tests.runtime.contract import check_model_contract
from tests.runtime.tiny import tiny

from forerun.runtime import cost as cost_module
from forerun.runtime.base import Rows
from forerun.runtime.cost import ROWS, measure_cost, read_tokens, warm_up
from forerun.runtime.torch import TorchModel
from forerun.runtime.torch import model as model_module
from forerun.runtime.toy import ToyModel
from forerun.types import CostCurve, Span


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


def test_passes_are_interleaved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose speed drifts must not tilt the curve: every second round goes back."""
    fed: list[int] = []
    ticks = iter(range(1000))
    monkeypatch.setattr(cost_module.time, "perf_counter", lambda: float(next(ticks)))

    class Watched(ToyModel):
        def forward(self, spans: Sequence[Span]) -> Rows:
            fed.append(len(spans[0].tokens))
            return super().forward(spans)

    measure_cost(Watched(lambda tokens: np.zeros(5), 5), context=9, rows=(1, 2, 3), budget_s=15.0)
    assert fed == [9, 1, 1, 2, 3, 3, 2, 1, 1, 2, 3], "the first pass behind the context is not timed"


def test_a_slow_model_is_measured_once_and_warming_up_is_outvoted() -> None:
    class Warming(ToyModel):
        """The first pass of each size takes ten milliseconds more."""

        seen: ClassVar[set[int]] = set()

        def forward(self, spans: Sequence[Span]) -> Rows:
            num = len(spans[0].tokens)
            time.sleep(0.001 if num in self.seen else 0.011)
            self.seen.add(num)
            return super().forward(spans)

    for budget_s, low, high in ((0.0, 11.0, 100.0), (0.04, 1.0, 10.0)):
        Warming.seen.clear()
        curve = measure_cost(Warming(lambda tokens: np.zeros(5), 5), context=9, rows=(2, 3), budget_s=budget_s)
        assert all(low <= milliseconds < high for milliseconds in curve.milliseconds.values())


def test_interference_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two passes of five meet another process that takes a hundred times as long: the curve is the model's own."""
    now, num_passes = [0.0], [0]
    monkeypatch.setattr(cost_module.time, "perf_counter", lambda: now[0])

    class Disturbed(ToyModel):
        def forward(self, spans: Sequence[Span]) -> Rows:
            num_passes[0] += 1
            own = 1e-3 * len(spans[0].tokens)
            now[0] += own * (100 if num_passes[0] % 5 in (1, 3) else 1)
            return super().forward(spans)

    curve = measure_cost(Disturbed(lambda tokens: np.zeros(5), 5), context=9, rows=(1, 4, 8), budget_s=5.0)
    assert curve.milliseconds == pytest.approx({1: 1.0, 4: 4.0, 8: 8.0})


@pytest.mark.parametrize(
    "rows, expected", [(1, 10.0), (2, 11.0), (3, 11.5), (4, 12.0), (6, 16.0), (8, 20.0), (12, 28.0)]
)
def test_costs_between_what_was_measured(rows: int, expected: float) -> None:
    """On straight lines, also beyond the last point."""
    assert CostCurve(9, {8: 20.0, 1: 10.0, 2: 11.0, 4: 12.0}).at(rows) == pytest.approx(expected)


def test_costs_of_few_points() -> None:
    assert CostCurve(9, {4: 12.0}).at(1) == CostCurve(9, {4: 12.0}).at(9) == 12.0
    assert CostCurve(9, {4: 12.0, 5: 13.0}).at(2) == 12.0
    for curve, rows in ((CostCurve(9, {}), 1), (CostCurve(9, {1: 2.0}), 0)):
        with pytest.raises(ValueError, match="no cost"):
            curve.at(rows)


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


def test_tokens_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_module, "PIECE", 4)
    model = ToyModel.random(7)
    read_tokens(model, 3, [1] * 10)
    assert (model.length(3), model.num_forwards, model.num_fed) == (10, 3, 10)


def test_the_toy_model_keeps_the_contract() -> None:
    check_model_contract(lambda: ToyModel.random(7, order=2, context_length=40))


@pytest.mark.parametrize(("limit", "widths"), [(None, [1, 2, 4, 64]), (9, [1, 2, 4, 2]), (7, [1, 2, 4]), (2, [1])])
def test_warming_up_makes_a_pass_of_each_kind_and_leaves_nothing(limit: int | None, widths: list[int]) -> None:
    class Noting(ToyModel):
        widths: ClassVar[list[int]] = []

        def forward(self, spans: Sequence[Span]) -> Rows:
            Noting.widths += [len(span.tokens) for span in spans]
            return super().forward(list(spans))

    model = Noting.from_table(np.zeros((5, 5)), context_length=limit)
    warm_up(model)
    assert Noting.widths == widths
    assert model.num_sequences == 0
