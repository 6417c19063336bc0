"""What drafting is worth on a machine that is not here: datasheet figures, shapes of models, an assumed acceptance.

Passes cost what the roofline says (roofline.py), a round k passes of the draft and one of the target. Nothing here
knows kernels, networks between cards or schedulers, so a figure is a bound on what there is to gain, not a promise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from forerun.checks import real, whole
from forerun.planning.arithmetic import (
    BATCHES,
    CONTEXTS,
    break_even,
    mean_acceptance,
    textbook_from_acceptance,
    textbook_from_accepted,
    tokens_per_pass,
)
from forerun.planning.devices import Device
from forerun.planning.memory import needs, num_cards
from forerun.planning.roofline import Roofline
from forerun.planning.shapes import Shape, estimated_cache_bytes

LOOKUP = "lookup"
"""A drafter whose tokens cost nothing."""
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class Assumed:
    """What a prediction assumes. `acceptance[j]`: of draft token j + 1, the last one for all further ones; `ks`: the
    lengths to choose from; `context`: cached tokens of a sequence; `cards` read and multiply at once; `efficiency`: the
    share of the datasheet's peaks that is reached."""

    acceptance: tuple[float, ...] = (0.8,)
    ks: tuple[int, ...] = tuple(range(9))
    context: int = 1024
    sequences: int = 1
    cards: int = 1
    overhead_ms: float = 0.2
    efficiency: float = 1.0

    def __post_init__(self) -> None:
        whole("cards", self.cards, 1, 100_000, "a whole number of at least 1")
        real("overhead", self.overhead_ms, 0.0, 1e6, "milliseconds, 0 or more")
        real("efficiency", self.efficiency, 0.0, 1.0, "above 0, at most 1", open_low=True)

    def roofline(self, device: Device) -> Roofline:
        """The machine that passes run on."""
        share = self.cards * self.efficiency
        return Roofline(device.gb_per_s * share, device.tflops * share, self.overhead_ms)


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and a draft (None: drafts cost nothing) on a machine."""

    target: Shape
    draft: Shape | None
    machine: Roofline
    acceptance: tuple[float, ...]

    def round_ms(self, k: int, sequences: int, context: float) -> float:
        """Milliseconds of a round with k draft tokens for each of `sequences` sequences."""
        spent = self.machine.cost(self.target, sequences * (k + 1), sequences, context).ms
        if self.draft is not None:
            spent += k * self.machine.cost(self.draft, sequences, sequences, context).ms
        return spent

    def speedup(self, k: int, sequences: int, context: float) -> float:
        """Speed relative to plain decoding."""
        ratio = self.round_ms(k, sequences, context) / self.round_ms(0, sequences, context)
        return tokens_per_pass(self.acceptance, k) / ratio

    def best(self, ks: Sequence[int], sequences: int, context: float) -> tuple[int, float]:
        """(the k that is fastest, its speed-up); the shorter one of equals, 0 where drafting loses."""
        return max(((k, self.speedup(k, sequences, context)) for k in sorted({0, *ks})), key=lambda one: one[1])

    @property
    def ratio(self) -> float:
        """c of the textbooks."""
        if self.draft is None:
            return 0.0
        return self.machine.cost(self.draft, 1).ms / self.machine.cost(self.target, 1).ms


def smallest_target(pair: Pair, ks: Sequence[int], sequences: int, context: float) -> float | None:
    """Parameters of a target of the same bits from which on this draft pays for `sequences` at once: below, no k is
    faster than plain decoding. None if the draft never pays; 0 where it is free."""
    if pair.draft is None:
        return 0.0
    scale = pair.target.cache_bytes / estimated_cache_bytes(pair.target.parameters)

    def pays(parameters: float) -> bool:
        size = parameters * pair.target.bits / 8.0
        target = Shape("", parameters, size, size, scale * estimated_cache_bytes(parameters))
        return Pair(target, pair.draft, pair.machine, pair.acceptance).best(ks, sequences, context)[0] > 0

    low, high = pair.draft.parameters / 1e3, 1e15
    if not pays(high):
        return None
    if pays(low):
        return low
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high


def document(target: Shape, drafts: Sequence[Shape], device: Device, assumed: Assumed) -> dict[str, Any]:
    """Everything that a datasheet tells: the document of `forerun plan --for`."""
    machine, context, batch = assumed.roofline(device), assumed.context, assumed.sequences
    longest = max(assumed.ks)
    one = machine.cost(target, batch, batch, context)
    pairs = {draft.name: Pair(target, draft, machine, assumed.acceptance) for draft in drafts}
    if not drafts:  # beside a draft it would always win: that its tokens are accepted as often is too much to assume
        pairs[LOOKUP] = Pair(target, None, machine, assumed.acceptance)
    bests = {name: pair.best(assumed.ks, batch, context) for name, pair in pairs.items()}
    choice = max(bests, key=lambda name: bests[name][1])
    found = needs(target, list(drafts), batch, context, longest)
    total = sum(need.total for need in found.values())
    rows = sorted({*ROWS, longest + 1})
    return {
        "target_cost_ms": {str(n): machine.cost(target, n, 1, context).ms for n in rows},
        "draft_cost_ms": {
            draft.name: {str(n): machine.cost(draft, n, 1, context).ms for n in rows} for draft in drafts
        },
        "acceptance_by_depth": {name: list(assumed.acceptance) for name in pairs},
        "predicted": {name: _predictions(pair, assumed) for name, pair in pairs.items()},
        "measured": None,
        "best": {"drafter": choice if bests[choice][0] else "none", "k": bests[choice][0], "speedup": bests[choice][1]},
        "best_k": {name: best[0] for name, best in bests.items()},
        "device": {
            "name": device.name, "title": device.title, "gb_per_s": device.gb_per_s, "tflops": device.tflops,
            "memory_gb": device.memory_gb, "source": device.source,
        },
        "assumed": {
            "acceptance": list(assumed.acceptance), "context": context, "sequences": batch, "cards": assumed.cards,
            "overhead_ms": assumed.overhead_ms, "efficiency": assumed.efficiency,
        },
        "token_ms": one.ms,
        "roofline": {
            shape.name: {
                "weight_bytes": shape.weight_bytes, "ridge_rows": machine.ridge(shape),
                "bound": {str(n): machine.cost(shape, n, 1, context).bound for n in rows},
            }
            for shape in (target, *drafts)
        },
        "memory": {
            "need_bytes": {name: asdict(n) for name, n in found.items()},
            "total_bytes": total, "cache_is_estimated": any(one.is_cache_estimated for one in (target, *drafts)),
            "has_gb": device.memory_gb,
            "cards_needed": None if device.memory_gb is None else num_cards(total, device.memory_gb),
        },
        "by_batch": {
            name: {str(n): _best(pair, assumed.ks, n, context) for n in BATCHES} for name, pair in pairs.items()
        },
        "by_context": {
            name: {str(n): _best(pair, assumed.ks, batch, n) for n in CONTEXTS} for name, pair in pairs.items()
        },
        "smallest_target": {
            name: smallest_target(pair, assumed.ks, batch, context)
            for name, pair in pairs.items()
            if pair.draft is not None
        },
        "shrinks": {name: shrinkage(pair, bests[name][0] or longest, batch, context) for name, pair in pairs.items()},
    }  # fmt: skip


def shrinkage(pair: Pair, k: int, sequences: int, context: float) -> dict[str, Any]:
    """What becomes of the gain that size alone would allow: with weights' bytes as the only cost, a round of k costs
    1 + k c passes with c the ratio of the weights. `verifying`: passes of one row that verifying costs; `drafting`:
    those that k draft passes cost; `bound`: what a draft's and a verifying pass go to."""
    plain = pair.round_ms(0, sequences, context)
    verify = pair.machine.cost(pair.target, sequences * (k + 1), sequences, context)
    c = 0.0 if pair.draft is None else pair.draft.weight_bytes / pair.target.weight_bytes
    draft = None if pair.draft is None else pair.machine.cost(pair.draft, sequences, sequences, context)
    return {
        "k": k, "by_size_alone": tokens_per_pass(pair.acceptance, k) / (1.0 + k * c),
        "speedup": pair.speedup(k, sequences, context), "verifying": verify.ms / plain, "verifying_bound": verify.bound,
        "drafting": 0.0 if draft is None else k * draft.ms / plain, "drafting_by_size": k * c,
        "drafting_bound": None if draft is None else draft.bound,
    }  # fmt: skip


def _predictions(pair: Pair, assumed: Assumed) -> dict[str, dict[str, Any]]:
    batch, context, found = assumed.sequences, assumed.context, {}
    plain = pair.round_ms(0, batch, context)
    for k in assumed.ks:
        spent = pair.round_ms(k, batch, context)
        tokens = tokens_per_pass(assumed.acceptance, k)
        found[str(k)] = {
            "tokens_per_pass": tokens, "round_ms": spent, "tokens_per_s": 1e3 * batch * tokens / spent,
            "speedup": tokens * plain / spent, "break_even": break_even(k, spent / plain) if k else None,
            "textbook_accepted": textbook_from_accepted(tokens - 1.0, k, pair.ratio),
            "textbook_acceptance": textbook_from_acceptance(mean_acceptance(assumed.acceptance, k), k, pair.ratio),
        }  # fmt: skip
    return found


def _best(pair: Pair, ks: Sequence[int], sequences: int, context: float) -> dict[str, Any]:
    k, speedup = pair.best(ks, sequences, context)
    return {"k": k, "speedup": speedup, "longest_speedup": pair.speedup(max(ks), sequences, context)}
