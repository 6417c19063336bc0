"""A plan from measurements, from loaded models to one document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, median
from typing import Any

from forerun.bench.rounds import Report
from forerun.bench.run import check_room
from forerun.bench.summary import PLAIN
from forerun.checks import real, whole
from forerun.drafting import COPIERS
from forerun.planning.arithmetic import BATCHES, CONTEXTS
from forerun.planning.doubts import doubts
from forerun.planning.measure import Measurement, Source, model_source, num_tokens_at_most
from forerun.planning.memory import installed, needs
from forerun.planning.predict import Costs, Host, Prediction, predict
from forerun.planning.replay import acceptance, acceptance_by_depth, replay
from forerun.planning.roofline import Roofline, measure_tflops
from forerun.planning.scaling import Drafting, Surface, gain, measure_surface
from forerun.planning.session import Session
from forerun.planning.shapes import Shape
from forerun.runtime.base import Model
from forerun.types import CostCurve, Round

BATCH_CONTEXT = 1024
"""Cached tokens of each sequence where the gain is told by batch."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A model with its weights. `shape` None: no reader describes its files. `weight_bytes`: what a pass reads."""

    name: str
    model: Model
    runtime: str
    shape: Shape | None
    weight_bytes: float | None


@dataclass(frozen=True, slots=True)
class Asked:
    """What is measured. `context`: cached tokens behind which passes are timed, None for the middle of generations;
    `tflops`: the machine's peak where it is given."""

    ks: tuple[int, ...] = tuple(range(9))
    num_tokens: int = 24
    temperature: float = 0.0
    context: int | None = None
    sequences: int = 1
    tflops: float | None = None

    def __post_init__(self) -> None:
        whole("max_tokens", self.num_tokens, 2, None, "a whole number of at least 2")
        if self.tflops is not None:
            real("flops", self.tflops, 0.0, 1e12, "TFLOP/s, above 0", open_low=True)


def plan(
    target: Ready,
    drafts: Sequence[Ready],
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    asked: Asked,
    report: Report = lambda what, done, total: None,
) -> dict[str, Any]:
    """Measure and predict; the document of `forerun plan` without what only names and files tell."""
    longest = max(asked.ks)
    most = num_tokens_at_most(asked.num_tokens, longest)
    check_room({"the plan": list(prompts)}, most, target.model.capabilities.context_length)
    sources = [model_source(draft.name, draft.model) for draft in drafts]
    sources += [Source(name, make) for name, make in COPIERS.items()]
    sampling = {"temperature": asked.temperature}
    session = Measurement(target.model, tokenizer, sources, asked.ks, sampling).run(
        prompts, asked.num_tokens, asked.context, report
    )
    report("passes of many rows, and behind a long context", 1, 1)
    surfaces = {ready.name: measure_surface(ready.model, longest) for ready in (target, *drafts)}
    summary = _Summary(target, drafts, session, surfaces, asked)
    document = summary.document()
    return document | {"doubts": list(doubts(document, session.round_ms_by_prompt(PLAIN)))}


