"""Level 1, the rules alone: their numbers, their optimality, and that the two founding papers state one rule.

Here a rule is enumerated for one round against tables of p and q; `tests/verification/test_level1_engine.py` runs the
same rules through the engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.verification.laws import TOLERANCE, normalised, pairs, rows, violations

from forerun.errors import ContractError
from forerun.randomness import GreedyNoise, Purpose
from forerun.sampling import Distribution
from forerun.types import Draft, Verdict
from forerun.verification import CHAIN_RULES, DEFAULT_RULES, Rule, block, chain, follow, verify
from forerun.verification.enumerate import Chooser, EnumeratingNoise, outcomes

Row = list[float]
Table = Callable[[tuple[int, ...]], Row]
"""The row after a prefix of draft tokens."""


def last_token(weights: Any) -> Table:
    """A table whose row depends on the last token; the first row is that of token 0."""
    return lambda prefix: normalised(weights[prefix[-1] if prefix else 0])


def one_round(rule: Rule, p: Table, q: Table, k: int) -> dict[tuple[tuple[int, ...], int], float]:
    """The law of (committed tokens, number accepted) when k tokens are drawn from q and judged by `rule`."""

    def run(chooser: Chooser) -> tuple[tuple[int, ...], int]:
        drafted: tuple[int, ...] = ()
        q_rows = []
        for _ in range(k):
            q_rows.append(q(drafted))
            drafted += (chooser.choose(q_rows[-1]),)
        p_rows = [Distribution.explicit(np.array(p(drafted[:i]))) for i in range(k + 1)]
        draft = Draft(drafted, "sampled", tuple(Distribution.explicit(np.array(row)) for row in q_rows))
        verdict = rule(p_rows, draft, EnumeratingNoise(chooser, 0, 1))
        return (*drafted[: verdict.num_accepted], verdict.next_token), verdict.num_accepted

    return outcomes(run)


def completed(law: dict[tuple[tuple[int, ...], int], float], p: Table, k: int) -> dict[tuple[int, ...], float]:
    """The law of the first k + 1 tokens when plain sampling from p goes on after the round."""
    total: dict[tuple[int, ...], float] = {}
    open_ends = [(tokens, probability) for (tokens, _), probability in law.items()]
    while open_ends:
        tokens, probability = open_ends.pop()
        if len(tokens) == k + 1:
            total[tokens] = total.get(tokens, 0.0) + probability
        else:
            open_ends += [((*tokens, t), probability * mass) for t, mass in enumerate(p(tokens)) if mass > 0]
    return total


def plain(p: Table, k: int) -> dict[tuple[int, ...], float]:
    return completed({((), 0): 1.0}, p, k)


def expected_accepted(law: dict[tuple[tuple[int, ...], int], float]) -> float:
    return math.fsum(num * probability for (_, num), probability in law.items())


RULES: dict[str, Rule] = {"chain": chain, "block": block}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("size,k,cases", [(2, 1, 20), (2, 3, 15), (3, 2, 15), (4, 1, 20), (4, 2, 6), (3, 3, 3)])
def test_one_round_continued_by_plain_sampling_is_plain_sampling(rule: str, size: int, k: int, cases: int) -> None:
    @settings(max_examples=cases)
    @given(pairs(size))
    def check(pair: tuple[Any, Any]) -> None:
        p, q = map(last_token, pair)
        assert not violations(completed(one_round(RULES[rule], p, q, k), p, k), plain(p, k))

    check()


def test_the_binary_example_with_its_known_numbers() -> None:
    """p = (1/3, 2/3), q = (2/3, 1/3) at both places, k = 2: 10/9 accepted drafts by the chain rule, 11/9 by block."""

    def p(prefix: tuple[int, ...]) -> Row:
        return [1 / 3, 2 / 3]

    def q(prefix: tuple[int, ...]) -> Row:
        return [2 / 3, 1 / 3]

    assert expected_accepted(one_round(chain, p, q, 2)) == pytest.approx(10 / 9, abs=1e-15)
    assert expected_accepted(one_round(block, p, q, 2)) == pytest.approx(11 / 9, abs=1e-15)


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=40)
@given(st.integers(2, 6).flatmap(lambda size: st.tuples(rows(size), rows(size))))
def test_one_token_is_accepted_with_probability_sum_of_minima(rule: str, pair: tuple[list[int], list[int]]) -> None:
    """1 - TV(p, q), the most that any rule can reach for one sampled draft token."""
    p, q = map(normalised, pair)
    law = one_round(RULES[rule], lambda prefix: p, lambda prefix: q, 1)
    assert expected_accepted(law) == pytest.approx(math.fsum(map(min, p, q)), abs=TOLERANCE)


@pytest.mark.parametrize("size,k,cases", [(2, 2, 30), (2, 3, 20), (3, 2, 20), (3, 3, 3)])
def test_block_accepts_at_least_as_many_as_chain(size: int, k: int, cases: int) -> None:
    """Not only on average: `at least n accepted` is at least as likely, for every n."""

    @settings(max_examples=cases)
    @given(pairs(size))
    def check(pair: tuple[Any, Any]) -> None:
        p, q = map(last_token, pair)
        laws = [one_round(rule, p, q, k) for rule in (block, chain)]
        for num in range(1, k + 1):
            by_block, by_chain = (math.fsum(m for (_, n), m in law.items() if n >= num) for law in laws)
            assert by_block >= by_chain - TOLERANCE

    check()


def test_block_gains_nothing_on_one_token_and_something_on_two() -> None:
    p, q = last_token([[3, 1], [1, 3]]), last_token([[1, 1], [1, 1]])
    for k, gains in ((1, False), (2, True)):
        by_block, by_chain = (expected_accepted(one_round(rule, p, q, k)) for rule in (block, chain))
        assert (by_block > by_chain + 1e-9) is gains


# -- fixed drafts ------------------------------------------------------------------------------------------------------


def fixed_round(rule: Rule, p: Table, drafted: Sequence[int], size: int, kind: Any) -> Any:
    """The law of (tokens, accepted) for a draft that is fixed; "sampled" gives it its one-hot rows of q."""
    one_hot = tuple(Distribution.explicit(np.eye(size)[token]) for token in drafted)
    draft = Draft(tuple(drafted), kind, one_hot if kind == "sampled" else None)
    p_rows = [Distribution.explicit(np.array(p(tuple(drafted[:i])))) for i in range(len(drafted) + 1)]

    def run(chooser: Chooser) -> Any:
        verdict = rule(p_rows, draft, EnumeratingNoise(chooser, 0, 1))
        return (*drafted[: verdict.num_accepted], verdict.next_token), verdict.num_accepted

    return outcomes(run)


@settings(max_examples=60)
@given(pairs(3), st.lists(st.integers(0, 2), max_size=3))
def test_follow_is_the_chain_rule_with_a_one_hot_q(pair: tuple[Any, Any], drafted: list[int]) -> None:
    p = last_token(pair[0])
    by_follow = fixed_round(follow, p, drafted, 3, "deterministic")
    assert not violations(by_follow, fixed_round(chain, p, drafted, 3, "sampled"))
    assert not violations(completed(by_follow, p, len(drafted)), plain(p, len(drafted)))


@settings(max_examples=60)
@given(pairs(3), st.lists(st.integers(0, 2), max_size=4))
def test_greedy_accepts_the_longest_prefix_of_argmaxes(pair: tuple[Any, Any], drafted: list[int]) -> None:
    p = last_token(pair[0])
    p_rows = [Distribution.explicit(np.array(p(tuple(drafted[:i])))) for i in range(len(drafted) + 1)]
    best = [int(np.argmax(row.probs)) for row in p_rows]
    num = next((i for i, token in enumerate(drafted) if token != best[i]), len(drafted))
    assert follow(p_rows, Draft(tuple(drafted)), GreedyNoise()) == Verdict(tuple(range(num)), best[num])


# -- Leviathan and Chen ------------------------------------------------------------------------------------------------


def leviathan_algorithm_1(p: list[Row], q: list[Row], x: Sequence[int]) -> tuple[list[float], list[Row]]:
    """In its own letters: p the target M_p, q the approximation M_q, gamma guesses x_1..x_gamma from q.

    n = min({i - 1 | r_i > p_i(x_i) / q_i(x_i)} u {gamma}); p' = p_{n+1} if n = gamma, else norm(max(0, p_{n+1} -
    q_{n+1})); return x_1..x_n and t ~ p'. Returned: P(r_i <= p_i / q_i) for every i, and p' for every n.
    """
    gamma = len(x)
    passes = [min(1.0, p[i][x[i]] / q[i][x[i]]) for i in range(gamma)]
    adjusted = []
    for n in range(gamma + 1):
        mass = p[n] if n == gamma else [max(0.0, a - b) for a, b in zip(p[n], q[n], strict=True)]
        adjusted.append(normalised(mass) if sum(mass) > 0 else [])  # [] where n cannot happen: p = q never rejects
    return passes, adjusted


def chen_algorithm_2(q: list[Row], p: list[Row], x_tilde: Sequence[int]) -> tuple[list[float], list[Row]]:
    """In its own letters: q the target, p the draft, x~_1..x~_K from p.

    for t = 1..K: r ~ U[0, 1]; if r < min(1, q(x~_t) / p(x~_t)) accept, else sample x ~ (q - p)_+ and leave the loop;
    if all were accepted, sample one more from q. (f)_+ = max(0, f) / sum max(0, f).
    """
    accept, then = [], []
    for t, token in enumerate(x_tilde):
        accept.append(min(1.0, q[t][token] / p[t][token]))
        positive = [q_x - p_x if q_x > p_x else 0.0 for q_x, p_x in zip(q[t], p[t], strict=True)]
        then.append([value / math.fsum(positive) for value in positive] if any(positive) else [])
    return accept, [*then, q[-1]]


class _Probe:
    """Noise that accepts exactly `num_accepted` times, noting every number it is shown."""

    kind = "sampled"

    def __init__(self, num_accepted: int) -> None:
        self.num_accepted, self.passes = num_accepted, list[float]()

    def accept(self, probability: float, node: int) -> bool:
        self.passes.append(probability)
        return node < self.num_accepted

    def draw(self, distribution: Distribution, node: int, purpose: Purpose) -> int:
        self.drawn_from: Row = distribution.probs.tolist()
        return int(np.argmax(distribution.probs))


@settings(max_examples=80)
@given(pairs(3), st.data())
def test_leviathan_and_chen_are_one_rule(pair: tuple[Any, Any], data: Any) -> None:
    """The same acceptance probabilities, the same residuals, the same law; and `chain` has those numbers."""
    target, draft = map(last_token, pair)
    k = data.draw(st.integers(1, 3))
    drafted: tuple[int, ...] = ()
    for _ in range(k):
        likely = [token for token, mass in enumerate(draft(drafted)) if mass > 0]
        drafted += (data.draw(st.sampled_from(likely)),)
    target_rows = [target(drafted[:i]) for i in range(k + 1)]
    draft_rows = [draft(drafted[:i]) for i in range(k)]

    by_leviathan = leviathan_algorithm_1(target_rows, draft_rows, drafted)
    by_chen = chen_algorithm_2(target_rows, draft_rows, drafted)
    assert by_leviathan[0] == by_chen[0]
    for ours, theirs in zip(by_leviathan[1], by_chen[1], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-15)

    ours_p = [Distribution.explicit(np.array(row)) for row in target_rows]
    ours_q = tuple(Distribution.explicit(np.array(row)) for row in draft_rows)
    for num in range(k + 1):
        probe = _Probe(num)
        verdict = chain(ours_p, Draft(drafted, "sampled", ours_q), probe)  # type: ignore[arg-type]
        assert verdict.num_accepted == num
        assert probe.passes == pytest.approx(by_chen[0][: num + 1], abs=1e-14)
        if by_chen[1][num]:
            assert probe.drawn_from == pytest.approx(by_chen[1][num], abs=1e-14)

    def paper(algorithm: Any) -> Any:
        """The paper's algorithm run as a rule: Leviathan draws all r_i first, Chen stops at the first rejection."""

        def run(chooser: Chooser) -> tuple[tuple[int, ...], int]:
            passes, finals = algorithm(target_rows, draft_rows, drafted)
            if algorithm is leviathan_algorithm_1:
                fails = [not chooser.happens(chance) for chance in passes]
                num = fails.index(True) if True in fails else k
            else:
                num = next((t for t, chance in enumerate(passes) if not chooser.happens(chance)), k)
            return (*drafted[:num], chooser.choose(finals[num])), num

        return outcomes(run)

    def ours(chooser: Chooser) -> tuple[tuple[int, ...], int]:
        verdict = chain(ours_p, Draft(drafted, "sampled", ours_q), EnumeratingNoise(chooser, 0, 1))
        return (*drafted[: verdict.num_accepted], verdict.next_token), verdict.num_accepted

    law = paper(chen_algorithm_2)
    assert not violations(paper(leviathan_algorithm_1), law, 1e-14)
    assert not violations(outcomes(ours), law, 1e-13)


