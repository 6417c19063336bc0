"""A model around another one, for what changes some of its calls: every call is passed on."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.runtime.base import Model, Rows
from forerun.types import Capabilities, CostCurve, Span


class WrappedModel:
    """`model`, call for call; what wraps it overrides the calls that it changes."""

    def __init__(self, model: Model) -> None:
        self.model = model

    @property
    def capabilities(self) -> Capabilities:
        return self.model.capabilities

    def begin(self, sequence_id: int) -> None:
        self.model.begin(sequence_id)

    def forward(self, spans: Sequence[Span]) -> Rows:
        return self.model.forward(spans)

    def keep(self, sequence_id: int, length: int, path: tuple[int, ...] = ()) -> None:
        self.model.keep(sequence_id, length, path)

    def length(self, sequence_id: int) -> int:
        return self.model.length(sequence_id)

    def fork(self, source: int, target: int, length: int) -> None:
        self.model.fork(source, target, length)

    def free(self, sequence_id: int) -> None:
        self.model.free(sequence_id)

    def cost(self) -> CostCurve:
        return self.model.cost()