class _Summary:
    """The document, from what was measured."""

    def __init__(
        self,
        target: Ready,
        drafts: Sequence[Ready],
        session: Session,
        surfaces: Mapping[str, Surface],
        asked: Asked,
    ) -> None:
        self.target, self.drafts, self.session, self.asked = target, drafts, session, asked
        self.longest = max(asked.ks)
        self.ks = sorted({0, *asked.ks})
        self.names = [*(draft.name for draft in drafts), *COPIERS]
        self.curves = {target.name: session.curve("target")}
        self.curves |= {draft.name: session.curve("draft", draft.name) for draft in drafts if self.longest}
        self.surfaces = {
            name: _scaled(surface, self.curves[name].at(1)) if name in self.curves else surface
            for name, surface in surfaces.items()
        }
        self.plain = session.variant(PLAIN, 0)
        self.costs = {
            name: Costs(self.curves[target.name], self._draft_curve(name), self._host(name)) for name in self.names
        }
        self.predictions = {name: self._predict(name) for name in self.names}

    def document(self) -> dict[str, Any]:
        """All of it."""
        measured = {name: self._measured(name) for name in self.names}
        best_k = {name: max(self.ks, key=lambda k: self.predictions[name][k].speedup) for name in self.names}
        choice = max(self.names, key=lambda name: self.predictions[name][best_k[name]].speedup)
        k = best_k[choice]
        return {
            "target_cost_ms": self._cost_ms(self.target.name),
            "draft_cost_ms": {draft.name: self._cost_ms(draft.name) for draft in self.drafts},
            "acceptance_by_depth": {name: acceptance_by_depth(self._texts(name)) for name in self.names},
            "predicted": {
                name: {str(k): _shown(one) for k, one in found.items()} for name, found in self.predictions.items()
            },
            "measured": measured,
            "best": {
                "drafter": choice if k else "none", "k": k, "speedup": self.predictions[choice][k].speedup,
                "measured_speedup": measured[choice][str(k)]["speedup"],
            },
            "best_k": best_k,
            "host_ms": {
                name: {"plain": costs.host.plain_ms, "per_draft_token": costs.host.per_token_ms}
                for name, costs in self.costs.items()
            },
            "acceptance": {name: acceptance(self._texts(name)) for name in self.names},
            "reading_ms": {name: fmean(found) for name, found in self.session.reading_ms.items()},
            "context": {name: curve.context for name, curve in self.curves.items()},
            "runtime": {ready.name: ready.runtime for ready in (self.target, *self.drafts)},
            "bandwidth_gb_per_s": {
                "median": median(self.session.probes), "low": min(self.session.probes), "high": max(self.session.probes)
            },
            "unit_ms": {
                "median": self.session.unit_ms, "low": min(self._units), "high": max(self._units),
            },
            "num_stalls": self.session.num_stalls,
            "roofline": self._roofline(),
            "memory": self._memory(),
            "by_batch": {name: {str(n): self._gain(name, n, BATCH_CONTEXT) for n in BATCHES} for name in self.names},
            "by_context": {name: {str(n): self._gain(name, 1, n) for n in CONTEXTS} for name in self.names},
        }  # fmt: skip

    @property
    def _units(self) -> list[float]:
        return [one.unit_ms for one in self.session.generations]

    def _texts(self, name: str) -> list[list[Round]]:
        return self.session.variant(name, self.longest).texts if self.longest else self.plain.texts

    def _draft_curve(self, name: str) -> CostCurve | None:
        return None if name in COPIERS else self.curves.get(name)

    def _host(self, name: str) -> Host:
        plain = self.plain.other_ms.mean(0)
        if not self.longest:
            return Host.between(plain, plain, 0)
        kinds = self.session.variant(name, self.longest).other_ms
        most = max(kinds.by_kind)  # a drafter may have had fewer tokens to propose, or none
        return Host.between(plain, kinds.mean(most), most)

    def _predict(self, name: str) -> dict[int, Prediction]:
        texts = self._texts(name)
        replayed = {k: replay(texts, k) for k in self.ks}
        return predict(self.costs[name], replayed, acceptance_by_depth(texts), acceptance(texts))

    def _measured(self, name: str) -> dict[str, Any]:
        found = {}
        for k in self.ks:
            variant = self.session.variant(name, k) if k else self.plain
            prediction = self.predictions[name][k]
            found[str(k)] = {
                "tokens_per_pass": variant.tokens_per_pass, "round_ms": variant.round_ms,
                "tokens_per_s": variant.tokens_per_s, "tokens_per_s_as_it_ran": variant.tokens_per_s_as_it_ran,
                "speedup": variant.tokens_per_s / self.plain.tokens_per_s,
                "predicted_over_measured": prediction.tokens_per_s / variant.tokens_per_s,
            }  # fmt: skip
        return found

    def _cost_ms(self, name: str) -> dict[str, float]:
        """Rows that were timed between rounds, and the others from the wide curve at the same speed."""
        wide = self.surfaces[name].curve.milliseconds
        timed = self.curves[name].milliseconds if name in self.curves else {}
        if name != self.target.name:
            timed = {rows: value for rows, value in timed.items() if rows == 1}  # 2 was two tokens for one row
        return {str(rows): value for rows, value in sorted((wide | timed).items())}

    def _gain(self, name: str, sequences: int, context: int) -> dict[str, Any]:
        draft = None if name in COPIERS else self.surfaces[name]
        predictions = self.predictions[name]
        tokens = {k: one.tokens_per_pass for k, one in predictions.items()}
        drafting = Drafting(draft, self.costs[name].host, tokens, predictions[self.longest].drafting)
        found = gain(self.surfaces[self.target.name], drafting, sequences, context)
        return asdict(found)

    def _roofline(self) -> dict[str, Any]:
        """What bounds a pass: its bytes at the probe's speed, or its arithmetic at the peak."""
        tflops = self.asked.tflops if self.asked.tflops is not None else self._tflops()
        machine = Roofline(median(self.session.probes), tflops)
        models = {}
        for ready in (self.target, *self.drafts):
            if ready.shape is None or ready.weight_bytes is None:
                continue
            shape = replace(ready.shape, weight_bytes=ready.weight_bytes)
            context = self.curves[ready.name].context if ready.name in self.curves else 0
            models[ready.name] = {
                "weight_bytes": ready.weight_bytes, "parameters": shape.parameters, "ridge_rows": machine.ridge(shape),
                "floor_ms": {n: machine.cost(shape, int(n), 1, context).ms for n in self._cost_ms(ready.name)},
                "bound": {n: machine.cost(shape, int(n), 1, context).bound for n in self._cost_ms(ready.name)},
            }  # fmt: skip
        return {
            "gb_per_s": machine.gb_per_s, "tflops": tflops, "tflops_are_given": self.asked.tflops is not None,
            "models": models,
        }  # fmt: skip

    def _tflops(self) -> float:
        """The peak as far as it can be told: a product of large matrices, or what the widest passes reached."""
        reached = [measure_tflops(self.target.model.capabilities.device)]
        for ready in (self.target, *self.drafts):
            if ready.shape is not None:
                cost = self._cost_ms(ready.name)
                reached += [2e-9 * ready.shape.parameters * int(n) / value for n, value in cost.items()]
        return max(reached)

    def _memory(self) -> dict[str, Any] | None:
        shapes = [ready.shape for ready in (self.target, *self.drafts)]
        known = [shape for shape in shapes if shape is not None]
        if len(known) < len(shapes):
            return None
        context = self.target.model.capabilities.context_length or max(CONTEXTS)
        found = needs(known[0], known[1:], self.asked.sequences, context, self.longest)
        return {
            "sequences": self.asked.sequences, "context": context,
            "need_bytes": {name: asdict(n) for name, n in found.items()},
            "cache_bytes_per_token": {shape.name: shape.cache_bytes for shape in known},
            "total_bytes": sum(one.total for one in found.values()),
            "has": installed(self.target.model.capabilities.device),
        }  # fmt: skip


def _scaled(surface: Surface, one_row_ms: float) -> Surface:
    """The surface on a machine whose pass of one row takes `one_row_ms`."""
    scale = one_row_ms / surface.curve.at(1)
    times = {rows: scale * value for rows, value in surface.curve.milliseconds.items()}
    slopes = {rows: scale * value for rows, value in surface.per_token_ms.items()}
    return Surface(CostCurve(surface.curve.context, times), slopes, surface.longest)


def _shown(one: Prediction) -> dict[str, Any]:
    return {
        "tokens_per_pass": one.tokens_per_pass, "round_ms": one.round_ms, "tokens_per_s": one.tokens_per_s,
        "speedup": one.speedup, "drafting": one.drafting, "break_even": one.break_even,
        "speedup_by_depth": one.by_depth,
        "textbook_accepted": one.textbook_accepted, "textbook_acceptance": one.textbook_acceptance,
    }  # fmt: skip
