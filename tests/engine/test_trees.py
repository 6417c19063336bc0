"""Trees in the engine: greedy and seeded text as without, nothing lost by an interrupt, true figures."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest
from tests.verification.laws import FixedTopology, finish
from tests.verification.reference import AutomatonGrammar

from forerun.control import FixedTree
from forerun.drafting import LookupDrafter, ModelDrafter, NoDrafter
from forerun.engine import Engine, Scheduler
from forerun.errors import ContractError, ParameterError
from forerun.llm import LLM
from forerun.runtime.cut import CutHead
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams
from forerun.topology import by_widths
from forerun.types import Draft, Plan, Prospect, Round

pytestmark = pytest.mark.filterwarnings("ignore:drafting failed")
SIZE = 12
PROMPTS = [[1], [2, 3, 4, 5, 6, 7, 8], [3, 3, 1], [9, 8]]
TREES: dict[str, tuple[int, ...]] = {
    "wide": (-1,) * 4,
    "comb": (-1, -1, -1, 0, 0, 3),
    "full": by_widths((3, 2, 2)),
    "second": (-1, -1, 1, 1, 3, 3),
    "odd": (-1, 0, -1, 2, 0, 3, 3, 5),
}


def target(**settings: Any) -> ToyModel:
    return ToyModel.random(SIZE, order=2, seed=4, spread=2.0, **settings)


def draft(noise: float = 1.0) -> ToyModel:
    """The target's table, disturbed, so that some drafts are good."""
    table = np.random.default_rng(4).normal(0.0, 2.0, (SIZE,) * 3)
    return ToyModel.from_table(table + noise * np.random.default_rng(5).normal(0.0, 1.0, table.shape))


DRAFTERS: dict[str, Callable[[], Any]] = {
    "model": lambda: ModelDrafter(draft()),
    "top": lambda: ModelDrafter(draft(), candidates="top"),
    "unsure": lambda: ModelDrafter(draft(), min_confidence=0.5, start_after=0),
    "window": lambda: ModelDrafter(draft(), window=6),
    "cut": lambda: ModelDrafter(CutHead(draft(), range(2, SIZE))),
    "lookup": lambda: LookupDrafter(2, 1),
}


def faulty(tokens: list[int], logits: Any) -> Any:
    """A processor of the user's that fails behind one token."""
    if tokens[-1] == 10 and len(tokens) > 9:
        raise ValueError("no tens")
    return logits


STATES = [{i: (i + 1) % 4 for i in range(SIZE) if i % 4 != state} for state in range(4)]
PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"seed": 7},
    "seeded, hot": {"seed": 8, "temperature": 2.0, "top_p": 0.95},
    "seeded, filtered": {"seed": 3, "top_k": 2},
    "penalties": {"seed": 5, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    "greedy, penalties": {
        "temperature": 0,
        "presence_penalty": 0.7,
        "logit_bias": {3: 1.0},
        "bad_words": ((1, 2), (5,)),
    },
    "logprobs": {"seed": 9, "logprobs": 3},
    "greedy, logprobs": {"temperature": 0, "logprobs": 2, "logprobs_kind": "processed"},
    "grammar": {"seed": 2, "constraint": AutomatonGrammar(STATES, SIZE)},
    "greedy, grammar": {"temperature": 0, "constraint": AutomatonGrammar(STATES, SIZE)},
    "faulty": {"seed": 4, "logits_processors": (faulty,)},
    "greedy, faulty": {"temperature": 0, "logits_processors": (faulty,)},
    "stop": {"seed": 6, "stop_token_ids": (0, 4)},
    "early end": {"temperature": 0, "stop_token_ids": (1, 2, 3), "min_tokens": 9},
}


def written(engine: Engine, requests: Any) -> Any:
    """Each request's (text, why it ended, log probabilities)."""
    made = [engine.add(prompt, SamplingParams(**{"max_tokens": 21, **params})) for prompt, params in requests]
    logprobs: dict[int, list[Any]] = {sequence.sequence_id: [] for sequence in made}
    for _ in range(1000):
        if engine.is_idle:
            break
        for delta in engine.step():
            assert len(delta.tokens) == len(delta.origins)
            logprobs[delta.sequence_id] += delta.logprobs or ()
    assert engine.is_idle
    return [(tuple(one.tokens), one.finish_reason, tuple(logprobs[one.sequence_id])) for one in made]


