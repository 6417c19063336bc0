"""Level 1, the rules for trees alone: one round enumerated, its law, its numbers, and what it becomes on a chain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.verification.laws import pairs, rows, violations
from tests.verification.test_level1_rules import (
    Table,
    completed,
    expected_accepted,
    last_token,
    one_round,
    plain,
)

from forerun.errors import ContractError, NumericalError
from forerun.randomness import GreedyNoise, IndependentNoise, best_children
from forerun.sampling import Distribution
from forerun.topology import chain as chain_of
from forerun.topology import children, depths
from forerun.types import Draft, Verdict
from forerun.verification import RULES, Rule, block, chain, follow, recursive, traversal, verify
from forerun.verification.enumerate import Chooser, EnumeratingNoise, outcomes

TREE_RULES: dict[str, Rule] = {"recursive": recursive, "traversal": traversal}
TREES: dict[str, tuple[int, ...]] = {
    "two": (-1, -1),
    "three": (-1, -1, -1),
    "comb": (-1, -1, 0, 0),
    "second": (-1, -1, 1, 1),
    "full": (-1, -1, 0, 0, 1, 1),
    "in another order": (-1, 0, -1, 2, 0),
    "deep": (-1, -1, 0, 2, 2),
}
LARGE = {"deep", "full"}


def distribution(row: Any) -> Distribution:
    return Distribution.explicit(np.array(row))


def grown(parents: Sequence[int], q: Table, noise: Any, *, top: bool = False) -> Draft:
    """A tree of this topology drawn from q by the noise; nodes that q has no tokens for do not exist."""
    tokens: dict[int, tuple[int, Distribution, tuple[int, ...]]] = {}
    for node, nodes in zip(range(-1, len(parents)), children(parents), strict=True):
        if nodes and (node < 0 or node in tokens):
            prefix = () if node < 0 else tokens[node][2]
            row = distribution(q(prefix))
            drawn = best_children(row, nodes) if top else noise.draw_children(row, nodes, len(prefix))
            for child, (token, drawn_from) in zip(nodes, drawn, strict=False):
                tokens[child] = token, drawn_from, (*prefix, token)
    kept = sorted(tokens)
    places = {node: place for place, node in enumerate(kept)} | {-1: -1}
    return Draft(
        tuple(tokens[node][0] for node in kept),
        "deterministic" if top else noise.kind,
        None if top else tuple(tokens[node][1] for node in kept),
        tuple(places[parents[node]] for node in kept),
    )


def prefix_of(draft: Draft, node: int) -> tuple[int, ...]:
    parents = draft.parents or ()
    return () if node < 0 else (*prefix_of(draft, parents[node]), draft.tokens[node])


def one_tree(rule: Rule, p: Table, q: Table, parents: Sequence[int], *, top: bool = False) -> Any:
    """The law of (committed tokens, number accepted) of one round with a tree."""

    def run(chooser: Chooser) -> Any:
        noise = EnumeratingNoise(chooser, 0, 1)
        draft = grown(parents, q, noise, top=top)
        p_rows = [distribution(p(prefix_of(draft, node))) for node in range(-1, len(draft.tokens))]
        verdict = rule(p_rows, draft, noise)
        assert all((draft.parents or ())[b] == a for a, b in zip((-1, *verdict.path), verdict.path, strict=False))
        return (*(draft.tokens[node] for node in verdict.path), verdict.next_token), verdict.num_accepted

    return outcomes(run)


def depth_of(parents: Sequence[int]) -> int:
    return max(depths(parents))


@pytest.mark.parametrize("rule", TREE_RULES)
@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("size", [2, 3])
def test_one_round_continued_by_plain_sampling_is_plain_sampling(size: int, name: str, rule: str) -> None:
    """Rows with zeros, equal and disjoint ones included: there children run out."""
    parents = TREES[name]
    k = depth_of(parents)

    @settings(max_examples=3 if size == 3 and name in LARGE else 12)
    @given(pairs(size))
    def check(pair: tuple[Any, Any]) -> None:
        p, q = map(last_token, pair)
        assert not violations(completed(one_tree(TREE_RULES[rule], p, q, parents), p, k), plain(p, k))

    check()


@pytest.mark.parametrize("name", TREES)
@settings(max_examples=12)
@given(pairs(3))
def test_fixed_trees_are_followed_exactly(name: str, pair: tuple[Any, Any]) -> None:
    p, q = map(last_token, pair)
    k = depth_of(TREES[name])
    assert not violations(completed(one_tree(follow, p, q, TREES[name], top=True), p, k), plain(p, k))


@settings(max_examples=20)
@given(st.integers(2, 5).flatmap(lambda size: st.tuples(rows(size), rows(size))), st.integers(1, 4))
def test_a_fixed_set_of_children_is_met_with_its_probability(pair: tuple[Any, Any], width: int) -> None:
    p, q = (last_token([row] * len(row)) for row in pair)
    children = distribution(q(())).best(width)
    accepted = expected_accepted(one_tree(follow, p, q, (-1,) * width, top=True))
    assert accepted == pytest.approx(math.fsum(p(())[token] for token in children), abs=1e-12)


@pytest.mark.parametrize("rule", TREE_RULES)
@settings(max_examples=20)
@given(st.integers(2, 4).flatmap(lambda size: st.tuples(rows(size), rows(size))))
def test_children_that_cover_the_targets_tokens_are_never_all_rejected(rule: str, pair: tuple[Any, Any]) -> None:
    weights = np.array(pair[1]) + 1
    p, q = last_token([pair[0]] * len(weights)), last_token([weights] * len(weights))
    law = one_tree(TREE_RULES[rule], p, q, (-1,) * len(weights))
    assert expected_accepted(law) == pytest.approx(1.0, abs=1e-12)


# -- chains, and which rule accepts more -------------------------------------------------------------------------------


@pytest.mark.parametrize(("tree_rule", "chain_rule"), [(recursive, chain), (traversal, block)])
@pytest.mark.parametrize("size,k,cases", [(2, 1, 10), (2, 3, 10), (3, 2, 10), (4, 2, 3), (3, 3, 2)])
def test_on_a_chain_the_tree_rules_are_the_chain_rules(
    tree_rule: Rule, chain_rule: Rule, size: int, k: int, cases: int
) -> None:
    @settings(max_examples=cases)
    @given(pairs(size))
    def check(pair: tuple[Any, Any]) -> None:
        p, q = map(last_token, pair)
        # Where q has no mass to draw from is the same here and there, so only the rules differ.
        assert not violations(one_tree(tree_rule, p, q, chain_of(k)), one_round(chain_rule, p, q, k), 1e-15)

    check()


@pytest.mark.parametrize(("tree_rule", "chain_rule"), [(recursive, chain), (traversal, block)])
@settings(max_examples=60)
@given(pairs(4), st.integers(0, 2**40))
def test_on_a_chain_they_agree_number_by_number(
    tree_rule: Rule, chain_rule: Rule, pair: tuple[Any, Any], seed: int
) -> None:
    """The same uniforms decide the same things."""
    p, q = map(last_token, pair)
    noise = IndependentNoise(seed, 0, 1)
    draft = grown(chain_of(5), q, noise)
    p_rows = [distribution(p(draft.tokens[:i])) for i in range(6)]
    assert tree_rule(p_rows, draft, noise) == chain_rule(p_rows, Draft(draft.tokens, "sampled", draft.rows), noise)


def test_the_binary_example_with_its_known_numbers() -> None:
    """p = (1/3, 2/3), q = (2/3, 1/3), k = 2, as a tree: 10/9 and 11/9, as the chain rules have it."""
    p, q = last_token([[1, 2]] * 2), last_token([[2, 1]] * 2)
    assert expected_accepted(one_tree(recursive, p, q, (-1, 0))) == pytest.approx(10 / 9, abs=1e-15)
    assert expected_accepted(one_tree(traversal, p, q, (-1, 0))) == pytest.approx(11 / 9, abs=1e-15)


@pytest.mark.parametrize("name", ["comb", "full", "in another order"])
def test_traversal_accepts_at_least_as_many_as_recursive_rejection(name: str) -> None:
    gains = []

    dense = np.random.default_rng(1).integers(1, 9, (2, 3, 3))

    @settings(max_examples=10)
    @example((dense[0], dense[1]))
    @given(pairs(3))
    def check(pair: tuple[Any, Any]) -> None:
        p, q = map(last_token, pair)
        one, other = (expected_accepted(one_tree(rule, p, q, TREES[name])) for rule in (recursive, traversal))
        assert other >= one - 1e-12
        gains.append(other - one)

    check()
    assert max(gains) > 1e-3


@settings(max_examples=10)
@given(pairs(3))
def test_a_wider_tree_accepts_no_fewer(pair: tuple[Any, Any]) -> None:
    p, q = map(last_token, pair)
    for rule in TREE_RULES.values():
        accepted = [expected_accepted(one_tree(rule, p, q, (-1,) * width)) for width in (1, 2, 3)]
        assert accepted[0] <= accepted[1] + 1e-12 <= accepted[2] + 2e-12


def test_greedy_follows_whichever_child_is_the_argmax() -> None:
    p = last_token([[1, 5, 2], [3, 1, 1], [1, 1, 9]])
    draft = Draft((0, 1, 2, 0), parents=(-1, -1, 1, 1))
    p_rows = [distribution(p(prefix_of(draft, node))) for node in range(-1, 4)]
    assert follow(p_rows, draft, GreedyNoise()) == Verdict((1, 3), 1)


# -- rows that cannot be used ------------------------------------------------------------------------------------------


class _Unusable(Distribution):
    """A row that raises when it is looked at."""

    def __init__(self) -> None:
        self.size = 3

    @property
    def mass(self) -> Any:
        raise NumericalError("not a number")

    @property
    def probs(self) -> Any:
        raise NumericalError("not a number")


RULES_FOR_TREES: dict[str, Rule] = {**TREE_RULES, "follow": follow}


@pytest.mark.parametrize("bad", [(0,), (1,), (2,), (0, 1), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("rule", RULES_FOR_TREES)
@settings(max_examples=8)
@given(pairs(3))
def test_a_tree_ends_at_an_unusable_row(rule: str, bad: tuple[int, ...], pair: tuple[Any, Any]) -> None:
    """Rows after the tokens `bad` cannot be looked at. What comes up to there has the target's law, and the round
    chooses no token behind it: None stands where plain decoding would meet the row."""
    p, q = map(last_token, pair)
    parents = TREES["full"]

    def run(chooser: Chooser) -> Any:
        noise = EnumeratingNoise(chooser, 0, 1)
        draft = grown(parents, q, noise, top=rule == "follow")
        p_rows = []
        for node in range(-1, len(draft.tokens)):
            prefix = prefix_of(draft, node)
            p_rows.append(_Unusable() if prefix and prefix[-1] in bad else distribution(p(prefix)))
        verdict = RULES_FOR_TREES[rule](p_rows, draft, noise)
        return tuple(draft.tokens[node] for node in verdict.path), verdict.next_token

    law: dict[Any, float] = {}
    open_ends: list[Any] = [((*tokens, own), mass) for (tokens, own), mass in outcomes(run).items()]
    expected: dict[Any, float] = {}
    for ends, into in ((open_ends, law), ([((), 1.0)], expected)):
        while ends:
            tokens, mass = ends.pop()
            if tokens and tokens[-1] in bad:
                tokens = (*tokens, None)
            if len(tokens) >= 3 or (tokens and tokens[-1] is None):
                into[tokens[:3]] = into.get(tokens[:3], 0.0) + mass
            else:
                ends += [((*tokens, t), mass * share) for t, share in enumerate(p(tokens)) if share > 0]
    assert not violations(law, expected)


@pytest.mark.parametrize("rule", RULES_FOR_TREES)
def test_an_unusable_first_row_is_raised_on(rule: str) -> None:
    q = distribution([0.5, 0.5, 0.0])
    draft = Draft((0, 1), "sampled", (q, distribution([0.0, 1.0, 0.0])), (-1, -1))
    p_rows: list[Distribution] = [_Unusable()] * 3
    with pytest.raises(NumericalError):
        RULES_FOR_TREES[rule](p_rows, draft, EnumeratingNoise(Chooser(), 0, 1))


# -- the front door ----------------------------------------------------------------------------------------------------


def test_verify_picks_the_rule_for_trees() -> None:
    assert (RULES["block"]["tree"], RULES["chain"]["tree"]) == (traversal, recursive)
    p = [distribution([0.5, 0.5])] * 3
    q = (distribution([0.9, 0.1]), distribution([0.0, 1.0]))
    draft = Draft((0, 1), "sampled", q, (-1, -1))
    seen: list[str] = []

    def named(name: str) -> Rule:
        def rule(target_rows: Any, draft: Draft, noise: Any) -> Verdict:
            seen.append(name)
            return Verdict((), 0)

        return rule

    rules: Any = {name: named(name) for name in ("sampled", "deterministic", "tree")}
    noise = EnumeratingNoise(Chooser(), 0, 1)
    verify(p, draft, noise, rules)
    verify(p, Draft((0, 1), parents=(-1, -1)), noise, rules)
    verify(p, Draft((0, 1), "sampled", q), noise, rules)
    assert seen == ["tree", "deterministic", "sampled"]
    with pytest.raises(ContractError, match="none for drafts of the kind 'tree'"):
        verify(p, draft, noise, {"sampled": block, "deterministic": follow})


@pytest.mark.parametrize("parents", [(-1,), (-1, 1), (-1, -2), (0, -1)])
def test_verify_refuses_parents_that_are_none(parents: tuple[int, ...]) -> None:
    with pytest.raises(ContractError, match="parents"):
        verify([distribution([0.5, 0.5])] * 3, Draft((0, 1), parents=parents), GreedyNoise())


@pytest.mark.parametrize("rule", TREE_RULES)
def test_a_sampled_tree_needs_its_rows_of_q(rule: str) -> None:
    p = [distribution([0.5, 0.5])] * 3
    noise = EnumeratingNoise(Chooser(), 0, 1)
    with pytest.raises(ContractError, match="row"):
        TREE_RULES[rule](p, Draft((0, 1), "sampled", None, (-1, -1)), noise)
    impossible = (distribution([0.0, 1.0]),) * 2
    with pytest.raises(ContractError, match="probability 0 under its own q"):
        TREE_RULES[rule](p, Draft((0, 1), "sampled", impossible, (-1, -1)), noise)
