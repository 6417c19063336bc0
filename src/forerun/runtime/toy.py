"""The exact tabular model: a tiny vocabulary whose law can be enumerated. Shipped, because tests and audits share it.

Rows are computed from the tokens in the model's own cache, not from the caller's, so a rollback that was forgotten or
went too far changes the text and is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from forerun.errors import ContractError
from forerun.runtime.base import Rows, check_spans
from forerun.runtime.trees import LastSpan, check_one_text, kept_places, last_span
from forerun.types import Capabilities, CostCurve, Span


class ToyModel:
    """A model given by a function from the tokens so far to a row of logits [vocabulary_size] (float64).

    `num_forwards` and `num_fed` count passes and tokens, so that tests can see how much work a round did.
    """

    def __init__(
        self,
        logits_of: Callable[[tuple[int, ...]], np.ndarray],
        vocabulary_size: int,
        context_length: int | None = None,
    ) -> None:
        self._logits_of = logits_of
        self.capabilities = Capabilities(context_length, vocabulary_size, trees=True)
        self._cached: dict[int, list[int]] = {}
        self._last: dict[int, LastSpan] = {}
        self.num_forwards = self.num_fed = 0

    @classmethod
    def from_table(cls, table: np.ndarray, context_length: int | None = None) -> ToyModel:
        """Logits by the last `order` tokens: `table` is [vocab] * order + [vocab]; missing tokens count as id 0."""
        order, vocabulary_size = table.ndim - 1, table.shape[-1]

        def logits_of(tokens: tuple[int, ...]) -> np.ndarray:
            last = ((0,) * order + tokens)[len(tokens) :] if order else ()
            return np.asarray(table[last])

        return cls(logits_of, vocabulary_size, context_length)

    @classmethod
    def random(
        cls,
        vocabulary_size: int,
        order: int = 1,
        seed: int = 0,
        spread: float = 1.0,
        context_length: int | None = None,
    ) -> ToyModel:
        """A table of normal logits with standard deviation `spread`."""
        table = np.random.default_rng(seed).normal(0.0, spread, (vocabulary_size,) * (order + 1))
        return cls.from_table(table, context_length)

    @classmethod
    def by_position(cls, rows: np.ndarray) -> ToyModel:
        """Logits by position alone: row i [vocab] follows i + 1 tokens; the last row repeats."""
        return cls(lambda tokens: np.asarray(rows[min(len(tokens), len(rows)) - 1]), rows.shape[-1])

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """The row after `tokens`, [vocabulary_size] float64."""
        return np.asarray(self._logits_of(tuple(tokens)), dtype=np.float64)

    def begin(self, sequence_id: int) -> None:
        if sequence_id in self._cached:
            raise ContractError(f"sequence {sequence_id} was begun twice")
        self._cached[sequence_id] = []

    def forward(self, spans: Sequence[Span]) -> Rows:
        lengths = {key: len(tokens) for key, tokens in self._cached.items()}
        check_spans(spans, lengths, self.capabilities)
        check_one_text(spans, self._last)
        rows: list[np.ndarray] = []
        for span in spans:
            cached = self._cached[span.sequence_id]
            rows.extend(self.logits(text) for text in _texts(cached, span))
            cached.extend(int(token) for token in span.tokens)
            self._last[span.sequence_id] = last_span(span)
            self.num_fed += len(span.tokens)
        self.num_forwards += 1
        matrix = np.array(rows) if rows else np.zeros((0, self.capabilities.vocabulary_size))
        return Rows(matrix, [span.num_rows for span in spans])

    def keep(self, sequence_id: int, length: int, path: tuple[int, ...] = ()) -> None:
        cached = self._cached[sequence_id]
        places = kept_places(self._last.get(sequence_id), len(cached), length, path)
        cached[length:] = [cached[place] for place in places]
        self._last.pop(sequence_id, None)

    def length(self, sequence_id: int) -> int:
        return len(self._cached[sequence_id])

    def fork(self, source: int, target: int, length: int) -> None:
        if not 0 <= length <= len(self._cached[source]):
            raise ContractError(f"cannot fork {length} of {len(self._cached[source])} cached tokens")
        kept_places(self._last.get(source), len(self._cached[source]), length)
        self.begin(target)
        self._cached[target] = self._cached[source][:length]

    def free(self, sequence_id: int) -> None:
        self._cached.pop(sequence_id, None)
        self._last.pop(sequence_id, None)

    def cost(self) -> CostCurve:
        """A flat curve: a table look-up costs the same for any number of rows."""
        return CostCurve(0, dict.fromkeys((1, 2, 4, 8, 16), 0.001))

    @property
    def num_sequences(self) -> int:
        """Sequences that hold a cache (0 once everything was freed)."""
        return len(self._cached)


def _texts(cached: Sequence[int], span: Span) -> list[list[int]]:
    """The text that leads to each row that is wanted of a span, its token included."""
    first = len(span.tokens) - span.num_rows
    if span.parents is None:
        fed = [*cached, *span.tokens]
        return [fed[:end] for end in range(len(cached) + first + 1, len(fed) + 1)]
    texts: list[list[int]] = []
    for token, parent in zip(span.tokens, span.parents, strict=True):
        texts.append([*(texts[parent] if parent >= 0 else cached), token])
    return texts[first:]


def joint_law(
    next_probs: Callable[[tuple[int, ...]], np.ndarray], prompt: Sequence[int], num_tokens: int
) -> dict[tuple[int, ...], float]:
    """The exact law of the next `num_tokens` tokens: every text with its probability, by the chain rule."""
    size = len(next_probs(tuple(prompt)))
    law: dict[tuple[int, ...], float] = {}
    for text in product(range(size), repeat=num_tokens):
        probability = 1.0
        for i, token in enumerate(text):
            probability *= float(next_probs((*prompt, *text[:i]))[token])
        law[text] = probability
    return law