REQUESTS = [(prompt, params) for prompt in PROMPTS for params in PARAMS.values()]
PLAIN = {i: written(Engine(target(), NoDrafter()), [request])[0] for i, request in enumerate(REQUESTS)}


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("tree", TREES)
def test_greedy_and_seeded_text_is_the_plain_one(tree: str, drafter: str) -> None:
    """All in one batch, prompts read in pieces, fewer places than requests."""
    scheduler = Scheduler(max_sequences=9, max_tokens=12)
    engine = Engine(target(), DRAFTERS[drafter](), FixedTopology(TREES[tree]), scheduler=scheduler)
    assert written(engine, REQUESTS) == list(PLAIN.values())
    assert engine.target.num_sequences == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("context", [*range(3, 12)])
def test_text_up_to_the_end_of_the_context(context: int, tree: str) -> None:
    """Nodes that would not fit are left out by their depth; more nodes than places are none too many."""
    for prompt, params in [(PROMPTS[0], {"temperature": 0}), (PROMPTS[3], {"seed": 1}), (PROMPTS[3], {})]:
        if len(prompt) < context:
            plain = written(Engine(target(context_length=context)), [(prompt, {**params, "max_tokens": 99})])
            policy = FixedTopology(TREES[tree])
            engine = Engine(target(context_length=context), ModelDrafter(draft()), policy)
            found = written(engine, [(prompt, {**params, "max_tokens": 99})])
            assert [len(text) for text, _, _ in found] == [context]
            assert not params or found == plain


@pytest.mark.parametrize("limit", range(1, 9))
@pytest.mark.parametrize("tree", TREES)
def test_budgets_cut_a_path_where_plain_decoding_ends(tree: str, limit: int) -> None:
    for params in ({"temperature": 0}, {"seed": 3}):
        requests = [(prompt, {**params, "max_tokens": limit}) for prompt in PROMPTS]
        engine = Engine(target(), ModelDrafter(draft()), FixedTopology(TREES[tree]))
        assert written(engine, requests) == written(Engine(target()), requests)


@pytest.mark.parametrize("params", [{"seed": 5}, {"temperature": 0}], ids=str)
def test_choices_share_a_prompt_and_differ(params: Any) -> None:
    llm = LLM(target(), None, ModelDrafter(draft()), FixedTopology(TREES["full"]))
    plain = LLM(target()).generate(PROMPTS[1], n=4, max_tokens=15, **params)
    found = llm.generate(PROMPTS[1], n=4, max_tokens=15, **params)
    assert [one.tokens for one in found.choices] == [one.tokens for one in plain.choices]


def test_trees_are_worth_something() -> None:
    """Of nine tokens in a tree more are accepted than of a chain of three."""
    passes = []
    for parents in ((-1, 0, 1), by_widths((3, 2, 1))):
        engine = Engine(target(), ModelDrafter(draft()), FixedTopology(parents))
        made = [engine.add(prompt, SamplingParams(max_tokens=200)) for prompt in PROMPTS]
        finish(engine)
        passes.append(sum(sequence.statistics.num_rounds for sequence in made))
    assert passes[1] < 0.93 * passes[0]


# -- interrupts --------------------------------------------------------------------------------------------------------


def interrupted(call: Callable[..., Any], counter: Any, at: int, after: bool) -> Callable[..., Any]:
    """`call`, of which the whole run's call number `at` raises: after it was done, or instead."""

    def failing(*arguments: Any, **settings: Any) -> Any:
        is_now = next(counter) == at
        if is_now and not after:
            raise KeyboardInterrupt
        result = call(*arguments, **settings)
        if is_now:
            raise KeyboardInterrupt
        return result

    return failing


