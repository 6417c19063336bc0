"""From a row of logits to the distribution that a token is drawn from, with the draft tokens before it as context.

One object per sequence. What it knows of the text (counts, grammar states, processors' memory) is derived from the
committed tokens and brought up to date by `begin_round`; what a draft adds is looked at and thrown away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np

from forerun.arrays import namespace, zeros_like
from forerun.constraints import Constraint
from forerun.errors import UserCodeError
from forerun.runtime.base import Rows
from forerun.sampling.distribution import Distribution
from forerun.sampling.history import History
from forerun.sampling.kinds import kind_of
from forerun.sampling.masks import Masks
from forerun.sampling.params import SamplingParams
from forerun.sampling.processors import Processor, StatefulProcessor, call, copies
from forerun.types import Array, Draft

Prefix = tuple[int, ...]
Step = Callable[[Array, Prefix, str], Array]
"""(logits [width], draft prefix, whose row) -> logits. One parameter's effect on one row."""


class Processing:
    """How the rows of one sequence are processed. `tokens` is the sequence's own list, which only grows.

    Steps that no parameter asks for do not exist, so a plain request's rows are not even copied.
    """

    def __init__(
        self,
        params: SamplingParams,
        vocabulary_size: int,
        tokens: Sequence[int],
        *,
        stop_ids: Collection[int] = (),
        constraints: Sequence[Constraint] = (),
    ) -> None:
        self._params, self._size, self._tokens = params, vocabulary_size, tokens
        self._prompt_length = len(tokens)
        self._history = History()
        self._masks, self._num_walked = Masks(constraints, vocabulary_size), len(tokens)
        self._stateful = _Stateful(
            [processor for processor in params.logits_processors if isinstance(processor, StatefulProcessor)]
        )
        self._stop_ids = _ids(token for token in stop_ids if token < vocabulary_size)
        self._bias_ids = _ids(token for token, _ in params.biases)
        self._biases = np.array([bias for _, bias in params.biases])
        self._bad_words = _by_context(params.bad_words or ())
        asked: list[tuple[bool, Step]] = [
            (params.repetition_penalty != 1.0, self._penalise_repetition),
            (bool(params.frequency_penalty or params.presence_penalty), self._penalise_frequency),
            (bool(params.biases), self._add_bias),
            (bool(params.logits_processors), self._call_processors),
            (bool(params.bad_words), self._ban_words),
            (bool(params.min_tokens and len(self._stop_ids)), self._ban_early_end),
            (bool(constraints), self._mask),
        ]
        self._steps = [step for is_asked, step in asked if is_asked]

    def begin_round(self) -> None:
        """Take in what was committed since the last round."""
        if self._params.repetition_penalty != 1.0 or self._params.frequency_penalty or self._params.presence_penalty:
            self._history.follow(self._tokens)
        if self._masks or self._stateful:
            new = tuple(self._tokens[self._num_walked :])
            self._masks.commit(new)
            self._stateful.commit(new)
            self._num_walked = len(self._tokens)

    def release(self) -> None:
        """The text has ended: let go of the last pass's rows and masks, which a result that is kept need not hold."""
        self._masks.release()
        self._stateful.release()

    def distribution(self, rows: Rows, index: int, prefix: Prefix = (), source: str = "target") -> Distribution:
        """The distribution of row `index` of a pass, which follows the committed tokens and the draft tokens `prefix`.
        `source` tells apart the models whose rows are processed (the target and a draft model)."""
        if not self._steps:
            return Distribution(rows, index, self._params, self._size)

        steps = self._steps

        def adjust(logits: Array) -> Array:
            for step in steps:
                logits = step(logits, prefix, source)
            return logits

        made = Distribution(rows, index, self._params, self._size, adjust)
        self._stateful.expect(source, prefix, made)
        return made

    def ends_after(self, prefix: Prefix) -> bool:
        """Whether a grammar lets nothing follow the committed tokens and `prefix`."""
        return bool(self._masks) and self._masks.is_finished(prefix)

    def fit(self, draft: Draft, shape: int) -> Draft:
        """The draft as far as it is worth verifying: a fixed draft ends before its first illegal token (a sampled one
        may not be cut for what was drawn; its q is masked instead), and where exactly one token is legal that token is
        a free draft, of up to `shape` tokens in all."""
        if not self._masks:
            return draft
        tokens = list(draft.tokens)
        if draft.kind == "deterministic":
            for num, token in enumerate(tokens):
                legal = self._masks.after(tokens[:num])
                if legal is None or not legal[token]:
                    del tokens[num:]
                    break
        num_drafted = len(tokens)
        while len(tokens) < shape:
            try:
                legal = self._masks.after(tokens)
            except UserCodeError:  # met again by whoever gets there; dropping what was drawn for it would be biased
                break
            if legal is None or np.count_nonzero(legal) != 1:
                break
            tokens.append(int(np.argmax(legal)))
        if len(tokens) == len(draft.tokens) == num_drafted:
            return draft
        if draft.kind == "deterministic" or not draft.rows:
            draft = replace(draft, kind="deterministic")
            num_free = min(draft.num_free, num_drafted)
            confidences = draft.confidences[: num_drafted - num_free]
            return replace(draft, tokens=tuple(tokens), rows=None, num_free=num_free, confidences=confidences)
        forced = tuple(Distribution.certain(token, draft.rows[0]) for token in tokens[num_drafted:])
        return replace(draft, tokens=tuple(tokens), rows=(*draft.rows, *forced))

    # -- the steps, in order -------------------------------------------------------------------------------------------

    def _penalise_repetition(self, logits: Array, prefix: Prefix, source: str) -> Array:
        """Keskar et al. (arXiv 1909.05858), with transformers' rule for negative logits."""
        ids, _ = self._history.after(prefix)
        return kind_of(logits).edits.penalise_repetition(logits, ids, self._params.repetition_penalty)

    def _penalise_frequency(self, logits: Array, prefix: Prefix, source: str) -> Array:
        """logit - frequency_penalty * count - presence_penalty, for tokens that occurred."""
        params = self._params
        ids, counts = self._history.after(prefix)
        amounts = params.frequency_penalty * counts + params.presence_penalty
        return kind_of(logits).edits.subtract(logits, ids, amounts)

    def _add_bias(self, logits: Array, prefix: Prefix, source: str) -> Array:
        return kind_of(logits).edits.subtract(logits, self._bias_ids, -self._biases)

    def _call_processors(self, logits: Array, prefix: Prefix, source: str) -> Array:
        tokens = [*self._tokens, *prefix]
        remembering = iter(self._stateful.begin(source, prefix))
        if logits.shape[0] < self._size:  # a draft with a smaller head: processors may name any token
            missing = zeros_like(logits, self._size - int(logits.shape[0])) - math.inf
            logits = namespace(logits).concat([logits, missing])
        for processor in self._params.logits_processors:
            one = next(remembering) if isinstance(processor, StatefulProcessor) else processor
            logits = call(one, list(tokens), logits)
        return logits

    def _ban_words(self, logits: Array, prefix: Prefix, source: str) -> Array:
        """transformers' NoBadWordsLogitsProcessor: the last token of a word is ruled out after the others."""
        for length, lasts_by_context in self._bad_words.items():
            lasts = lasts_by_context.get(self._tail(length, prefix))
            if lasts is not None:
                logits = kind_of(logits).edits.rule_out(logits, lasts)
        return logits

    def _ban_early_end(self, logits: Array, prefix: Prefix, source: str) -> Array:
        num_output = len(self._tokens) - self._prompt_length + len(prefix)
        if num_output >= self._params.min_tokens:
            return logits
        return kind_of(logits).edits.rule_out(logits, self._stop_ids)

    def _mask(self, logits: Array, prefix: Prefix, source: str) -> Array:
        legal = self._masks.after(prefix)
        if legal is None:
            return logits
        return kind_of(logits).edits.keep_only(logits, legal)

    def _tail(self, length: int, prefix: Prefix) -> Prefix:
        """The last `length` tokens of the text and `prefix`; fewer where the text is shorter."""
        num_before = length - len(prefix)
        if num_before <= 0:
            return prefix[len(prefix) - length :]
        return (*self._tokens[max(len(self._tokens) - num_before, 0) :], *prefix)


