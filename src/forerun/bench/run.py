"""One bench from loaded models to one document: variants, rounds, figures, and what they were measured on."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from forerun import _native
from forerun.bench.agreement import find_differences
from forerun.bench.cells.contenders import adaptive_parts
from forerun.bench.curves import ModelPasses, Passes, measure_curves
from forerun.bench.hardware import provenance
from forerun.bench.llamacpp import LlamaCppVariant
from forerun.bench.probe import BandwidthProbe, ProbeSummary
from forerun.bench.rounds import Prompts, Report, Session, run_rounds
from forerun.bench.summary import PLAIN, best_of, summarise
from forerun.bench.variants import ADAPTIVE, NEED_MODELS, ForerunVariant, Variant
from forerun.control.policy import FixedLength, Policy
from forerun.drafting import COPIERS, Drafter, ModelDrafter, StackDrafter, SuffixDrafter
from forerun.errors import InputError, ParameterError
from forerun.llm import LLM
from forerun.runtime.base import Model


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a run depends on, as it goes into the document."""

    workloads: tuple[str, ...]
    target: str
    draft: str | None
    drafters: tuple[str, ...]
    k: tuple[int, ...]
    max_tokens: int
    prompts: int
    rounds: int
    temperature: float
    seed: int | None
    device: str
    dtype: str
    draft_vocabulary: int | None
    draft_min_confidence: float
    strict: bool
    runtime: str
    draft_runtime: str
    draft_context: int | None
    context: int
    peers: tuple[str, ...]
    quantize: str | None = None

    def is_comparable(self, variant: Variant) -> bool:
        """Whether a variant must write what plain decoding writes: greedy, or forerun with a seed."""
        return self.temperature == 0 or (self.seed is not None and not variant.is_peer)


def own_variants(llm: LLM, drafts: Mapping[str, Model], settings: Settings) -> list[ForerunVariant]:
    """Plain decoding, and every drafter at every k, over one target; `drafts` has the models of DRAFT_MODELS."""
    sampling: dict[str, Any] = {"temperature": settings.temperature, "seed": settings.seed}
    engine = llm.engine

    def over(drafter: Drafter | None, policy: Policy) -> LLM:
        return LLM(
            engine.target, llm.tokenizer, drafter, policy,
            vocabulary_size=engine.vocabulary_size, eos_ids=tuple(engine.eos_ids),
        )  # fmt: skip

    variants = [ForerunVariant(PLAIN, over(None, FixedLength(0)), **sampling)]
    for name in settings.drafters:
        if name == ADAPTIVE:
            draft = next(iter(drafts.values()), None)  # of two, the one as stored
            drafter, policy = adaptive_parts(
                engine.target, draft, settings.draft_context, settings.draft_min_confidence
            )
            variants.append(ForerunVariant(name, over(drafter, policy), name, **sampling))
            continue
        for k in settings.k:
            variants.append(
                ForerunVariant(
                    f"{name} k={k}", over(_drafter(name, drafts, settings), FixedLength(k)), name, k, **sampling
                )
            )
    return variants


def _drafter(name: str, drafts: Mapping[str, Model], settings: Settings) -> Drafter:
    if name in COPIERS:
        return COPIERS[name]()
    if NEED_MODELS[name] not in drafts:
        raise ParameterError("drafters", f"{name!r} needs a draft model", "give --draft MODEL, or --drafters lookup")
    by_model = ModelDrafter(drafts[NEED_MODELS[name]], settings.draft_context, settings.draft_min_confidence)
    return StackDrafter([SuffixDrafter(), by_model]) if name == "stack" else by_model


def check_room(prompts: Prompts, num_tokens: int, context_length: int | None) -> None:
    """Refuse prompts that leave no room for `num_tokens`: every variant must decode equally many."""
    for workload, of_workload in prompts.items():
        for index, prompt in enumerate(of_workload):
            if context_length is not None and len(prompt) + num_tokens > context_length:
                raise InputError(
                    f"{num_tokens} tokens do not fit behind prompt {index} of {workload}",
                    f"it has {len(prompt)} tokens, and the context holds {context_length}",
                    "lower --max-tokens, or leave this workload out",
                )


