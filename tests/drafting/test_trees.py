"""Trees from a draft model: what it is fed, what each node is drawn from, and what is kept of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.verification.laws import FixedTopology, finish, reference_probs

from forerun.drafting import ModelDrafter
from forerun.engine import Engine
from forerun.errors import ParameterError
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams
from forerun.topology import by_widths, children, comb, depths, first_path, is_sound, restricted, up_to
from forerun.types import Capabilities, Draft, Span

SIZE = 6
TREES = {
    "comb": (-1, -1, 0, 0, 2),
    "full": by_widths((2, 2, 2)),
    "second": (-1, -1, 1, 1, 3),
    "odd": (-1, 0, -1, 2, 0, 3),
}


class Watched(ToyModel):
    """Notes every span it is fed."""

    spans: list[Span]

    def forward(self, spans: Any) -> Any:
        self.__dict__.setdefault("spans", []).extend(spans)
        return super().forward(spans)


class Checked(ModelDrafter):
    """Compares what each node was drawn from with the draft model's own row after its path, processed by the reference,
    without the siblings before it."""

    num_checked = 0

    def propose(self, sequences: Any, plans: Any) -> Any:
        drafts = super().propose(sequences, plans)
        for sequence, draft in zip(sequences, drafts, strict=True):
            for nodes, prefix in _families(draft):
                params = sequence.params
                logits = self.model.logits([*sequence.tokens, *prefix])  # type: ignore[attr-defined]
                expected = np.array(
                    reference_probs(logits.tolist(), params.temperature, params.top_k, params.top_p, params.min_p)
                )
                for node in nodes:
                    q = (draft.rows or ())[node]
                    np.testing.assert_allclose(q.probs, expected / expected.sum(), rtol=1e-9, atol=1e-15)
                    expected[draft.tokens[node]] = 0.0
                    self.num_checked += 1
        return drafts


def _families(draft: Draft) -> list[tuple[list[int], tuple[int, ...]]]:
    """(children of a node, the draft tokens that lead to them)."""
    parents = range(-1, len(draft.tokens) - 1) if draft.parents is None else draft.parents
    prefixes: list[tuple[int, ...]] = [()]
    for token, parent in zip(draft.tokens, parents, strict=True):
        prefixes.append((*prefixes[parent + 1], token))
    return list(zip(children(list(parents)), prefixes, strict=True))


def run(drafter: Any, tree: tuple[int, ...], *, num: int = 3, gate: Any = None, **params: Any) -> FixedTopology:
    policy = FixedTopology(tree, gate)
    engine = Engine(ToyModel.random(SIZE, order=2, seed=2), drafter, policy)
    for i in range(num):
        engine.add([i, 5 - i], SamplingParams(**{"max_tokens": 40, **params}))
    finish(engine)
    assert drafter.model.num_sequences == 0
    return policy


@pytest.mark.parametrize("params", [{}, {"temperature": 0.7, "top_p": 0.9}, {"top_k": 2}, {"min_p": 0.2}], ids=str)
@pytest.mark.parametrize("tree", TREES)
def test_nodes_are_drawn_from_the_draft_models_own_rows(tree: str, params: dict[str, Any]) -> None:
    """A cache that kept a node of another path would only draft worse: no law can show it."""
    drafter = Checked(ToyModel.random(SIZE, order=3, seed=1))
    policy = run(drafter, TREES[tree], **params)
    assert drafter.num_checked > 200
    assert {rank for done in policy.rounds for rank in done.ranks} >= {0, 1}


@pytest.mark.parametrize("tree", TREES)
def test_a_level_is_one_pass_and_combs_need_no_trees(tree: str) -> None:
    model = Watched.random(SIZE, order=3, seed=1)
    policy = run(ModelDrafter(model), TREES[tree], num=1, temperature=0)
    drafting = [done for done in policy.rounds if done.num_proposed == len(TREES[tree])]
    assert len(drafting) >= 5
    assert model.num_forwards <= max(depths(TREES[tree])) * (len(policy.rounds) - 1)
    has_trees = any(span.parents is not None for span in model.spans)
    assert has_trees is (tree not in ("comb", "second"))  # of the second, too, one path has all the children


def test_the_accepted_path_is_not_read_again() -> None:
    """A draft model that agrees with the target: everything but its last nodes is cached when the next round begins."""
    table = np.random.default_rng(3).normal(0.0, 2.0, (SIZE, SIZE, SIZE))
    model = Watched.from_table(table)
    policy = FixedTopology(TREES["full"])
    engine = Engine(ToyModel.from_table(table), ModelDrafter(model), policy)
    engine.add([1, 2], SamplingParams(temperature=0, max_tokens=30))
    finish(engine)
    assert all(done.num_accepted == 3 for done in policy.rounds[1:-1])
    lengths = [len(span.tokens) for span in model.spans]
    assert lengths[:3] == [3, 2, 6]  # the prompt and its first token; then a level, and two
    assert set(zip(lengths[3::3], lengths[4::3], lengths[5::3], strict=False)) == {(2, 2, 6)}


def test_a_model_without_trees_gets_chains() -> None:
    model = Watched.random(SIZE, order=3, seed=1)
    model.capabilities = Capabilities(None, SIZE)
    policy = run(ModelDrafter(model), TREES["full"])
    assert all(span.parents is None for span in model.spans)
    assert max(done.num_proposed for done in policy.rounds) == 6  # two, and two behind the first, and two behind that
    assert {rank for done in policy.rounds for rank in done.ranks} == {0, 1}


def test_gates_see_the_path_of_first_children() -> None:
    seen: list[tuple[float, ...]] = []

    def gate(confidences: Any) -> bool:
        seen.append(tuple(confidences))
        return len(confidences) < 2

    policy = run(ModelDrafter(ToyModel.random(SIZE, order=3, seed=1)), TREES["full"], gate=gate)
    assert {len(one) for one in seen} == {1, 2}
    assert max(done.num_proposed for done in policy.rounds) == 2 + 4
    drafted = [done for done in policy.rounds if done.num_proposed]
    assert all(len(done.confidences) == len(done.widths) for done in drafted)
    assert all(0.0 < confidence <= 1.0 for done in drafted for confidence in done.confidences)


def test_children_that_q_has_no_tokens_for_do_not_exist() -> None:
    policy = run(ModelDrafter(ToyModel.random(SIZE, order=3, seed=1)), (-1, -1, -1, 2, 1), top_k=2)
    assert max(done.num_proposed for done in policy.rounds) == 3  # two, and what follows the second
    policy = run(ModelDrafter(ToyModel.random(SIZE, order=3, seed=1), candidates="top"), (-1, -1, -1, 2, 1), top_k=2)
    assert max(done.num_proposed for done in policy.rounds) == 5  # filters have no say in which are best


def test_candidates_are_sampled_or_the_best() -> None:
    model = ToyModel.random(SIZE, order=3, seed=1)
    seen: list[Draft] = []

    class Noting(ModelDrafter):
        def propose(self, sequences: Any, plans: Any) -> Any:
            drafts = super().propose(sequences, plans)
            seen.extend(drafts)
            for sequence, draft in zip(sequences, drafts, strict=True):
                best = np.argsort(-self.model.logits(sequence.tokens))[:3].tolist()  # type: ignore[attr-defined]
                assert self.candidates == "sampled" or list(draft.tokens[:3]) == best[: len(draft.tokens[:3])]
            return drafts

    run(Noting(model), (-1, -1, -1))
    assert {draft.kind for draft in seen} == {"sampled"}
    seen.clear()
    run(Noting(model, candidates="top"), (-1, -1, -1))
    assert {(draft.kind, draft.rows) for draft in seen} == {("deterministic", None)}
    with pytest.raises(ParameterError, match="candidates"):
        ModelDrafter(model, candidates="best")  # type: ignore[arg-type]


def test_topologies() -> None:
    tree = (-1, -1, 0, 0, 1, 2, 4, 5)
    assert is_sound(tree, 8)
    assert not is_sound(tree, 7)
    assert depths(tree) == [1, 1, 2, 2, 2, 3, 3, 4]
    assert first_path(tree) == [0, 2, 5, 7]
    assert comb(tree) == [0, 1, 2, 3, 5, 7]
    assert restricted(tree, comb(tree)) == (-1, -1, 0, 0, 2, 4)
    assert up_to(tree, 2) == (-1, -1, 0, 0, 1)
    assert up_to(tree, 0) == ()
    assert by_widths((2, 1, 2)) == (-1, -1, 0, 1, 2, 2, 3, 3)
    assert children(tree)[:3] == [[0, 1], [2, 3], [4]]
