"""A draft model: tokens drawn one by one from its processed distribution, all sequences of a batch together."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from forerun.checks import real
from forerun.drafting.base import SequenceView
from forerun.errors import ForerunError, NoLegalTokenError, NumericalError, UserCodeError
from forerun.randomness import Purpose
from forerun.runtime.base import Model, Rows
from forerun.sampling import Distribution
from forerun.types import Draft, Span, Verdict

MIN_SHARED = 16
"""Tokens two texts must share before the second one's cache is forked from the first one's."""


class ModelDrafter:
    """Drafts with a second model that shares the target's vocabulary.

    Tokens are drawn from q, the draft's row under the request's own sampling parameters, with the round's draft
    randomness; at temperature 0 and in seeded mode the same call gives the argmax or the coupled draw. The draft's
    cache is derived from the sequence's tokens: what it fed beyond them is rolled back at the next proposal.

    `context_length` (tokens) limits the draft below its own context. A sequence that no longer fits is not drafted
    for, and takes no part in any statistic of drafting; the target goes on.

    `min_confidence` in [0, 1] ends a draft early: after each token, drafting goes on only while the product of the
    draft model's confidences so far (raw probability of its likeliest token) is at least this; 0 never ends early. It
    looks at rows of tokens already drawn, never at a token it then drops, so every rule stays exact.
    """

    needs: tuple[str, ...] = ()

    def __init__(self, model: Model, context_length: int | None = None, min_confidence: float = 0.0) -> None:
        real("min_confidence", min_confidence, 0.0, 1.0, "between 0 (never end early) and 1")
        self.model = model
        self.min_confidence = min_confidence
        own = model.capabilities.context_length
        limits = [limit for limit in (own, context_length) if limit is not None]
        self.context_length = min(limits) if limits else None
        self._fed: dict[int, list[int]] = {}  # the tokens each cache holds, in order
        self._broken: set[int] = set()

    def propose(self, sequences: Sequence[SequenceView], shapes: Sequence[int]) -> list[Draft]:
        shapes = [self._fitting(sequence, shape) for sequence, shape in zip(sequences, shapes, strict=True)]
        tokens: list[list[int]] = [[] for _ in sequences]
        rows: list[list[Distribution]] = [[] for _ in sequences]
        active = self._without_twins(sequences, [i for i, shape in enumerate(shapes) if shape > 0])
        confidences = [1.0] * len(shapes)
        for i in active:
            self._roll_back(sequences[i])
        node = 0
        while active:
            spans = [self._missing(sequences[i], tokens[i]) for i in active]
            out = self.model.forward(spans)
            for span in spans:
                self._fed[span.sequence_id].extend(span.tokens)
            for place, i in enumerate(active):
                sequence = sequences[i]
                q = sequence.distribution(out, out.index(place, 0), tuple(tokens[i]))
                try:
                    if self.min_confidence > 0.0:
                        confidences[i] *= q.confidence
                    tokens[i].append(sequence.noise.draw(q, node, Purpose.DRAFT))
                except (NumericalError, UserCodeError) as error:
                    # What was drawn is still proposed: dropping it would condition on the drawn tokens (biased).
                    if not isinstance(error, NoLegalTokenError):
                        self._give_up(sequence, error)
                    shapes[i] = 0
                    continue
                rows[i].append(q)
            node += 1
            active = [i for i in active if node < shapes[i] and self._goes_on(tokens[i][-1], confidences[i])]
        return [
            Draft(tuple(drafted), sequence.noise.kind, tuple(q) if sequence.noise.kind == "sampled" else None)
            for sequence, drafted, q in zip(sequences, tokens, rows, strict=True)
        ]

    def observe(self, sequences: Sequence[SequenceView], rows: Rows, verdicts: Sequence[Verdict | None]) -> None:
        pass

    def release(self, sequence_id: int) -> None:
        self._broken.discard(sequence_id)
        if self._fed.pop(sequence_id, None) is not None:
            self.model.free(sequence_id)

    def _goes_on(self, token: int, confidence: float) -> bool:
        """Whether to draft after `token`: it can be fed, and the draft model is sure enough."""
        return token < self.model.capabilities.num_inputs and confidence >= self.min_confidence

    def _fitting(self, sequence: SequenceView, shape: int) -> int:
        """The longest draft up to `shape` that the draft model can serve (a draft's last token is never fed)."""
        if sequence.sequence_id in self._broken:
            return 0
        if self.context_length is not None:
            shape = min(shape, self.context_length - len(sequence.tokens) + 1)
        fed = len(self._fed.get(sequence.sequence_id, ()))
        num_inputs = self.model.capabilities.num_inputs
        if shape > 0 and num_inputs < sequence.vocabulary_size:
            new = sequence.tokens[min(fed, sequence.prompt_length) :]
            shape = shape if all(token < num_inputs for token in new) else 0
        return max(shape, 0)

    def _roll_back(self, sequence: SequenceView) -> None:
        key, tokens = sequence.sequence_id, sequence.tokens
        if key not in self._fed:
            self._begin(key, tokens)
        fed = self._fed[key]
        # At least the last committed token is fed again if need be, so that there is a row to draft from.
        self.model.keep(key, min(common_length(fed, tokens), len(tokens) - 1))
        del fed[self.model.length(key) :]

    def _without_twins(self, sequences: Sequence[SequenceView], active: list[int]) -> list[int]:
        """Leave out new sequences of which another new one is about to feed most: a round later its cache is forked."""
        new: list[Sequence[int]] = []
        kept = []
        for i in active:
            tokens = sequences[i].tokens
            if sequences[i].sequence_id not in self._fed:
                missing = len(tokens) - self._nearest(tokens)[1]
                saved = max((common_length(other, tokens) for other in new), default=0) - (len(tokens) - missing)
                if saved >= max(MIN_SHARED, missing / 2):
                    continue
                new.append(tokens)
            kept.append(i)
        return kept

    def _nearest(self, tokens: Sequence[int]) -> tuple[int | None, int]:
        """(sequence, tokens in common) of the cache that shares most of a text."""
        shared = {other: common_length(fed, tokens) for other, fed in self._fed.items()}
        source = max(shared, key=lambda other: shared[other], default=None)
        return source, 0 if source is None else shared[source]

    def _begin(self, key: int, tokens: Sequence[int]) -> None:
        """A cache for a new sequence: forked from the one that shares most of its text (choices of one prompt do)."""
        source, num_shared = self._nearest(tokens)
        self.model.free(key)  # of a beginning that was interrupted
        if source is None or num_shared < MIN_SHARED:
            self.model.begin(key)
            self._fed[key] = []
        else:
            self.model.fork(source, key, num_shared)
            self._fed[key] = list(tokens[:num_shared])

    def _missing(self, sequence: SequenceView, drafted: list[int]) -> Span:
        start = len(self._fed[sequence.sequence_id])
        missing = [*sequence.tokens[start:], *drafted[max(start - len(sequence.tokens), 0) :]]
        return Span(sequence.sequence_id, start, missing, 1)

    def _give_up(self, sequence: SequenceView, error: ForerunError) -> None:
        self._broken.add(sequence.sequence_id)
        warnings.warn(
            f"drafting failed and ends for this request (its text is unaffected): {error}",
            RuntimeWarning,
            stacklevel=3,
        )


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two texts have in common at the start, in halving steps: slices are compared far faster than a
    loop over tokens."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if list(one[low:middle]) == list(other[low:middle]):
            low = middle
        else:
            high = middle - 1
    return low