PARTS = [
    ("target", "forward"), ("target", "keep"), ("draft", "forward"), ("draft", "keep"), ("drafter", "propose"),
    ("drafter", "observe"), ("policy", "update"), ("policy", "plan"), ("engine", "_verify"), ("engine", "_keep_paths"),
    ("engine", "_commit"), ("engine", "_charge"), ("caches", "note_fed"), ("caches", "tree"),
    ("caches", "bring_back"),
]  # fmt: skip


@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 3}], ids=str)
def test_an_interrupt_between_any_two_calls_costs_nothing(params: Any, after: bool) -> None:
    expected = [written(Engine(target()), [(prompt, {**params, "max_tokens": 9})])[0][0] for prompt in PROMPTS[:2]]
    num_calls, at = 1, 0
    while at < num_calls:
        drafter = ModelDrafter(draft())
        policy = FixedTopology(TREES["full"])
        engine = Engine(target(), drafter, policy, scheduler=Scheduler(max_tokens=4))
        counter = count()
        owners = {
            "target": engine.target, "draft": drafter.model, "drafter": drafter, "policy": policy, "engine": engine,
            "caches": drafter._caches,
        }  # fmt: skip
        for owner, name in PARTS:
            setattr(owners[owner], name, interrupted(getattr(owners[owner], name), counter, at, after))
        made = [engine.add(prompt, SamplingParams(**{"max_tokens": 9, **params})) for prompt in PROMPTS[:2]]
        delivered: dict[int, list[int]] = {one.sequence_id: list(one.tokens) for one in made}
        for _ in range(100):
            if engine.is_idle:
                break
            try:
                deltas = engine.step()
            except KeyboardInterrupt:
                continue
            for delta in deltas:
                delivered[delta.sequence_id] += delta.tokens
        assert [tuple(one.tokens) for one in made] == expected, at
        assert [tuple(tokens) for tokens in delivered.values()] == expected, at
        assert (engine.target.num_sequences, drafter.model.num_sequences) == (0, 0)  # type: ignore[attr-defined]
        num_calls, at = next(counter), at + 1
    assert num_calls > 60


# -- what is reported --------------------------------------------------------------------------------------------------


class Scripted:
    """Proposes one tree."""

    needs: tuple[str, ...] = ()

    def __init__(self, made: Draft) -> None:
        self.made = made

    def prospects(self, sequences: Any, longest: Any) -> Any:
        return [[Prospect("scripted", most, most, trees=True)] for most in longest]

    def propose(self, sequences: Any, plans: Any) -> list[Draft]:
        return [self.made for _ in sequences]

    def observe(self, *_: Any) -> None:
        pass

    def release(self, sequence_id: int) -> None:
        pass


def one_round(made: Draft, parents: tuple[int, ...], **params: Any) -> tuple[Round, Any, Any]:
    """(the round that a tree had after the prompt [1], what was delivered, the sequence). The target counts: 2, 3..."""
    counts = ToyModel(lambda tokens: np.eye(20)[(tokens[-1] + 1) % 20] * 50.0, 20)
    policy = FixedTopology(parents)
    engine = Engine(counts, Scripted(made), policy, eos_ids=[9])
    sequence = engine.add([1], SamplingParams(**{"temperature": 0, "max_tokens": 15, **params}))
    deltas = engine.step()
    return policy.rounds[0], deltas[0], sequence


def test_a_round_tells_ranks_widths_and_confidences() -> None:
    made = Draft(
        (7, 2, 3, 8, 3, 5, 4), parents=(-1, -1, 1, 1, 0, 2, 2), confidences=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
    )
    done, delta, sequence = one_round(made, made.parents or ())
    assert (delta.tokens, delta.origins) == ((2, 3, 4, 5), ("drafted", "drafted", "drafted", "bonus"))
    assert (done.num_proposed, done.num_accepted, done.num_emitted) == (7, 3, 4)
    assert (done.ranks, done.widths, done.confidences) == ((1, 0, 1), (2, 2, 2), (0.2, 0.3, 0.7))
    assert sequence.statistics.acceptance_by_depth == [1.0, 1.0, 1.0]
    assert sequence.statistics.acceptance_rate == 3 / 7