class _Stateful:
    """The memory of stateful processors along each path, by what has been called: committed, then copies.

    The copies that processed the row after prefix P are what the row after P + (token,) starts from. A row is processed
    when it is looked at, so the rows before it on its path are looked at first.
    """

    def __init__(self, kinds: Sequence[StatefulProcessor]) -> None:
        self._committed: list[Processor] = [kind.fresh() for kind in kinds]
        self._rows: dict[tuple[str, Prefix], Distribution] = {}
        self._called: dict[tuple[str, Prefix], list[Processor]] = {}

    def __bool__(self) -> bool:
        return bool(self._committed)

    def expect(self, source: str, prefix: Prefix, row: Distribution) -> None:
        """Remember which row follows a prefix."""
        if self._committed:
            self._rows[source, prefix] = row

    def begin(self, source: str, prefix: Prefix) -> list[Processor]:
        """The processors to call for the row after `prefix`."""
        if not self._committed:
            return []
        now = copies(self._before(source, prefix) if prefix else self._committed)
        self._called[source, prefix] = now
        return now

    def commit(self, tokens: Prefix) -> None:
        """Go on from the copies that processed the rows of the committed tokens."""
        if tokens and self._committed:
            self._committed = self._called.get(("target", tokens[:-1]), self._committed)
        self.release()

    def release(self) -> None:
        """Forget the rows of a pass and what was called for them."""
        self._rows.clear()
        self._called.clear()

    def _before(self, source: str, prefix: Prefix) -> list[Processor]:
        """What processed the last row before this one; a draft that goes on behind copied tokens has none for them."""
        for length in range(len(prefix) - 1, -1, -1):
            key = (source, prefix[:length])
            if key not in self._called and key in self._rows:
                self._rows[key].argmax  # noqa: B018 - looking at the row before is what calls its processors
            if key in self._called:
                return self._called[key]
        return self._committed


def _ids(tokens: Iterable[int]) -> np.ndarray:
    return np.array(list(tokens), dtype=np.int64)


def _by_context(words: Sequence[str | tuple[int, ...]]) -> dict[int, dict[Prefix, np.ndarray]]:
    """Tokens that complete a word, by the tokens before them, by how many those are: one look-up for each length."""
    found: dict[int, dict[Prefix, list[int]]] = {}
    for word in words:
        if isinstance(word, tuple):
            found.setdefault(len(word) - 1, {}).setdefault(word[:-1], []).append(word[-1])
    return {length: {context: _ids(lasts) for context, lasts in contexts.items()} for length, contexts in found.items()}
