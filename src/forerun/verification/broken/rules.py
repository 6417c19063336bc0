"""Broken rules, random numbers and drafts: faults of the verification itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from forerun.arrays import namespace
from forerun.randomness import Drawn, Noise, Purpose, without_replacement
from forerun.sampling import Distribution
from forerun.types import Draft, Prospect, Verdict
from forerun.verification import CHAIN_RULES, Rule, Rules
from forerun.verification.broken.parts import Broken, NoiseFactory
from forerun.verification.chain import acceptance_ratio, chain, draft_row, residual
from forerun.verification.follow import follow

# -- rules -------------------------------------------------------------------------------------------------------------


def _chain_like(
    passes: Callable[[Distribution, Draft, int, int], float],
    after_rejection: Callable[[Distribution, Distribution], Distribution] = lambda p, q: (
        residual(p, q, 1.0).distribution
    ),
    after_all: Callable[[Distribution, Draft], Distribution] = lambda p, draft: p,
) -> Rules:
    """The chain rule with some of its three parts replaced."""

    def rule(target_rows: Sequence[Distribution], draft: Draft, noise: Noise) -> Verdict:
        k = len(draft.tokens)
        num = next(
            (i for i, x in enumerate(draft.tokens) if not noise.accept(passes(target_rows[i], draft, i, x), i)), k
        )
        if num == k:
            emitted = after_all(target_rows[k], draft)
        else:
            emitted = after_rejection(target_rows[num], draft_row(draft, num))
        return Verdict(tuple(range(num)), noise.draw(emitted, num, Purpose.EMIT))

    return {"sampled": rule, "deterministic": follow}


def _ratio(p: Distribution, draft: Draft, node: int, token: int) -> float:
    return min(1.0, acceptance_ratio(p, draft, node, token))


def _inverse_ratio(p: Distribution, draft: Draft, node: int, token: int) -> float:
    ratio = acceptance_ratio(p, draft, node, token)
    return min(1.0, 1.0 / ratio) if ratio > 0.0 else 1.0


def _absolute_residual(p: Distribution, q: Distribution) -> Distribution:
    xp = namespace(p.probs)
    difference = xp.abs(p.probs - q.probs)
    return Distribution.explicit(difference) if float(xp.sum(difference)) > 0.0 else p


def _last_q(p: Distribution, draft: Draft) -> Distribution:
    return draft_row(draft, len(draft.tokens) - 1) if draft.tokens else p


def _one_row_late(rule: Rule) -> Rule:
    def late(target_rows: Sequence[Distribution], draft: Draft, noise: Noise) -> Verdict:
        return rule([*target_rows[1:], target_rows[-1]], draft, noise)

    return late


def _min_p_after() -> Rules:
    def without(row: Distribution, draft: Draft, node: int, token: int) -> float:
        return _ratio(row.with_params(replace(row._params, min_p=0.0)), draft, node, token)

    return _chain_like(without)


def _at_temperature_one(rule: Rule) -> Rule:
    def raw(row: Distribution) -> Distribution:
        return row.with_params(replace(row._params, temperature=1.0))

    def ignorant(target_rows: Sequence[Distribution], draft: Draft, noise: Noise) -> Verdict:
        return rule([raw(row) for row in target_rows], draft, noise)

    return ignorant


def _block_like(
    *,
    stop_at_failure: bool = False,
    clamped: bool = True,
    scaled_residual: bool = True,
    threshold: Literal["right", "scale", "ratio"] = "right",
) -> Rules:
    """Block verification with one of its parts wrong."""

    def rule(target_rows: Sequence[Distribution], draft: Draft, noise: Noise) -> Verdict:
        k, scale, num, num_scale = len(draft.tokens), 1.0, 0, 1.0
        for node, token in enumerate(draft.tokens):
            ratio = acceptance_ratio(target_rows[node], draft, node, token)
            scale = min(scale * ratio, 1.0) if clamped else scale * ratio
            if threshold == "ratio":
                h = min(ratio, 1.0)
            elif threshold == "scale" or node + 1 == k:
                h = scale
            else:
                r = residual(target_rows[node + 1], draft_row(draft, node + 1), scale).mass
                h = r / (r + 1.0 - scale) if r + 1.0 - scale > 0.0 else 1.0
            if noise.accept(h, node):
                num, num_scale = node + 1, scale
            elif stop_at_failure:
                break
        if num == k:
            emitted = target_rows[k]
        else:
            own_scale = num_scale if scaled_residual else 1.0
            emitted = residual(target_rows[num], draft_row(draft, num), own_scale).distribution
        return Verdict(tuple(range(num)), noise.draw(emitted, num, Purpose.EMIT))

    return {"sampled": rule, "deterministic": follow}


def _redraws(target_rows: Sequence[Distribution], draft: Draft, noise: Noise) -> Verdict:
    """Accepts with probability p(x), then draws from p again instead of from what is left of it."""
    for node, token in enumerate(draft.tokens):
        if not noise.accept(target_rows[node].prob(token), node):
            return Verdict(tuple(range(node)), noise.draw(target_rows[node], node, Purpose.FOLLOW))
    node = len(draft.tokens)
    return Verdict(tuple(range(node)), noise.draw(target_rows[node], node, Purpose.FOLLOW))


# -- noise -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tampered:
    """Noise whose decisions ask the sound noise for other ones."""

    inner: Noise
    purposes: Mapping[Purpose, Purpose]
    same_node: bool = False
    accept_bonus: float = 0.0

    @property
    def kind(self) -> Literal["sampled", "deterministic"]:
        return self.inner.kind

    def accept(self, probability: float, node: int) -> bool:
        return self.inner.accept(probability + self.accept_bonus, 0 if self.same_node else node)

    def draw(self, distribution: Distribution, node: int, purpose: Purpose) -> int:
        node = 0 if self.same_node else node
        return self.inner.draw(distribution, node, self.purposes.get(purpose, purpose))

    def draw_children(self, distribution: Distribution, nodes: Sequence[int], depth: int) -> list[Drawn]:
        if self.kind == "deterministic":
            return self.inner.draw_children(distribution, nodes, depth)
        return without_replacement(distribution, nodes, lambda left, node: self.draw(left, node, Purpose.DRAFT))


def _tampered(
    purposes: Mapping[Purpose, Purpose] | None = None, same_node: bool = False, accept_bonus: float = 0.0
) -> Callable[[NoiseFactory], NoiseFactory]:
    def wrap(factory: NoiseFactory) -> NoiseFactory:
        return lambda *key: _Tampered(factory(*key), purposes or {}, same_node, accept_bonus)

    return wrap


def _key_without_round(factory: NoiseFactory) -> NoiseFactory:
    return lambda params, seed, choice, committed: factory(params, seed, choice, 0)


# -- drafters ----------------------------------------------------------------------------------------------------------


class Wrapped:
    """A drafter that passes everything on."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.needs = inner.needs

    def prospects(self, sequences: Sequence[Any], longest: Sequence[int]) -> list[list[Prospect]]:
        return list(self.inner.prospects(sequences, longest))

    def propose(self, sequences: Sequence[Any], plans: Sequence[Any]) -> list[Draft]:
        return list(self.inner.propose(sequences, plans))

    def observe(self, sequences: Sequence[Any], rows: Any, verdicts: Sequence[Verdict | None]) -> None:
        self.inner.observe(sequences, rows, verdicts)

    def release(self, sequence_id: int) -> None:
        self.inner.release(sequence_id)


