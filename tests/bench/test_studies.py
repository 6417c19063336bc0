"""Phases, depths, acceptance and prompts of a wanted length, on toys and scripted policies."""

from __future__ import annotations

import io
import json
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tests.bench.toys import PROMPTS, draft, quick_probe, target

from forerun.bench.acceptance import _interval, beside_quoted, print_acceptance, run_acceptance
from forerun.bench.cells.batches import Block, Moment
from forerun.bench.cells.run import Measuring
from forerun.bench.contexts import filler_of, prompt_ids
from forerun.bench.depth import drafter_cost, pattern_ids, print_depths, run_depths
from forerun.bench.phases import Phase, figures_of, gaps, print_phases, run_phases, steps_until
from forerun.bench.workloads import RandomIds, Task, load_workload
from forerun.control.policy import FixedLength
from forerun.drafting import LookupDrafter, ModelDrafter
from forerun.drafting.scripted import OracleDrafter, record
from forerun.errors import InputError
from forerun.llm import LLM
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams
from forerun.types import Plan, Step

STEP = Step(1, 1, 1, 0, 0.0, 0.01, 0.0, 0.0)


def moment(at: float, *rounds: tuple[int, str, int, int, int]) -> Moment:
    return Moment(at, STEP, tuple((*one, min(one[3] + 1, one[2])) for one in rounds))


class Script(FixedLength):
    """k = 6, then 0 for `pause` steps from step `at` on, then 6 again."""

    def __init__(self, at: int, pause: int) -> None:
        super().__init__(6)
        self.steps, self.at, self.pause = 0, at, pause

    def plan(self, sequences: Any, prospects: Any, load: Any) -> list[Plan]:
        self.steps += 1
        k = 0 if self.at <= self.steps < self.at + self.pause else 6
        return [Plan(k) for _ in sequences]


# -- phases ---------------------------------------------------------------------------------------------------------


def test_gaps_are_between_one_texts_own_tokens() -> None:
    moments = [
        moment(1.0, (0, "", 0, 0, 1), (1, "", 0, 0, 1)),
        moment(1.5, (0, "", 0, 0, 1)),
        moment(4.0, (0, "", 0, 0, 0), (1, "", 0, 0, 2)),
        moment(4.5, (0, "", 0, 0, 1)),
    ]
    assert sorted(gaps(moments)) == [0.5, 3.0, 3.0]
    assert gaps([]) == []


def test_a_stall_is_five_medians_without_a_token() -> None:
    times = [0.1 * i for i in range(10)] + [0.9 + 0.49, 0.9 + 0.49 + 0.51]
    figures = figures_of([moment(at, (0, "model", 2, 1, 2)) for at in times], 20.0)
    assert figures["gaps"] == 11
    assert figures["stalls"] == 1
    assert figures["gap_ms"]["largest"] == pytest.approx(510)
    assert figures["gap_ms"]["median"] == pytest.approx(100)
    assert figures["sources"] == {"model": 12}


@pytest.mark.parametrize(
    ("k", "goal", "steps"),
    [([4] * 10, 4, 0), ([0] * 20 + [6] * 20, 6, 19), ([0] * 9, 6, None), ([8, 8, 1, 1, 1, 1], 1, 2), ([], 1, None)],
)  # fmt: skip
def test_steps_until_k_is_where_it_settles(k: list[float], goal: float, steps: int | None) -> None:
    assert steps_until(k, goal) == steps


def test_phases_of_a_scripted_policy() -> None:
    texts = record(target(), [[1, 2, 3], [4, 5]], 60)
    llm = LLM(target())
    # Plans are made once a step: 1 for reading, then 1 + 59/7 rounds. It pauses in the second phase only.
    policy = Script(at=11, pause=8)
    phases = [Phase("one", [[1, 2, 3]], 0.0), Phase("two", [[1, 2, 3], [4, 5]], 0.0), Phase("again", [[1, 2, 3]], 0.0)]
    sides = {"plain": (None, FixedLength(0)), "scripted": (OracleDrafter(texts), policy)}
    found = run_phases(llm, sides, {"load": phases}, num_tokens=60)
    plain, scripted = found["steps"]["load"]["plain"], found["steps"]["load"]["scripted"]
    assert [phase["phase"] for phase in scripted] == ["one", "two", "again"]
    assert all(set(phase["k"]) == {0.0} and phase["settled_k"] == 0 for phase in plain)
    assert plain[0]["gaps"] == 59
    assert plain[1]["gaps"] == 118
    assert scripted[0]["steps_to_settle"] == 0
    assert scripted[1]["k"][1:6] == [0.0] * 5
    assert scripted[1]["steps_to_settle"] >= 4, "k is back only after the pause"
    assert scripted[2]["steps_to_first_phases_k"] == 0
    assert "steps_to_first_phases_k" not in scripted[1]
    assert llm.engine.target.num_sequences == 0  # type: ignore[attr-defined]
    json.dumps(found, allow_nan=False)
    file = io.StringIO()
    print_phases({"phases": found}, file)
    assert "scripted   again" in file.getvalue()


