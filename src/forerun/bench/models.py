"""What a bench measures, loaded once: a target, its draft models as stored and requantised, and the peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console

from forerun import loading
from forerun.bench.llamacpp import LLAMA_CPP, load_llamacpp
from forerun.bench.peers import load_peers, reason_of
from forerun.bench.run import Settings
from forerun.bench.variants import ADAPTIVE, DRAFT_MODELS, NEED_MODELS, Variant
from forerun.bench.weights import bytes_per_pass
from forerun.drafting import ModelDrafter
from forerun.models.progress import RichProgress

if TYPE_CHECKING:
    from forerun.llm import LLM
    from forerun.models.store import ModelFiles
    from forerun.runtime.base import Model
    from forerun.runtime.select import Choice


@dataclass(frozen=True, slots=True)
class Loaded:
    """The target behind `llm`, and the draft models by the drafter's name (see `DRAFT_MODELS`)."""

    llm: LLM
    drafts: Mapping[str, Model]
    target_files: ModelFiles
    draft_files: ModelFiles | None

    def weights(self, settings: Settings) -> dict[str, int | None]:
        """Bytes that one pass of each model reads, where known."""
        found = {"target": _bytes_per_pass(self.llm.engine.target, self.target_files, None)}
        if self.draft_files is not None:
            for name, model in self.drafts.items():
                found[name] = _bytes_per_pass(model, self.draft_files, settings.draft_vocabulary)
        return found


def load_models(settings: Settings, mirror: bool | None) -> Loaded:
    """Target and drafts; every variant of forerun shares them. All is refused that can be, then weights are read."""
    from forerun.models.pull import resolve
    from forerun.models.tokenizer import load_tokenizer

    progress = RichProgress(Console(stderr=True))
    wanted = models_of(settings.drafters, settings.draft)
    target_files = resolve(settings.target, mirror=mirror, progress=progress)
    draft_files = None if settings.draft is None else resolve(settings.draft, mirror=mirror, progress=progress)
    second: Choice | None = None
    if len(wanted) == len(DRAFT_MODELS) and draft_files is not None:
        second = loading.choose_draft(
            draft_files, load_tokenizer(target_files.path), settings.draft_runtime, context=settings.draft_context,
            vocabulary=settings.draft_vocabulary, requantise=True, device=settings.device, dtype=settings.dtype,
        )  # fmt: skip
    llm = loading.load(
        settings.target,
        draft=settings.draft if wanted else None,
        drafter="model" if wanted else None,
        k=0,
        runtime=settings.runtime,
        draft_runtime=settings.draft_runtime,
        device=settings.device,
        dtype=settings.dtype,
        strict=settings.strict,
        quantize=settings.quantize,
        draft_context=settings.draft_context,
        draft_vocabulary=settings.draft_vocabulary,
        draft_requantise=wanted == ["requantised"],
        draft_min_confidence=settings.draft_min_confidence,
        mirror=mirror,
        progress=progress,
    )
    drafter = llm.engine.drafter
    drafts = {wanted[0]: drafter.model} if isinstance(drafter, ModelDrafter) else {}
    if second is not None:
        drafts["requantised"] = second.load(progress)
    return Loaded(llm, drafts, target_files, draft_files)


def models_of(drafters: Sequence[str], draft: str | None) -> list[str]:
    """The draft models that some drafters need, by their names in DRAFT_MODELS."""
    needed = {NEED_MODELS.get(name) for name in drafters}
    named = [name for name in DRAFT_MODELS if name in needed]
    return named or ["model"] * (ADAPTIVE in drafters and draft is not None)


def load_all_peers(settings: Settings, loaded: Loaded, num_tokens: int) -> tuple[list[Variant], dict[str, str]]:
    """(peers that can run, reasons why the others cannot). `num_tokens`: the most that is ever cached."""
    engine, peers, not_run = loaded.llm.engine, list[Variant](), dict[str, str]()
    if LLAMA_CPP in settings.peers:
        target = loaded.target_files
        try:
            peers.append(load_llamacpp(target.path, target.kind, num_tokens, settings.temperature))
        except Exception as error:
            not_run[LLAMA_CPP] = reason_of(error)
    draft = loaded.draft_files
    others, reasons = load_peers(
        [name for name in settings.peers if name != LLAMA_CPP],
        (loaded.target_files.path, loaded.target_files.kind),
        None if draft is None else (draft.path, draft.kind),
        getattr(engine.target, "dtype", None),
        engine.target.capabilities.device,
        settings.temperature,
    )
    return [*peers, *others], {**not_run, **reasons}


def _bytes_per_pass(model: Any, files: ModelFiles, num_head_rows: int | None) -> int | None:
    """What one pass reads: the native runtime knows, for torch it follows from shapes and dtype."""
    known = getattr(model, "weight_bytes", None)
    if known is not None:
        return int(known)
    size = int(getattr(getattr(model, "dtype", None), "itemsize", 4))
    return bytes_per_pass(files.path, files.kind, size, num_head_rows)
