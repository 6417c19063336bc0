"""What is asked of a policy and a drafter in one round, and what they may answer."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

from forerun.control.policy import Load, Policy
from forerun.drafting.base import Drafter
from forerun.engine.scheduler import Slice
from forerun.engine.sequence import Sequence
from forerun.errors import ContractError, UserCodeError
from forerun.topology import chain, depths, first_path, is_sound, up_to
from forerun.types import Draft, Plan, Prospect


def make_plans(
    parts: Seq[Slice],
    policy: Policy,
    drafter: Drafter,
    num_waiting: int,
    trees: bool = True,
    room: int | None = None,
) -> list[Plan]:
    """A plan for every part of the pass, no deeper than what is left to write; nothing is drafted behind a prompt that
    is not read to its end. Where target or source take no trees, or there is no memory for one (`room`: tokens of all
    drafts, None: any number), its first path is planned in its place. ContractError where the policy answers with
    anything else than plans."""
    longest = [part.sequence.max_shape if part.is_complete else 0 for part in parts]
    share = None if room is None else room // max(sum(map(bool, longest)), 1)
    if share is not None:
        longest = [min(most, share) for most in longest]
    sequences = [part.sequence for part in parts]
    prospects = drafter.prospects(sequences, longest)
    prospects = [
        each
        if one.service.sources is None
        else [prospect for prospect in each if prospect.source in one.service.sources]
        for one, each in zip(sequences, prospects, strict=True)
    ]
    if not trees:
        prospects = [[replace(prospect, trees=False) for prospect in each] for each in prospects]
    load = Load(len(parts), num_waiting, sum(part.num_tokens for part in parts))
    plans = policy.plan(sequences, prospects, load)
    if len(plans) != len(parts) or not all(_is_sound(plan) for plan in plans):
        raise ContractError(f"the policy returned {plans} for {len(parts)} sequences")
    return [
        _within(
            plan,
            most,
            trees
            and (share is None or plan.shape <= share)
            and any(one.trees for one in each if plan.source in (None, one.source)),
        )
        for plan, most, each in zip(map(_allowed, plans, sequences, prospects), longest, prospects, strict=True)
    ]


def make_drafts(parts: Seq[Slice], plans: Seq[Plan], drafter: Drafter) -> list[Draft]:
    """A draft for every part, an empty one where nothing was planned. ContractError for drafts that no plan allows."""
    drafting = [i for i, plan in enumerate(plans) if plan.shape > 0 or plan.read > 0]
    drafts = [Draft() for _ in parts]
    if not drafting:
        return drafts
    proposed = drafter.propose([parts[i].sequence for i in drafting], [plans[i] for i in drafting])
    if len(proposed) != len(drafting):
        raise ContractError(f"the drafter returned {len(proposed)} drafts for {len(drafting)} sequences")
    for i, draft in zip(drafting, proposed, strict=True):
        _check(draft, plans[i], parts[i].sequence.vocabulary_size)
        drafts[i] = _fitted(parts[i], draft, plans[i])
    return drafts


def prefixes(draft: Draft) -> list[tuple[int, ...]]:
    """The draft tokens that lead to each row of the target, [nodes + 1]: none to the first."""
    if draft.parents is None:
        return [draft.tokens[:row] for row in range(len(draft.tokens) + 1)]
    found: list[tuple[int, ...]] = [()]
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        found.append((*found[parent + 1], token))
    return found


def _is_sound(plan: Plan) -> bool:
    return plan.shape >= 0 and plan.read >= 0 and (plan.tree is None or is_sound(plan.tree, plan.shape))


def _allowed(plan: Plan, sequence: Sequence, prospects: Seq[Prospect]) -> Plan:
    """The plan with a source that the request allows; where the policy left it open, the first of those."""
    sources = sequence.service.sources
    if sources is None or plan.source in sources or not (plan.shape or plan.read):
        return plan
    return replace(plan, source=prospects[0].source) if plan.source is None and prospects else Plan()


def _within(plan: Plan, most: int, trees: bool) -> Plan:
    """The plan with no text of more than `most` tokens."""
    if most == 0 and plan.read:
        plan = replace(plan, read=0)
    if plan.tree is None:
        return plan if plan.shape <= most else replace(plan, shape=most)
    tree = up_to(plan.tree, most)
    if not trees:
        tree = chain(len(first_path(tree)))
    return replace(plan, shape=len(tree), tree=None if tree == chain(len(tree)) else tree)


def _check(draft: Draft, plan: Plan, vocabulary_size: int) -> None:
    num_nodes = len(draft.tokens)
    if num_nodes > plan.shape or not all(0 <= token < vocabulary_size for token in draft.tokens):
        raise ContractError(
            f"a draft of {list(draft.tokens)} was proposed where at most {plan.shape} ids below {vocabulary_size} were "
            "asked for"
        )
    parents = draft.parents
    if parents is not None and (plan.tree is None or not is_sound(parents, num_nodes)):
        asked = "a chain" if plan.tree is None else "a tree"
        raise ContractError(f"a draft of {num_nodes} tokens has the parents {list(parents)}; {asked} was asked for")
    depth = num_nodes if parents is None else max(depths(parents), default=0)
    if depth > _depth(plan):
        raise ContractError(f"a draft of {depth} tokens in a row was proposed where {_depth(plan)} were asked for")


def _depth(plan: Plan) -> int:
    return plan.shape if plan.tree is None else max(depths(plan.tree), default=0)


def _fitted(part: Slice, draft: Draft, plan: Plan) -> Draft:
    """The draft that is verified. A tree that is a chain is one: it needs no tree of the target."""
    if draft.parents is not None and draft.parents == chain(len(draft.tokens)):
        draft = replace(draft, parents=None)
    try:
        return part.sequence.processing.fit(draft, _depth(plan))
    except UserCodeError:
        return Draft()  # verification meets the same error and ends the request