def bench(
    llm: LLM,
    drafts: Mapping[str, Model],
    settings: Settings,
    prompts: Prompts,
    weights: Mapping[str, int | None] | None = None,
    peers: Sequence[Variant] = (),
    not_run: Mapping[str, str] | None = None,
    command: str = "",
    probe: BandwidthProbe | None = None,
    report: Report = lambda what, done, total: None,
) -> dict[str, Any]:
    """Measure and summarise; the document that `forerun bench` prints as its last line.

    `drafts`: the draft models by the drafter's name (DRAFT_MODELS). `weights`: bytes that one pass of "target" and of
    each draft reads, where known. `not_run`: peers that could not be loaded, with the reasons.
    """
    target = llm.engine.target
    check_room(prompts, settings.max_tokens, target.capabilities.context_length)
    variants: list[Variant] = [*own_variants(llm, drafts, settings), *peers]
    used = probe if probe is not None else BandwidthProbe()
    try:
        curves = _curves({"target": target, **drafts}, peers, used, settings.context)
        session = run_rounds(variants, prompts, settings.max_tokens, settings.rounds, used, report)
    finally:
        used.close()
    readings = ProbeSummary.of(session.probes)
    workloads: dict[str, Any] = {}
    best: dict[str, Any] = {}
    for workload in prompts:
        if not session.of(workload, PLAIN):
            continue  # interrupted before it began
        compared = [v.name for v in variants if settings.is_comparable(v)]
        differences = find_differences(session, workload, PLAIN, compared, target, prompts, llm.engine.vocabulary_size)
        workloads[workload] = summarise(session, variants, workload, readings, differences)
        best[workload] = best_of(workloads[workload], variants)
    return {
        **provenance(command),
        "settings": {
            **asdict(settings),
            "dtype": _dtype(target, settings),
            "device": target.capabilities.device,
            "threads": _threads(),
        },
        "probe": {
            **asdict(readings),
            "readings": len(session.probes),
            "threads": used.num_threads,
            "series": _series(session),
        },
        "cost_curve": curves,
        "floor": _floor(weights or {}, readings.median),
        "prompt_tokens": {name: [len(prompt) for prompt in of_workload] for name, of_workload in prompts.items()},
        "not_run": {**(not_run or {}), **session.failures},
        "interrupted": session.interrupted,
        "workloads": workloads,
        "best": best,
    }


def _curves(
    models: Mapping[str, Model], peers: Sequence[Variant], probe: BandwidthProbe, context: int
) -> dict[str, dict[str, Any]]:
    """t(rows) of our models and of the peers that let their passes be timed."""
    sides: dict[str, Passes] = {name: ModelPasses(model) for name, model in models.items()}
    sides |= {peer.name: peer for peer in peers if isinstance(peer, LlamaCppVariant)}
    limits = [model.capabilities.context_length for model in models.values()]
    return measure_curves(sides, probe, context, min((limit for limit in limits if limit is not None), default=None))


def _series(session: Session) -> list[list[float]]:
    """Every probe: [seconds since the first, GB/s]."""
    times = zip(session.probed_at, session.probes, strict=True)
    return [[round(at - session.probed_at[0], 1), round(gb_s, 2)] for at, gb_s in times]


def _floor(weights: Mapping[str, int | None], gb_s: float) -> dict[str, Any]:
    """Milliseconds that reading the weights once takes at the probe's speed: no pass can be faster."""
    return {
        name: {"bytes": num_bytes, "ms": num_bytes / gb_s / 1e6} for name, num_bytes in weights.items() if num_bytes
    }


def _dtype(target: Model, settings: Settings) -> str:
    """What the target computes in: torch's dtype, or the native runtime over the types that its file stores."""
    dtype = getattr(target, "dtype", None)
    return str(dtype).removeprefix("torch.") if dtype is not None else f"native ({_native.isa()})"


def _threads() -> dict[str, int]:
    """Threads of the runtimes that are loaded."""
    torch = sys.modules.get("torch")
    return {"native": _native.num_threads()} | ({"torch": int(torch.get_num_threads())} if torch is not None else {})