def test_interrupted_phases_keep_what_they_have() -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        if done == 1:
            raise KeyboardInterrupt

    phases = {"load": [Phase("one", [[1, 2]], 0.0), Phase("two", [[1, 2]], 0.0)]}
    found = run_phases(LLM(target()), {"plain": (None, FixedLength(0))}, phases, 24, interrupt)
    assert found["interrupted"]
    assert len(found["steps"]["load"]["plain"]) == 1


# -- depths ---------------------------------------------------------------------------------------------------------


def test_patterns() -> None:
    periodic = pattern_ids("periodic", 1000, 5000)
    assert len(periodic) == 1000
    assert len(set(periodic)) == 2
    assert all(a != b for a, b in pairwise(periodic))
    random = pattern_ids("random", 1000, 50_000)
    assert len({tuple(pair) for pair in pairwise(random)}) == 999, "no pair comes twice: nothing can be looked up"
    for pattern in ("periodic", "random"):
        assert pattern_ids(pattern, 1001, 5000)[:999] == pattern_ids(pattern, 999, 5000), "more of it goes on"


def test_a_proposals_own_time_is_told_for_growing_text() -> None:
    texts: list[list[int]] = []

    class Noting(LookupDrafter):
        def propose(self, sequences: Any, plans: Any) -> Any:
            texts.append(list(sequences[0].tokens))
            return super().propose(sequences, plans)

    cost = drafter_cost(Noting(), [5, 6, 7], [8, 9], 100, 4)
    assert texts == [[5, 6, 7], [5, 6, 7, 8], [5, 6, 7, 8, 9]]
    assert set(cost) == {"first_ms", "each_ms"}
    assert cost["first_ms"] > 0
    assert cost["each_ms"] > 0


def test_behind_random_ids_nothing_is_proposed_however_the_text_grows() -> None:
    """Ids of the prompt behind the prompt would be a text that repeats itself."""
    proposed: dict[str, int] = {"random": 0, "periodic": 0}

    class Counting(LookupDrafter):
        def propose(self, sequences: Any, plans: Any) -> Any:
            drafts = super().propose(sequences, plans)
            proposed[pattern] += sum(len(draft.tokens) for draft in drafts)
            return drafts

    for pattern in proposed:
        text = pattern_ids(pattern, 700, 50_000)
        drafter_cost(Counting(), text[:500], text[500:], 50_000, 4)
    assert proposed == {"random": 0, "periodic": 4 * 201}


def test_depths_of_a_toy() -> None:
    llm = LLM(ToyModel.random(11, spread=3.0, context_length=100))
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    places = [(depth, pattern) for depth in (16, 64) for pattern in ("random", "periodic")]
    found = run_depths(llm, ["lookup"], places, 8, params, Measuring(quick_probe(), 1e9, most_turns=2))
    assert {depth: list(of_depth) for depth, of_depth in found["depths"].items()} == {
        "16": ["random", "periodic"], "64": ["random", "periodic"],
    }  # fmt: skip
    sides = found["depths"]["64"]["periodic"]["contenders"]
    assert list(sides) == ["plain", "adaptive cold", "adaptive warm", "lookup k=8"]
    assert sides["lookup k=8"]["tokens_per_pass"] > 1
    assert sides["plain"]["tokens_per_pass"] == 1
    json.dumps(found, allow_nan=False)
    file = io.StringIO()
    print_depths({"depth": found}, file)
    assert "lookup k=8" in file.getvalue()
    with pytest.raises(InputError, match="depth 90"):
        run_depths(llm, ["lookup"], [(90, "random")], 8, params, Measuring(quick_probe(), 0.0))


# -- acceptance -----------------------------------------------------------------------------------------------------


def test_acceptance_by_workload_and_temperature() -> None:
    llm = LLM(target())
    found = run_acceptance(llm, ModelDrafter(draft()), PROMPTS, 3, 24, (0.0, 1.0))
    assert {name: list(rows) for name, rows in found["workloads"].items()} == {
        "chat": ["0", "1"], "edit": ["0", "1"],
    }  # fmt: skip
    row = found["workloads"]["chat"]["1"]
    assert row["rule"] == "sampled"
    assert found["workloads"]["chat"]["0"]["rule"] == "greedy"
    assert row["interval"] == []  # two prompts tell nothing of how prompts differ
    assert 0 < row["acceptance_by_depth"][0] <= 1
    assert llm.engine.target.num_sequences == 0  # type: ignore[attr-defined]
    three = {name: [*of_workload, [2, 4]] for name, of_workload in PROMPTS.items()}
    perfect = run_acceptance(llm, ModelDrafter(target()), three, 3, 24, (0.0, 1.0))
    for rows in perfect["workloads"].values():
        for row in rows.values():
            assert row["acceptance_by_depth"] == [1.0, 1.0, 1.0], "a model that drafts for itself is always right"
            assert row["interval"] == [1.0, 1.0]
    file = io.StringIO()
    print_acceptance({"acceptance": perfect}, file)
    text = file.getvalue()
    assert "100 % (100-100)" in text
    assert "above" in text
    assert "70 to 85 % is usually quoted" in text


