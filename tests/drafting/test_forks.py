"""Caches forked from another text's: never longer than the window, and never another's text."""

from __future__ import annotations

import pytest
from tests.drafting.test_window import Watched, target
from tests.helpers import complete, run

from forerun.control import FixedLength
from forerun.drafting import ModelDrafter
from forerun.engine import Engine
from forerun.sampling import SamplingParams

PROMPT = [1, 2, 3] * 10


@pytest.mark.parametrize("length", [36, 40, 41, 43, 46, 55, 60])
def test_a_fork_fits_the_window(length: int) -> None:
    """The second text is longer than what the first one's cache can still take: it must begin anew."""
    whole = PROMPT + complete(target(), PROMPT, max_tokens=60, temperature=0)[1]
    for num_steps in (2, 3, 4, 8):
        draft = Watched()
        engine = Engine(target(), ModelDrafter(draft, 40), FixedLength(2))
        first = engine.add(PROMPT, SamplingParams(temperature=0, max_tokens=60))
        for _ in range(num_steps):
            engine.step()
        second = engine.add(whole[:length], SamplingParams(temperature=0, max_tokens=90 - length))
        run(engine)
        assert first.tokens == second.tokens == whole
        assert draft.longest <= 40
        assert draft.num_sequences == 0