@dataclass(frozen=True, slots=True)
class _ArgmaxNoise:
    """Draws the argmax and calls it sampled."""

    kind: Literal["sampled", "deterministic"] = "sampled"

    def accept(self, probability: float, node: int) -> bool:
        raise NotImplementedError("drafters accept nothing")

    def draw(self, distribution: Distribution, node: int, purpose: Purpose) -> int:
        return distribution.argmax

    def draw_children(self, distribution: Distribution, nodes: Sequence[int], depth: int) -> list[Drawn]:
        return without_replacement(distribution, nodes, lambda left, node: left.argmax)


class _View:
    """A sequence as a drafter sees it, with other noise."""

    def __init__(self, sequence: Any, noise: Noise) -> None:
        self._sequence, self.noise = sequence, noise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sequence, name)


class _ArgmaxScoredAsSampled(Wrapped):
    def propose(self, sequences: Sequence[Any], plans: Sequence[Any]) -> list[Draft]:
        views = [_View(s, _ArgmaxNoise() if s.noise.kind == "sampled" else s.noise) for s in sequences]
        return super().propose(views, plans)


class _CutAfterDrawing(Wrapped):
    """Drops a drafted token, and all behind it, when its own q looks too small."""

    def propose(self, sequences: Sequence[Any], plans: Sequence[Any]) -> list[Draft]:
        return [self._cut(draft) for draft in super().propose(sequences, plans)]

    @staticmethod
    def _cut(draft: Draft, smallest: float = 0.5) -> Draft:
        if draft.kind != "sampled" or draft.rows is None:
            return draft
        pairs = list(zip(draft.tokens, draft.rows, strict=True))
        num = next((i for i, (token, q) in enumerate(pairs) if q.prob(token) < smallest), len(pairs))
        return replace(draft, tokens=draft.tokens[:num], rows=draft.rows[:num])