def test_a_path_that_ends_before_a_leaf_ends_with_a_recovered_token() -> None:
    made = Draft((2, 8, 9, 4), parents=(-1, -1, 0, 0), confidences=(0.1, 0.2, 0.3, 0.4))
    done, delta, sequence = one_round(made, made.parents or ())
    assert (delta.tokens, delta.origins) == ((2, 3), ("drafted", "recovered"))
    assert (done.ranks, done.widths, done.confidences) == ((0,), (2, 2), (0.1, 0.3))
    assert sequence.statistics.acceptance_by_depth == [1.0, 0.0]
    done, delta, sequence = one_round(Draft((7, 8), parents=(-1, -1)), (-1, -1))
    assert (delta.tokens, delta.origins, done.ranks, done.widths) == ((2,), ("recovered",), (), (2,))
    assert sequence.statistics.acceptance_by_depth == [0.0]


@pytest.mark.parametrize(("limit", "stops", "kept"), [(15, (3,), 2), (15, (2,), 1), (2, (), 2), (15, (4,), 3)])
def test_nodes_behind_an_end_were_never_in_question(limit: int, stops: tuple[int, ...], kept: int) -> None:
    made = Draft((7, 2, 3, 8, 3, 4, 5), parents=(-1, -1, 1, 1, 0, 2, 2))
    if limit == 2:
        made = Draft((7, 2), parents=(-1, -1))  # deeper nodes would not be planned
    done, _, sequence = one_round(made, made.parents or (), max_tokens=limit, stop_token_ids=stops)
    assert sequence.tokens == [1, *range(2, 2 + kept)]
    assert sequence.finish_reason == ("stop" if stops else "length")
    if stops:
        assert (done.num_proposed, done.num_accepted, done.num_emitted) == ((2, 5, 7)[kept - 1], kept, kept)
        assert (len(done.ranks), len(done.widths)) == (kept, kept)
        assert sequence.statistics.acceptance_by_depth == [1.0] * kept


@pytest.mark.parametrize("parents", [(-1, 1), (-1, -1, -1, -1), (-1, 0, 1), (-1, 0, -2)])
def test_trees_that_no_plan_allows_are_refused(parents: tuple[int, ...]) -> None:
    with pytest.raises(ContractError):
        one_round(Draft((2,) * len(parents), parents=parents), (-1, -1, 0))
    with pytest.raises(ContractError):
        one_round(Draft((2, 3), parents=(-1, -1)), (-1, 0))  # a chain was planned


def test_a_plan_whose_tree_is_none_is_refused() -> None:
    for parents in ((-1, 2, 0), (0,), (-2,)):
        with pytest.raises(ContractError, match="policy"):
            one_round(Draft(), parents)
    engine = Engine(target(), ModelDrafter(draft()), FixedTopology((-1, -1)))
    engine.policy.plan = lambda sequences, prospects, load: [Plan(3, tree=(-1, -1))]  # type: ignore[method-assign]
    engine.add([1], SamplingParams(max_tokens=5))
    with pytest.raises(ContractError, match="policy"):
        finish(engine)


# -- the policy --------------------------------------------------------------------------------------------------------


def test_a_fixed_tree_has_so_many_children_at_each_depth() -> None:
    assert FixedTree((3, 2)).parents == (-1, -1, -1, 0, 0, 1, 1, 2, 2)
    assert FixedTree((1, 1)).parents == (-1, 0)
    assert FixedTree(()).parents == ()
    assert repr(FixedTree([2, 2])) == "FixedTree((2, 2))"
    for widths in ((0,), (2, -1), (1.5,), (True,), (300,), (16, 16, 2)):
        with pytest.raises(ParameterError, match="widths"):
            FixedTree(widths)
    llm = LLM(target(), None, ModelDrafter(draft()), FixedTree((2, 2)))
    result = llm.generate([1, 2], temperature=0, max_tokens=12)
    assert result.tokens == LLM(target()).generate([1, 2], temperature=0, max_tokens=12).tokens
    assert max(proposed for proposed, _ in result.speculation.rounds) == 6