# -- the front door ----------------------------------------------------------------------------------------------------


def test_verify_picks_the_rule_by_the_kind_of_the_draft() -> None:
    p = [Distribution.explicit(np.array([0.5, 0.5]))] * 3
    q = (Distribution.explicit(np.array([0.9, 0.1])),) * 2

    class Names(Exception):
        pass

    def named(name: str) -> Rule:
        def rule(target_rows: Any, draft: Draft, noise: Any) -> Verdict:
            raise Names(name)

        return rule

    chosen: Any = {"sampled": named("sampled"), "deterministic": named("deterministic")}
    for kind, q_rows in (("sampled", q), ("deterministic", None)):
        with pytest.raises(Names, match=kind):
            verify(p, Draft((0, 1), kind, q_rows), GreedyNoise(), chosen)  # type: ignore[arg-type]
    assert (DEFAULT_RULES["sampled"], DEFAULT_RULES["deterministic"]) == (block, follow)
    assert (CHAIN_RULES["sampled"], CHAIN_RULES["deterministic"]) == (chain, follow)


@pytest.mark.parametrize("num_rows", [0, 1, 2, 4])
def test_verify_refuses_the_wrong_number_of_rows(num_rows: int) -> None:
    p = [Distribution.explicit(np.array([0.5, 0.5]))] * num_rows
    with pytest.raises(ContractError, match="need 3 rows"):
        verify(p, Draft((0, 1)), GreedyNoise())


