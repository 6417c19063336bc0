"""A model around another one passes every call on, and what a wrapper overrides is its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.runtime.base import Model, Rows
from forerun.runtime.toy import ToyModel
from forerun.runtime.wrapped import WrappedModel
from forerun.types import Span

SPANS = [Span(0, 0, [1, 2, 3], 2)]


def test_a_wrapped_model_is_the_model_call_for_call() -> None:
    own, other = ToyModel.random(7), ToyModel.random(7)
    wrapped = WrappedModel(own)
    assert isinstance(wrapped, Model)
    assert wrapped.capabilities == own.capabilities
    assert wrapped.cost() == own.cost()
    for model in (wrapped, other):
        model.begin(0)
    np.testing.assert_array_equal(wrapped.forward(SPANS).matrix, other.forward(SPANS).matrix)
    wrapped.fork(0, 1, 2)
    wrapped.keep(0, 1)
    assert (own.length(0), own.length(1), wrapped.length(1)) == (1, 2, 2)
    wrapped.free(0)
    wrapped.free(1)
    assert own.num_sequences == 0


def test_a_path_of_a_tree_is_passed_on() -> None:
    wrapped = WrappedModel(ToyModel.random(7))
    wrapped.begin(0)
    wrapped.forward([Span(0, 0, [1, 2, 3], 3, (-1, -1, 1))])
    wrapped.keep(0, 0, (1, 2))
    assert wrapped.length(0) == 2


def test_what_is_overridden_is_the_wrappers_own() -> None:
    class Silent(WrappedModel):
        def forward(self, spans: Sequence[Span]) -> Rows:
            rows = self.model.forward(spans)
            return Rows(0.0 * rows.matrix, np.diff(rows.starts).tolist())

    silent = Silent(ToyModel.random(7))
    silent.begin(0)
    assert not silent.forward(SPANS).matrix.any()
    assert silent.length(0) == 3
