"""Broken processing of rows: sampling parameters that are applied to the wrong text, too late, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from forerun.arrays import namespace
from forerun.runtime.base import Rows
from forerun.sampling import Distribution, Processing
from forerun.sampling.mass import Mass
from forerun.types import Array, Draft
from forerun.verification.broken.parts import Broken

Prefix = tuple[int, ...]


class _PenaltyPerStep(Processing):
    """Counts one token for each round instead of all that it committed."""

    def begin_round(self) -> None:
        if self._history._num_counted:
            self._history._num_counted = max(self._history._num_counted, len(self._tokens) - 1)
        super().begin_round()


class _PenaltyFromRejected(Processing):
    """Counts every token that was drafted, kept or not."""

    _drafted: Prefix = ()

    def distribution(self, rows: Rows, index: int, prefix: Prefix = (), source: str = "target") -> Distribution:
        if source == "target":
            self._drafted = prefix
        return super().distribution(rows, index, prefix, source)

    def begin_round(self) -> None:
        self._history.extend(self._drafted)
        self._drafted = ()
        super().begin_round()


class _PrefixForgotten(Processing):
    """Processes every row of a round as if it followed the committed text."""

    def distribution(self, rows: Rows, index: int, prefix: Prefix = (), source: str = "target") -> Distribution:
        return super().distribution(rows, index, (), source)


class _MaskAfterDrawing(Processing):
    """Lets the draft model draw from all tokens, and ends the draft where it drew an illegal one."""

    def distribution(self, rows: Rows, index: int, prefix: Prefix = (), source: str = "target") -> Distribution:
        steps = self._steps
        if source != "target":
            self._steps = [step for step in steps if step != self._mask]
        try:
            return super().distribution(rows, index, prefix, source)
        finally:
            self._steps = steps

    def fit(self, draft: Draft, shape: int) -> Draft:
        for num, token in enumerate(draft.tokens):
            legal = self._masks.after(draft.tokens[:num])
            if legal is None or not legal[token]:
                return replace(draft, tokens=draft.tokens[:num], rows=(draft.rows or ())[:num])
        return draft


class _BiasDropped(Processing):
    """Adds biases to the first row of a round only."""

    def _add_bias(self, logits: Array, prefix: Prefix, source: str) -> Array:
        return logits if prefix and source == "target" else super()._add_bias(logits, prefix, source)


class _StateFromDrafts(Processing):
    """Lets stateful processors keep what rejected drafts taught them."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._stateful.begin = lambda source, prefix: self._stateful._committed  # type: ignore[method-assign]


class _ProcessedAsRaw(Processing):
    """Reports the probabilities that were drawn from as the model's own."""

    def distribution(self, rows: Rows, index: int, prefix: Prefix = (), source: str = "target") -> Distribution:
        made = _Mislabelled(rows, index, self._params, self._size)
        made._sound = super().distribution(rows, index, prefix, source)
        return made


class _Mislabelled(Distribution):
    """A sound distribution that calls its processed probabilities the model's own."""

    _sound: Distribution

    def _logits(self, rows: Rows) -> tuple[Array, int, float]:
        return self._sound._logits(rows)

    @property
    def mass(self) -> Mass:
        return self._sound.mass

    @property
    def raw_logits(self) -> Array:
        probs = self._sound.probs
        xp = namespace(probs)
        return xp.log(xp.where(probs > 0.0, probs, 1e-300))


BROKEN_PROCESSING: Mapping[str, Broken] = {
    "penalty_per_step": Broken("penalties count the last token of each round only", processing=_PenaltyPerStep),
    "penalty_from_rejected": Broken("penalties count draft tokens that were rejected", processing=_PenaltyFromRejected),
    "prefix_forgotten": Broken("rows behind draft tokens are processed without them", processing=_PrefixForgotten),
    "mask_after_drawing": Broken(
        "a sampled draft is drawn without the mask and cut where it is illegal", processing=_MaskAfterDrawing
    ),
    "bias_dropped": Broken("rows behind draft tokens miss the bias", processing=_BiasDropped),
    "state_from_drafts": Broken("stateful processors remember rejected draft tokens", processing=_StateFromDrafts),
    "processed_as_raw": Broken(
        "processed log probabilities are reported as the model's own", processing=_ProcessedAsRaw
    ),
}
"""Every such fault with its one-line reason."""
