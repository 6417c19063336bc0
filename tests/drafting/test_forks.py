"""Caches forked from another text's: never longer than the window, and never another's text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.drafting.test_window import Watched, target
from tests.helpers import complete, run

from forerun.control import FixedLength
from forerun.drafting import ModelDrafter
from forerun.engine import Engine
from forerun.sampling import SamplingParams
from forerun.types import Plan

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


class Turning(FixedLength):
    """Five tokens of each text are read first, and from the fifth round on all of it."""

    num_rounds = 0

    def plan(self, *given: Any) -> list[Plan]:
        self.num_rounds += 1
        more: dict[str, Any] = {"most_unread": 5} if self.num_rounds < 5 else {"whole": True}
        return [replace(plan, **more) for plan in super().plan(*given)]


def test_a_prompt_that_several_texts_turn_to_in_one_round_is_read_once() -> None:
    """A cache that begins anew is forked as a new one is."""
    prompt = [(5 * i + i // 7) % 12 for i in range(300)]
    draft = Watched()
    engine = Engine(target(), ModelDrafter(draft), Turning(3))
    made = [engine.add(prompt, SamplingParams(max_tokens=40, seed=i)) for i in range(3)]
    run(engine)
    long = [len(span.tokens) for spans in draft.passes for span in spans if len(span.tokens) > 100]
    assert len(long) == 1
    for i, sequence in enumerate(made):
        assert sequence.tokens[300:] == complete(target(), prompt, max_tokens=40, seed=i)[1]
    assert draft.num_sequences == 0
