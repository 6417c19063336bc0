"""What the ladder tries, as data, most of it taken from the tests that try the same with less.

A new sampling parameter gets an entry in PARAMS of test_level2_features.py (or in SETS here, if its law needs another
reference) for levels 1 and 2, scenarios in KILLS of test_level5_features.py for level 5, and a mode in MODES for levels
3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tests.verification.test_level2_features as features
import tests.verification.test_level2_law as basic
import tests.verification.test_level2_trees as trees
from tests.real.test_lossless import MODES as BASIC_MODES
from tests.verification.laws import Law, Text, cut_drafter, draft_with, model, windowed_drafter
from tests.verification.population import Population, sample
from tests.verification.reference import plain_law, table_rows
from tests.verification.test_level1_engine import FILTERS
from tests.verification.test_level1_features import EOS, SIZE, SOUND, expected_law, features_law

from forerun.drafting import Drafter, LookupDrafter, ModelDrafter, NoDrafter
from forerun.verification import RULES

Reference = Callable[[Any, Text, int, Mapping[str, Any]], Law]
"""(target's table, prompt, tokens, parameters) -> the law of plain decoding, worked out without the package."""


def ended_by_stop_ids(target: Any, prompt: Text, num_tokens: int, params: Mapping[str, Any]) -> Law:
    """A stop token ends a text as an end-of-text id does."""
    return plain_law(table_rows(target), prompt, num_tokens, params["stop_token_ids"])


@dataclass(frozen=True)
class ParameterSet:
    """Sampling parameters ("eos": True makes token 2 the end of text), the law they must have, and the vocabularies of
    level 1 that they fit."""

    params: Mapping[str, Any] = field(default_factory=dict)
    reference: Reference = expected_law
    sizes: tuple[int, ...] = (4, 3, 2)


FEATURES = {name: ParameterSet({**params, "eos": True}, sizes=(SIZE,)) for name, params in features.PARAMS.items()}
SETS = {
    "free": ParameterSet(),
    "greedy": ParameterSet({"temperature": 0}),
    **{name: ParameterSet(params) for name, params in FILTERS.items()},
    "stop_token_ids": ParameterSet({"stop_token_ids": (0,)}, ended_by_stop_ids),
    **FEATURES,
}
"""What level 1 crosses with every rule and drafter."""

MODES: dict[str, dict[str, Any]] = {
    **BASIC_MODES,
    "greedy-penalties": {
        "temperature": 0.0, "repetition_penalty": 1.2, "frequency_penalty": 0.3, "bad_words": ("return", "pass"),
    },
    "features": {
        "seed": 20261130, "temperature": 0.9, "min_p": 0.05, "repetition_penalty": 1.2, "presence_penalty": 0.5,
        "logit_bias": {198: -2.0, 262: 1.5}, "bad_words": ("return",), "min_tokens": 6, "stop": ("\n\n", "def "),
        "logprobs": 2, "n": 2,
    },
    "regex": {
        "seed": 20261201, "temperature": 1.2, "ignore_eos": False,
        "regex": r"( {4}[a-z_]+ = [a-z_0-9+*()]+\n){1,3} {4}return [a-z_]+\n",
    },
}  # fmt: skip
"""Requests on real weights by name: without a seed only at temperature 0. Level 4 takes those that name one."""


@dataclass(frozen=True)
class Case:
    """A pair, a speculation length and a request on toy models. `kind` is level 1's, `twin` level 2's randomness."""

    given: ParameterSet
    make_drafter: Callable[[], Drafter]
    rule: str
    target: Any
    k: int | tuple[int, ...]
    num_tokens: int
    prompt: Text
    kind: str = "sampled"
    twin: str = "independent"

    def expected(self) -> Law:
        """The law of plain decoding."""
        return self.given.reference(self.target, self.prompt, self.num_tokens, self.given.params)

    def exact_law(self) -> Law:
        """The enumerated law of the engine's texts."""
        return features_law(
            self.target, self.make_drafter, self.k, self.prompt, self.num_tokens, dict(self.given.params),
            SOUND[self.rule], self.kind,
        )  # fmt: skip

    def divided(self, population: Population) -> dict[Any, np.ndarray]:
        """{(text, rounds): members} of a population of seeds."""
        params = {name: value for name, value in self.given.params.items() if name != "eos"}
        return sample(
            population, lambda: model(self.target), self.make_drafter, self.k, self.prompt, self.twin,
            params={"max_tokens": self.num_tokens, **params}, rules=RULES[self.rule],
            eos_ids=[EOS] if "eos" in self.given.params else (),
        )  # fmt: skip


# -- level 1: rules x drafters x parameter sets ------------------------------------------------------------------------


SHAPES = ((4, 1, 3), (3, 2, 4), (2, 3, 5))
"""(vocabulary, k, tokens): k + 2 tokens leave room for a second round with a draft."""
TREE_SHAPES = ((4, (-1, -1), 3), (3, (-1, -1), 4), (2, (-1, -1, 1, 1), 4))
"""The same with the parents of a tree in the place of k."""


@dataclass(frozen=True)
class Way:
    """How level 1 drafts. A fixed draft is followed whatever the rule, so one rule does for it."""

    make: Callable[[Any], Drafter]
    rules: tuple[str, ...] = ("block",)
    kind: str = "sampled"
    prompt: Text = (1,)
    shapes: tuple[tuple[int, int | tuple[int, ...], int], ...] = SHAPES


def _narrow(table: Any) -> Drafter:
    """A draft model without the last token; the diagonal is raised, so that every row keeps some mass."""
    return draft_with(np.asarray(table)[:-1, :-1] + np.eye(len(table) - 1, dtype=int))()


BOTH = ("block", "chain")
WAYS: dict[str, Way] = {
    "model": Way(lambda table: draft_with(table)(), BOTH),
    "unsure model": Way(lambda table: draft_with(table, min_confidence=0.55)(), BOTH),
    "narrow model": Way(_narrow, BOTH),
    "cut model": Way(lambda table: cut_drafter(np.asarray(table) + np.eye(len(table), dtype=int), (1,)), BOTH),
    "windowed model": Way(lambda table: windowed_drafter(table, 2), BOTH),
    "late model": Way(lambda table: ModelDrafter(model(table)), BOTH),
    "trees of a model": Way(lambda table: draft_with(table)(), BOTH, shapes=TREE_SHAPES),
    "trees of best tokens": Way(lambda table: draft_with(table, candidates="top")(), shapes=TREE_SHAPES),
    "argmax": Way(lambda table: draft_with(table)(), kind="deterministic"),
    "lookup": Way(lambda table: LookupDrafter(2, 1), prompt=(1, 0, 1, 0, 1)),
    "none": Way(lambda table: NoDrafter()),
}
# -- level 2: the cases of test_level2_law.py, test_level2_trees.py and test_level2_features.py ------------------------

SAMPLED: dict[str, Case] = (
    {
        name: Case(
            ParameterSet(params), make, rule, basic.TARGET, basic.K, basic.NUM_TOKENS, tuple(basic.PROMPT), twin=twin
        )
        for name, (twin, make, rule, params) in basic.CASES.items()
    }
    | {
        f"{name} tree": Case(
            ParameterSet(params), make, rule, basic.TARGET, tree, basic.NUM_TOKENS, tuple(basic.PROMPT), twin=twin
        )
        for name, (twin, make, tree, rule, params) in trees.CASES.items()
    }
    | {
        f"{name}, {way}": Case(
            given, make, rule, features.TARGET, features.K, features.NUM_TOKENS, tuple(features.PROMPT), twin=twin
        )
        for name, given in FEATURES.items()
        for way, (twin, make, rule) in features.WAYS.items()
    }
)
OTHER_POPULATIONS = {"block": ("scattered", "choices"), "seeded-model": ("scattered", "choices")}
"""Cases that are also sampled with scattered seeds, and with the choices of one seed."""
