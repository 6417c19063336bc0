"""A draft model: tokens drawn one by one from its processed distribution, all sequences of a batch together."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from time import perf_counter
from typing import Literal

from forerun.checks import real, whole
from forerun.drafting.base import SequenceView
from forerun.drafting.caches import MIN_SHARED, DraftCaches, common_length
from forerun.errors import ForerunError, NoLegalTokenError, NumericalError, UserCodeError
from forerun.randomness import Purpose
from forerun.runtime.base import Model, Rows
from forerun.sampling import Distribution
from forerun.types import Draft, Gate, Plan, Prospect, Span, Verdict

Meter = Callable[[int, float, float], None]
"""Told of every pass of a draft model: (tokens fed, tokens that each of them looked at on average, milliseconds)."""


class ModelDrafter:
    """Drafts with a second model that shares the target's vocabulary.

    Tokens are drawn from q, the draft's row under the request's own sampling parameters, with the round's draft
    randomness; at temperature 0 and in seeded mode the same call gives the argmax or the coupled draw. The draft's
    cache is derived from the sequence's tokens: what it fed beyond them is rolled back at the next proposal.

    `window` (tokens, at least 1; default: the draft model's context) bounds every cache: the draft model sees at most
    that much of the latest text, so that long texts cost it nothing and a draft model of a short context serves them
    too. A cache that is full is begun anew with the last `window / 2` tokens, as if the text began there: one more
    token is read for each token written, in one pass every `window / 2` tokens.

    `min_confidence` in [0, 1] ends a draft early: after each token, drafting goes on only while the product of the
    draft model's confidences so far (raw probability of its likeliest token) is at least this; 0 never ends early. It
    looks at rows of tokens already drawn, never at a token it then drops, so every rule stays exact.

    `start_after` is how many tokens a request has written before it is drafted for. By default the first token is
    delivered before the draft model reads anything; larger values spare short answers that reading altogether.
    """

    source = "model"
    needs: tuple[str, ...] = ()

    def __init__(
        self,
        model: Model,
        window: int | None = None,
        min_confidence: float = 0.0,
        start_after: int = 1,
        meter: Meter | None = None,
    ) -> None:
        if window is not None:
            whole("window", window, 1, None, "a whole number of tokens, at least 1")
        real("min_confidence", min_confidence, 0.0, 1.0, "between 0 (never end early) and 1")
        whole("start_after", start_after, 0, None, "a whole number of tokens, at least 0")
        self.model = model
        self.min_confidence, self.start_after, self._meter = min_confidence, start_after, meter
        limits = [limit for limit in (model.capabilities.context_length, window) if limit is not None]
        self.window = min(limits) if limits else None
        self._caches = DraftCaches(model)
        self._broken: set[int] = set()

    def prospects(self, sequences: Sequence[SequenceView], longest: Sequence[int]) -> list[list[Prospect]]:
        found = []
        for sequence, most in zip(sequences, longest, strict=True):
            shape, start = self._fitting(sequence, most, None)
            found.append([Prospect("model", shape, num_unread=self._unread(sequence, start))] if shape > 0 else [])
        return found

    def propose(self, sequences: Sequence[SequenceView], plans: Sequence[Plan]) -> list[Draft]:
        return self.extend(sequences, plans, [()] * len(sequences))

    def extend(
        self, sequences: Sequence[SequenceView], plans: Sequence[Plan], free: Sequence[Sequence[int]]
    ) -> list[Draft]:
        """Whole drafts of `plans[i].shape` tokens that begin with the fixed tokens `free[i]`, which another source gave
        for nothing. Where the draft model adds none, they are all there is, as a deterministic draft; otherwise a
        sampled draft has rows with all mass on one token for them."""
        fitting = [
            self._fitting(sequence, max(plan.shape, min(plan.read, 1)), plan.most_unread)
            if self._can_read(sequence, given) and len(given) < max(plan.shape, min(plan.read, 1))
            else (0, 0)
            for sequence, plan, given in zip(sequences, plans, free, strict=True)
        ]
        shapes, starts = [shape for shape, _ in fitting], [start for _, start in fitting]
        tokens: list[list[int]] = [list(given) for given in free]
        rows: list[list[Distribution]] = [[] for _ in sequences]
        most = [None if self.window is None else self.window - shape + 1 for shape in shapes]
        active = [i for i, shape in enumerate(shapes) if shape > len(free[i])]
        reading = [i for i in active if plans[i].shape == 0]
        active = self._without_twins(sequences, starts, most, active)
        confidences: list[list[float]] = [[] for _ in sequences]
        for i in active:
            self._caches.bring_back(sequences[i].sequence_id, sequences[i].tokens, starts[i], most[i])
        pieces = [piece for i in reading for piece in self._piece(sequences[i], plans[i].read)]
        active = [i for i in active if i not in reading]
        while active or pieces:
            spans = [self._caches.missing(sequences[i].sequence_id, sequences[i].tokens, tokens[i]) for i in active]
            out = self._forward([*spans, *pieces])
            pieces = []
            for place, i in enumerate(active):
                sequence = sequences[i]
                q = sequence.distribution(out, out.index(place, 0), tuple(tokens[i]))
                try:
                    if self.min_confidence > 0.0 or plans[i].gate is not None:
                        confidences[i].append(q.confidence)
                    tokens[i].append(sequence.noise.draw(q, len(tokens[i]), Purpose.DRAFT))
                except (NumericalError, UserCodeError) as error:
                    # What was drawn is still proposed: dropping it would condition on the drawn tokens (biased).
                    if not isinstance(error, NoLegalTokenError):
                        self._give_up(sequence, error)
                    shapes[i] = 0
                    continue
                rows[i].append(q)
            active = [
                i
                for i in active
                if len(tokens[i]) < shapes[i] and self._goes_on(tokens[i][-1], confidences[i], plans[i].gate)
            ]
        return [
            _draft(tokens[i], len(free[i]), sequence.noise.kind, rows[i], confidences[i])
            for i, sequence in enumerate(sequences)
        ]

    def observe(self, sequences: Sequence[SequenceView], rows: Rows, verdicts: Sequence[Verdict | None]) -> None:
        pass

    def release(self, sequence_id: int) -> None:
        self._broken.discard(sequence_id)
        self._caches.free(sequence_id)

    def _piece(self, sequence: SequenceView, most: int) -> list[Span]:
        """The next `most` tokens to be read, whose rows nobody wants, if there are any before the last one."""
        span = self._caches.missing(sequence.sequence_id, sequence.tokens, ())
        tokens = span.tokens[: min(most, len(span.tokens) - 1)]
        return [replace(span, tokens=tokens, num_rows=0)] if tokens else []

    def _forward(self, spans: Sequence[Span]) -> Rows:
        start = perf_counter()
        out = self.model.forward(spans)
        self._caches.note_fed(spans)
        if self._meter is not None:
            out.wait()
            num_tokens = sum(len(span.tokens) for span in spans)
            looked_at = sum(len(span.tokens) * span.start for span in spans)
            self._meter(num_tokens, looked_at / num_tokens, 1e3 * (perf_counter() - start))
        return out

    def _goes_on(self, token: int, confidences: Sequence[float], gate: Gate | None) -> bool:
        """Whether to draft after `token`: it can be fed, and the draft model is sure enough."""
        if token >= self.model.capabilities.num_inputs:
            return False
        return prod(confidences) >= self.min_confidence and (gate is None or gate(confidences))

    def _unread(self, sequence: SequenceView, start: int) -> int:
        """Tokens to be read before the last one, for a cache that begins at `start`."""
        first, num_cached = self._caches.extent(sequence.sequence_id)
        place = first + num_cached if first == start else start
        return max(len(sequence.tokens) - 1 - place, 0)

    def _fitting(self, sequence: SequenceView, shape: int, most_unread: int | None) -> tuple[int, int]:
        """(the longest draft up to `shape` that the draft model can serve, the place in the text where its cache is to
        begin, which leaves at most `most_unread` tokens to be read). A function of what is committed alone."""
        shape, start = self._served(sequence, shape)
        if shape > 0 and most_unread is not None and self._unread(sequence, start) > most_unread:
            start = len(sequence.tokens) - 1 - most_unread
            shape = shape if self._can_feed(sequence, start) else 0
        return shape, start

    def _served(self, sequence: SequenceView, shape: int) -> tuple[int, int]:
        """`_fitting` however much is unread."""
        length = len(sequence.tokens)
        num_output = length - sequence.prompt_length
        if shape <= 0 or sequence.sequence_id in self._broken or num_output < self.start_after:
            return 0, 0
        start, num_cached = self._caches.extent(sequence.sequence_id)
        # Committed tokens behind the prompt are looked at again: the cache may hold drafted ones in their place.
        can_go_on = self._can_feed(sequence, max(start, min(start + num_cached, sequence.prompt_length)))
        if self.window is None:
            return (shape if can_go_on else 0), start
        # A draft's last token is never fed. Where space is scarce, drafts of a quarter of the window at most leave a
        # cache that was begun anew some room, so that at most two tokens are read for each one written.
        if length - start + shape - 1 > self.window:
            shape = min(shape, self.window // 4 + 1)
        if can_go_on and length - start + shape - 1 <= self.window:
            return shape, start
        anew = length - (self.window + 1) // 2
        if anew <= start or not self._can_feed(sequence, anew):
            return 0, start
        return shape, anew

    def _can_read(self, sequence: SequenceView, tokens: Sequence[int]) -> bool:
        """Whether the draft model can be fed all of these tokens."""
        num_inputs = self.model.capabilities.num_inputs
        return num_inputs >= sequence.vocabulary_size or all(token < num_inputs for token in tokens)

    def _can_feed(self, sequence: SequenceView, place: int) -> bool:
        """Whether the draft model can be fed every committed token from `place` on."""
        return self._can_read(sequence, sequence.tokens[place:])

    def _without_twins(
        self, sequences: Sequence[SequenceView], starts: Sequence[int], most: Sequence[int | None], active: list[int]
    ) -> list[int]:
        """Leave out new sequences of which another new one is about to feed most: a round later its cache is forked."""
        new: list[int] = []
        kept = []
        for i in active:
            tokens = sequences[i].tokens
            if sequences[i].sequence_id not in self._caches:
                _, cached = self._caches.nearest(tokens, starts[i], most[i])
                others = [sequences[j].tokens for j in new if starts[j] <= starts[i]]
                saved = max((common_length(other, tokens) for other in others), default=0) - cached
                if saved >= max(MIN_SHARED, (len(tokens) - cached) / 2):
                    continue
                new.append(i)
            kept.append(i)
        return kept

    def _give_up(self, sequence: SequenceView, error: ForerunError) -> None:
        self._broken.add(sequence.sequence_id)
        warnings.warn(
            f"drafting failed and ends for this request (its text is unaffected): {error}",
            RuntimeWarning,
            stacklevel=3,
        )


def _draft(
    tokens: Sequence[int],
    num_free: int,
    kind: Literal["sampled", "deterministic"],
    rows: Sequence[Distribution],
    confidences: Sequence[float],
) -> Draft:
    """The draft of `num_free` fixed tokens and of those that were drawn from `rows` behind them."""
    if kind == "deterministic" or (num_free and not rows):
        drafted = Draft(tuple(tokens))
    else:
        fixed = tuple(Distribution.certain(token, rows[0]) for token in tokens[:num_free])
        drafted = Draft(tuple(tokens), "sampled", (*fixed, *rows))
    return replace(drafted, source="model", confidences=tuple(confidences[: len(rows)]), num_free=num_free)