def block(num_rounds: int, accepted: int) -> Block:
    """Rounds of four draft tokens, of which so many are accepted."""
    return Block(1, 8, 0.0, 0.0, 1.0, Counter({("model", 4, accepted, 4): num_rounds}), Counter(), {})


def test_the_interval_of_acceptance_is_of_what_is_accepted_of_all_that_is_proposed() -> None:
    """A prompt that is badly drafted for has more rounds. Half of the prompts at 1.0 in 10 rounds, half at .25 in 40:
    .4 over all, not .625."""
    low, high = _interval([block(10, 4), block(40, 1)] * 10)
    assert 0.25 < low < 0.4 < high < 0.6
    assert _interval([block(10, 2)] * 3) == [0.5, 0.5]
    undrafted = Block(1, 8, 0.0, 0.0, 1.0, Counter({("", 0, 0, 0): 8}), Counter(), {})
    assert _interval([block(10, 2), block(10, 2), undrafted]) == []


@pytest.mark.parametrize(
    ("rate", "told"),
    [(None, "-"), (0.69, "below"), (0.7, "within"), (0.85, "within"), (0.86, "above")],
)
def test_a_rate_lies_beside_what_is_quoted(rate: float | None, told: str) -> None:
    assert beside_quoted(rate, (0.7, 0.85)) == told


def test_a_seed_couples() -> None:
    found = run_acceptance(LLM(target()), ModelDrafter(draft()), PROMPTS, 2, 24, (1.0,), seed=3)
    assert found["workloads"]["edit"]["1"]["rule"] == "coupled by a seed"


# -- prompts of a wanted length -------------------------------------------------------------------------------------


class WordTokenizer:
    """A token for each word, and two for the frame of a chat."""

    vocabulary_size = 100_000
    eos_ids = (1,)

    def encode(self, text: str) -> list[int]:
        return [2 + sum(word.encode()) % 90_000 for word in text.split()]

    def encode_chat(self, messages: Any) -> list[int]:
        return [7, *self.encode(messages[0]["content"]), 8]


def llm_of_words() -> LLM:
    return LLM(ToyModel.by_position(np.zeros((1, 100_000))), WordTokenizer())  # type: ignore[arg-type]


@pytest.mark.parametrize("workload", ["humaneval", "chat", "edit", "json", "summarise", "creative", "random"])
@pytest.mark.parametrize("length", [512, 1500])
def test_prompts_get_as_much_context_as_was_asked_for(workload: str, length: int) -> None:
    llm = llm_of_words()
    tasks = load_workload(workload)[:3]
    made = [prompt_ids(llm, workload, task, length, turn) for turn, task in enumerate(tasks)]
    for task, ids in zip(tasks, made, strict=True):
        alone = task.encode(llm)
        assert length - 8 <= len(ids) <= max(length, len(alone))
        if workload != "random":
            assert ids[-len(alone) + 1 :] == alone[1:], "the task comes last, whole"
    starts = [tuple(ids[20:60]) for ids in made]
    assert len(set(starts)) == 3, "no two prompts begin alike, so that none gets its cache from another"
    assert made[0] == prompt_ids(llm, workload, tasks[0], length, 0)


def test_a_task_is_never_its_own_context() -> None:
    for workload in ("edit", "summarise"):
        for task in load_workload(workload):
            content = task.prompt[0]["content"]  # type: ignore[index, call-overload]
            filler = filler_of(workload, task, 5)
            assert not any(line in filler for line in content.splitlines() if len(line) > 200)
            assert len(filler.split()) > 1500


def test_a_long_task_stays_whole_and_too_long_a_context_is_refused() -> None:
    llm = llm_of_words()
    task = Task("long", "word " * 400)
    assert len(prompt_ids(llm, "chat", task, 100)) == 400
    with pytest.raises(InputError, match="a prompt of 90000 tokens cannot be made for chat"):
        prompt_ids(llm, "chat", task, 90_000)


def test_random_ids_are_the_same_for_the_same_vocabulary_and_avoid_its_ends() -> None:
    ids = RandomIds(3, 2000).ids(50_000)
    assert ids == RandomIds(3, 2000).ids(50_000)
    assert ids != RandomIds(4, 2000).ids(50_000)
    assert min(ids) >= 1000
    assert max(ids) < 49_000
    assert all(0 <= token < 11 for token in RandomIds(3, 50).ids(11))