@pytest.mark.parametrize("rule", RULES)
def test_a_sampled_draft_needs_its_rows_of_q(rule: str) -> None:
    p = [Distribution.explicit(np.array([0.5, 0.5]))] * 2
    noise = EnumeratingNoise(Chooser(), 0, 1)
    with pytest.raises(ContractError, match="row"):
        verify(p, Draft((0,), "sampled"), noise)
    with pytest.raises(ContractError, match="row"):
        RULES[rule](p, Draft((0,), "sampled"), noise)
    impossible = Draft((0,), "sampled", (Distribution.explicit(np.array([0.0, 1.0])),))
    with pytest.raises(ContractError, match="probability 0 under its own q"):
        RULES[rule](p, impossible, noise)


@pytest.mark.parametrize("rule", RULES)
def test_where_the_residual_is_rounding_p_itself_is_drawn_from(rule: str) -> None:
    """Less than 1e-12 is left after subtracting: neither amplified rounding noise, nor q with a token p excludes."""
    p, q = np.array([0.3, 0.7, 0.0]), np.array([0.3 - 1e-15, 0.7 - 1e-15, 2e-15])
    draft = Draft((2,), "sampled", (Distribution.explicit(q),))
    probe = _Probe(0)
    RULES[rule]([Distribution.explicit(p)] * 2, draft, probe)  # type: ignore[arg-type]
    assert probe.passes == ([] if rule == "block" else [0.0])  # block ends where no text of the target leads on
    assert probe.drawn_from == pytest.approx([0.3, 0.7, 0.0], abs=0)
