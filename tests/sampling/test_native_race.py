"""The fast race over a row of logits finds what the race over all of its weights finds."""

from __future__ import annotations

import numpy as np
import pytest

from forerun import _native


@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0])
def test_no_winner_is_passed_over(spread: float) -> None:
    """The blocks after the first are searched with a bound: enough races that some are won by a hair. A bound too small
    by 1 % loses some of these."""
    rng = np.random.default_rng(30)
    logits = (spread * rng.standard_normal(3000)).astype(np.float32)
    mass, best = _native.softmax(logits, 1.0), int(logits.argmax())
    largest, keys = float(logits.max()), rng.integers(0, 1 << 63, 6000)
    fast = [_native.race_of_logits(logits, 1.0, best, largest, int(key)) for key in keys]
    assert fast == [mass.race(int(key)) for key in keys]
