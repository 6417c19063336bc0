"""A draft model: tokens drawn one by one from its processed distribution, all sequences of a batch together."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Literal

from forerun.checks import real, shown, whole
from forerun.drafting.base import SequenceView
from forerun.drafting.caches import MIN_SHARED, DraftCaches, common_length
from forerun.drafting.growth import Growth
from forerun.errors import ForerunError, NoLegalTokenError, NumericalError, ParameterError, UserCodeError
from forerun.runtime.base import Model, Rows
from forerun.topology import chain, comb, depths, restricted, up_to
from forerun.types import Draft, Plan, Prospect, Span, Verdict

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

    A plan's tree is drawn level by level, the children of a node without replacement; all nodes of a level are fed in
    one pass, with the levels before them. A draft model that serves no trees drafts those nodes of it that follow the
    path of first children. `min_confidence` and gates look along that path.

    `candidates` "sampled" draws tokens with the round's noise. "top" takes the draft's likeliest ones at any
    temperature, which the target then follows where it draws one of them: worth it where a tree is wide.

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
        candidates: Literal["sampled", "top"] = "sampled",
        meter: Meter | None = None,
    ) -> None:
        if window is not None:
            whole("window", window, 1, None, "a whole number of tokens, at least 1")
        real("min_confidence", min_confidence, 0.0, 1.0, "between 0 (never end early) and 1")
        whole("start_after", start_after, 0, None, "a whole number of tokens, at least 0")
        if candidates not in ("sampled", "top"):
            raise ParameterError("candidates", f"{shown(candidates)} is not allowed", "sampled or top")
        self.model, self.candidates = model, candidates
        self.min_confidence, self.start_after, self._meter = min_confidence, start_after, meter
        limits = [limit for limit in (model.capabilities.context_length, window) if limit is not None]
        self.window = min(limits) if limits else None
        self._caches = DraftCaches(model)
        self._broken: set[int] = set()

    def prospects(self, sequences: Sequence[SequenceView], longest: Sequence[int]) -> list[list[Prospect]]:
        found = []
        for sequence, most in zip(sequences, longest, strict=True):
            shape, start = self._fitting(sequence, self._at_hand(sequence, most), Plan())
            unread = self._unread(sequence, start)
            cut = start if start and self._can_see_all(sequence, shape) else 0
            prospect = Prospect(self.source, shape, num_unread=unread, num_cut=cut, trees=True)
            found.append([prospect] if shape > 0 else [])
        return found

    def propose(self, sequences: Sequence[SequenceView], plans: Sequence[Plan]) -> list[Draft]:
        return self.extend(sequences, plans, [()] * len(sequences))

    def extend(
        self, sequences: Sequence[SequenceView], plans: Sequence[Plan], free: Sequence[Sequence[int]]
    ) -> list[Draft]:
        """Whole drafts of `plans[i].shape` tokens that begin with the fixed tokens `free[i]`, which another source gave
        for nothing. Where the draft model adds none, they are all there is, as a deterministic draft; otherwise a
        sampled draft has rows with all mass on one token for them."""
        trees = [self._topology(plan) for plan in plans]
        fitting = [
            self._fitting(sequence, wanted, plan) if self._can_read(sequence, given) and len(given) < wanted else (0, 0)
            for sequence, tree, plan, given in zip(sequences, trees, plans, free, strict=True)
            for wanted in (max(depths(tree), default=min(plan.read, 1)),)
        ]
        starts = [start for _, start in fitting]
        growths = [
            Growth(up_to(tree, depth), given) for tree, (depth, _), given in zip(trees, fitting, free, strict=True)
        ]
        most = [None if self.window is None else self.window - depth + 1 for depth, _ in fitting]
        active = [i for i, growth in enumerate(growths) if growth.open or (plans[i].read and fitting[i][0])]
        active = self._without_twins(sequences, starts, most, active)
        for i in active:
            one = sequences[i]
            self._caches.bring_back(one.sequence_id, one.tokens, starts[i], most[i], one.params.tenant)
        active, reading = [i for i in active if growths[i].open], [i for i in active if not growths[i].open]
        pieces = [piece for i in reading for piece in self._piece(sequences[i], plans[i].read)]
        while active or pieces:
            out = self._forward([*(self._span(sequences[i], growths[i]) for i in active), *pieces])
            pieces = []
            for place, i in enumerate(active):
                self._draw(sequences[i], plans[i], growths[i], out, place)
                growths[i].next_level(self.model.capabilities.num_inputs, self.min_confidence, plans[i].gate)
            active = [i for i in active if growths[i].open]
        return [
            growth.draft(sequence.noise.kind if self.candidates == "sampled" else "deterministic", self.source)
            for sequence, growth in zip(sequences, growths, strict=True)
        ]

    def _topology(self, plan: Plan) -> tuple[int, ...]:
        """What is to be drafted; where the draft model serves no trees, as much of it as needs none. Decided before
        anything is drawn."""
        if plan.tree is None:
            return chain(plan.shape)
        return plan.tree if self.model.capabilities.trees else restricted(plan.tree, comb(plan.tree))

    def _span(self, sequence: SequenceView, growth: Growth) -> Span:
        """What is missing for the rows of the open nodes."""
        if len(growth.open) == 1:  # a path leads there
            return self._caches.missing(sequence.sequence_id, sequence.tokens, growth.prefixes[growth.open[0]])
        tokens, parents = growth.shape_of(growth.fed())
        return self._caches.tree(sequence.sequence_id, sequence.tokens, tokens, parents, len(growth.open))

    def _draw(self, sequence: SequenceView, plan: Plan, growth: Growth, out: Rows, place: int) -> None:
        """The children of all open nodes, from span `place` of a pass."""
        noise = sequence.noise if self.candidates == "sampled" else None
        wants_confidence = self.min_confidence > 0.0 or plan.gate is not None
        for row, node in enumerate(growth.open):
            q = sequence.distribution(out, out.index(place, row), growth.prefixes[node])
            try:
                growth.draw(node, q, noise, wants_confidence)
            except (NumericalError, UserCodeError) as error:
                # What was drawn is still proposed: dropping it would condition on the drawn tokens (biased).
                if not isinstance(error, NoLegalTokenError):
                    self._give_up(sequence, error)

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

    def _unread(self, sequence: SequenceView, start: int) -> int:
        """Tokens to be read before the last one, for a cache that begins at `start`."""
        first, _ = self._caches.extent(sequence.sequence_id)
        num_valid = self._caches.num_valid(sequence.sequence_id, sequence.tokens) if first == start else 0
        place = start + num_valid
        return max(len(sequence.tokens) - 1 - place, 0)

    def _fitting(self, sequence: SequenceView, shape: int, plan: Plan) -> tuple[int, int]:
        """(the longest draft up to `shape` that the draft model can serve, the place in the text where its cache is to
        begin, by what the plan says of it). A function of what is committed alone."""
        shape, start = self._served(sequence, shape)
        if plan.whole and start and self._can_see_all(sequence, shape):
            start = 0
            shape = shape if self.window is None else min(shape, self.window + 1 - len(sequence.tokens))
        most = plan.most_unread
        if shape > 0 and most is not None and self._unread(sequence, start) > most:
            start = len(sequence.tokens) - 1 - most
            shape = shape if self._can_feed(sequence, start) else 0
        return shape, start

    def _at_hand(self, sequence: SequenceView, most: int) -> int:
        """The longest draft up to `most` that the cache has room for as it is; `most` where it is full. Shorter than
        one that is begun anew could serve, but what is said of it beforehand is then what every plan will find."""
        start, _ = self._caches.extent(sequence.sequence_id)
        room = most if self.window is None else self.window + 1 - (len(sequence.tokens) - start)
        return min(most, room) if room > 0 else most

    def _can_see_all(self, sequence: SequenceView, shape: int) -> bool:
        """Whether a cache may hold the text from its first token on, and a draft of `shape` tokens, or of a quarter of
        the window where that is less."""
        is_short = True
        if self.window is not None:
            is_short = len(sequence.tokens) + max(min(shape, self.window // 4 + 1), 1) - 1 <= self.window
        return is_short and self._can_feed(sequence, 0)

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
        """Leave out sequences whose cache is to begin (anew), where another such one is about to feed most of it: a
        round later that one's cache is forked."""
        new: list[int] = []
        kept = []
        for i in active:
            tokens, key, tenant = sequences[i].tokens, sequences[i].sequence_id, sequences[i].params.tenant
            if key not in self._caches or self._caches.extent(key)[0] != starts[i]:
                _, cached = self._caches.nearest(tokens, starts[i], most[i], tenant)
                others = [
                    sequences[j].tokens for j in new if starts[j] <= starts[i] and sequences[j].params.tenant == tenant
                ]
                saved = max((common_length(other, tokens) for other in others), default=0) - cached
                if saved >= max(MIN_SHARED, (len(tokens) - cached) / 2):
                    continue
                new.append(i)
            kept.append(i)
        return kept

    def _give_up(self, sequence: SequenceView, error: ForerunError) -> None:
        if sequence.sequence_id in self._broken:
            return
        self._broken.add(sequence.sequence_id)
        warnings.warn(
            f"drafting failed and ends for this request (its text is unaffected): {error}",
            RuntimeWarning,
            stacklevel=4,
        )
