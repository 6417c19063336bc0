"""What is asked of a policy and a drafter in one round, and what they may answer."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

from forerun.control.policy import Load, Policy
from forerun.drafting.base import Drafter
from forerun.engine.scheduler import Slice
from forerun.errors import ContractError, UserCodeError
from forerun.topology import is_sound
from forerun.types import Draft, Plan


def make_plans(parts: Seq[Slice], policy: Policy, drafter: Drafter, num_waiting: int) -> list[Plan]:
    """A plan for every part of the pass, no longer than what is left to write; nothing is drafted behind a prompt that
    is not read to its end. ContractError where the policy answers with anything else than plans."""
    longest = [part.sequence.max_shape if part.is_complete else 0 for part in parts]
    sequences = [part.sequence for part in parts]
    prospects = drafter.prospects(sequences, longest)
    load = Load(len(parts), num_waiting, sum(part.num_tokens for part in parts))
    plans = policy.plan(sequences, prospects, load)
    if len(plans) != len(parts) or not all(_is_sound(plan) for plan in plans):
        raise ContractError(f"the policy returned {plans} for {len(parts)} sequences")
    return [_within(plan, most) for plan, most in zip(plans, longest, strict=True)]


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
        drafts[i] = _fitted(parts[i], draft, plans[i].shape)
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


def _within(plan: Plan, most: int) -> Plan:
    """The plan with at most `most` tokens."""
    if plan.shape <= most:
        return plan if most or not plan.read else replace(plan, read=0)
    return replace(plan, shape=most, tree=None if plan.tree is None else plan.tree[:most])


def _check(draft: Draft, plan: Plan, vocabulary_size: int) -> None:
    if len(draft.tokens) > plan.shape or not all(0 <= token < vocabulary_size for token in draft.tokens):
        raise ContractError(
            f"a draft of {list(draft.tokens)} was proposed where at most {plan.shape} ids below {vocabulary_size} were "
            "asked for"
        )
    if draft.parents is not None and not is_sound(draft.parents, len(draft.tokens)):
        raise ContractError(f"a draft of {len(draft.tokens)} tokens has the parents {list(draft.parents)}")


def _fitted(part: Slice, draft: Draft, shape: int) -> Draft:
    try:
        return part.sequence.processing.fit(draft, shape)
    except UserCodeError:
        return Draft()  # verification meets the same error and ends the request