# -- the registry ------------------------------------------------------------------------------------------------------

BROKEN_RULES: Mapping[str, Broken] = {
    "accept_always": Broken("every draft token is kept, so the text is the draft's", _chain_like(lambda *_: 1.0)),
    "swapped": Broken("accepts with q/p where p/q belongs", _chain_like(_inverse_ratio)),
    "residual_missing": Broken(
        "after a rejection, p is drawn from without subtracting q", _chain_like(_ratio, lambda p, q: p)
    ),
    "residual_unclamped": Broken(
        "the residual is |p - q|: mass where the draft already had enough", _chain_like(_ratio, _absolute_residual)
    ),
    "bonus_from_q": Broken("after k acceptances the next token is the draft's", _chain_like(_ratio, after_all=_last_q)),
    "one_row_late": Broken(
        "each draft token is judged by the row after the right one",
        {"sampled": _one_row_late(chain), "deterministic": _one_row_late(follow)},
    ),
    "temperature_ignored": Broken(
        "the target's rows are taken at temperature 1 whatever was asked",
        {"sampled": _at_temperature_one(chain), "deterministic": _at_temperature_one(follow)},
    ),
    "block_first_failure_stops": Broken(
        "block verification gives up at the first failed test", _block_like(stop_at_failure=True)
    ),
    "block_unclamped": Broken("block's running product may exceed 1", _block_like(clamped=False)),
    "block_unscaled_residual": Broken(
        "block's residual forgets the prefix probability P[n]", _block_like(scaled_residual=False)
    ),
    "block_chain_thresholds": Broken(
        "block's last success, with the chain rule's thresholds", _block_like(threshold="ratio")
    ),
    "block_scale_thresholds": Broken(
        "block tests P[i] everywhere, not r / (r + 1 - P)", _block_like(threshold="scale")
    ),
    "follow_redraws": Broken(
        "a refused fixed draft is drawn again from all of p", {**CHAIN_RULES, "deterministic": _redraws}
    ),
    "key_without_round": Broken(
        "randomness keyed without the committed length comes back every round", noise=_key_without_round
    ),
    "key_without_node": Broken("all tokens of a round share one number", noise=_tampered(same_node=True)),
    "reused_draft_noise": Broken(
        "the recovered token is drawn with the number that drew the draft",
        noise=_tampered({Purpose.EMIT: Purpose.DRAFT}),
    ),
    "reused_accept_noise": Broken(
        "the recovered token is drawn with the number that refused the draft",
        noise=_tampered({Purpose.EMIT: Purpose.ACCEPT}),
    ),
    "accept_on_zero": Broken(
        "U <= h with U = 0 accepts a token of probability 0", CHAIN_RULES, _tampered(accept_bonus=2.0**-53)
    ),
    "argmax_scored_as_sampled": Broken(
        "argmax drafts are scored with their softmax as q", drafter=_ArgmaxScoredAsSampled
    ),
    "draft_cut_after_drawing": Broken(
        "unlikely draft tokens are dropped after they were drawn", drafter=_CutAfterDrawing
    ),
    "min_p_after": Broken(
        "drafts are accepted without min-p, which is applied to the emitted token only", _min_p_after()
    ),
}
"""Every such fault with its one-line reason."""
