"""cases.md C13 (whole kind): seeds reproduce, and only seeds do."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
from tests.helpers import complete, run

from forerun.control import FixedLength
from forerun.drafting import LookupDrafter, ModelDrafter, NoDrafter
from forerun.engine import Engine, Scheduler
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams

PROMPT = [3, 1, 4, 1, 5]


def target() -> ToyModel:
    return ToyModel.random(20, order=2, seed=8, spread=1.5)


def draft() -> ToyModel:
    return ToyModel.random(20, order=1, seed=3)


DRAFTERS = {"none": NoDrafter, "lookup": LookupDrafter, "model": lambda: ModelDrafter(draft())}
PARAMS = {"temperature": 1.5, "max_tokens": 16}


def test_c13a_one_seed_one_text_alone_and_among_neighbours() -> None:
    alone = [complete(target(), PROMPT, seed=11, **PARAMS)[1] for _ in range(5)]
    assert len({tuple(text) for text in alone}) == 1
    for name, place in itertools.product(DRAFTERS, (0, 3, 7)):
        engine = Engine(target(), DRAFTERS[name](), FixedLength(3))
        for i in range(8):
            params = SamplingParams(seed=11 if i == place else None, **PARAMS)
            sequence = engine.add(PROMPT if i == place else [i] * (i + 1), params)
            if i == place:
                watched = sequence
        run(engine)
        assert watched.tokens[len(PROMPT) :] == alone[0]


def test_c13b_different_seeds_differ() -> None:
    texts = {tuple(complete(target(), PROMPT, seed=seed, **PARAMS)[1]) for seed in range(1, 21)}
    assert len(texts) >= 15


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_c13c_unseeded_requests_differ_in_series_and_in_one_batch(drafter: str) -> None:
    series = {tuple(complete(target(), PROMPT, DRAFTERS[drafter](), 3, **PARAMS)[1]) for _ in range(20)}
    assert len(series) >= 15
    engine = Engine(target(), DRAFTERS[drafter](), FixedLength(3))
    batch = [engine.add(PROMPT, SamplingParams(**PARAMS)) for _ in range(20)]
    run(engine)
    assert len({tuple(sequence.tokens) for sequence in batch}) >= 15


def test_c13d_choices_of_one_seed_differ_and_reproduce() -> None:
    def choices(drafter: str) -> list[tuple[int, ...]]:
        engine = Engine(target(), DRAFTERS[drafter](), FixedLength(4))
        made = [engine.add(PROMPT, SamplingParams(seed=11, **PARAMS), choice=choice) for choice in range(4)]
        run(engine)
        return [tuple(sequence.tokens) for sequence in made]

    first = choices("none")
    assert len(set(first)) == 4
    assert all(choices(drafter) == first for drafter in DRAFTERS)


@pytest.mark.parametrize("k", range(9))
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_c13_seeded_text_is_the_same_for_every_k_drafter_and_chunking(drafter: str, k: int) -> None:
    prompt = PROMPT * 5
    expected = complete(target(), prompt, seed=7, **PARAMS)[1]
    for max_tokens in (1, 4, 512):
        engine = Engine(target(), DRAFTERS[drafter](), FixedLength(k), scheduler=Scheduler(3, max_tokens))
        others = [engine.add([i, i], SamplingParams(max_tokens=9)) for i in range(5)]
        watched = engine.add(prompt, SamplingParams(seed=7, **PARAMS))
        while not engine.is_idle:
            engine.step()
            if others and watched.num_output > 3:
                engine.cancel(others.pop().sequence_id)
        assert watched.tokens[len(prompt) :] == expected


def test_c13_seeded_text_survives_a_new_process() -> None:
    code = (
        "from tests.cases.test_seeds import *\n"
        "print(complete(target(), PROMPT, DRAFTERS['model'](), 4, seed=2**64 - 1, **PARAMS)[1])"
    )
    printed = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout for _ in "ab"
    }
    assert printed == {f"{complete(target(), PROMPT, seed=2**64 - 1, **PARAMS)[1]}\n"}
