"""From names to an LLM. Everything that can be refused is refused before any weights are read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerun.checks import real, whole
from forerun.control.policy import FixedLength, Policy
from forerun.drafting import Drafter, LookupDrafter, ModelDrafter
from forerun.engine import Scheduler
from forerun.errors import ParameterError
from forerun.llm import LLM
from forerun.verification import RULES

if TYPE_CHECKING:
    from forerun.models.progress import Progress

DRAFTERS = ("none", "model", "lookup")


def load(
    target: str | Path,
    *,
    draft: str | Path | None = None,
    drafter: str | Drafter | None = None,
    policy: Policy | None = None,
    k: int = 4,
    verifier: str = "block",
    device: str = "auto",
    dtype: str = "auto",
    strict: bool = False,
    context_length: int | None = None,
    draft_context: int | None = None,
    draft_vocabulary: int | None = None,
    draft_min_confidence: float = 0.0,
    max_sequences: int = 64,
    mirror: bool | None = None,
    progress: Progress | None = None,
) -> LLM:
    """Load a target, and what drafts for it.

    `target` and `draft` are registered names (`forerun models`), GGUF files, transformers directories or Hub
    repositories (`org/name[:file]`). `drafter` is "model" (the default when `draft` is given), "lookup", "none" (the
    default otherwise) or a Drafter. `policy` overrides `FixedLength(k)`. `verifier` is "block" or "chain".

    `dtype` "auto" takes what the device computes fast. `strict` pads every pass to one shape, so that plain and
    speculative passes run the same kernels and text is equal bit for bit (slower). `context_length` and
    `draft_context` (tokens) lower the models' own. `draft_vocabulary` keeps only the first N rows of the draft's
    output head: a cheaper draft whose q has no mass elsewhere; the text is unaffected. `draft_min_confidence` ends a
    draft early where the draft model is unsure (see `ModelDrafter`).
    """
    kind = _drafter_kind(drafter, draft)
    if verifier not in RULES:
        raise ParameterError("verifier", f"{verifier!r} is not allowed", f"one of {', '.join(RULES)}")
    if policy is not None and kind == "none":
        raise ParameterError("policy", "nothing drafts, so there is nothing to plan", "give draft=NAME or a drafter")
    policy = policy if policy is not None else FixedLength(k)
    for name, value in (("draft_context", draft_context), ("draft_vocabulary", draft_vocabulary)):
        if value is not None:
            whole(name, value, 1, None, "a whole number of at least 1")
    real("draft_min_confidence", draft_min_confidence, 0.0, 1.0, "between 0 (never end early) and 1")
    of_draft = {
        "draft_context": draft_context,
        "draft_vocabulary": draft_vocabulary,
        "draft_min_confidence": draft_min_confidence or None,
    }
    unused = [name for name, value in of_draft.items() if value is not None and kind != "model"]
    if unused:
        raise ParameterError(unused[0], "needs a draft model", "give draft=NAME")
    if context_length is not None:
        whole("context_length", context_length, 2, None, "a whole number of at least 2")
    scheduler = Scheduler(max_sequences)

    from forerun.models.pull import resolve
    from forerun.models.tokenizer import load_tokenizer
    from forerun.models.vocabulary import require_same_vocabulary
    from forerun.runtime.torch import check_torch_model, load_torch_model

    files = resolve(str(target), mirror=mirror, progress=progress)
    tokenizer = load_tokenizer(files.path)
    settings: dict[str, Any] = {"device": device, "dtype": dtype, "strict": strict}
    check_torch_model(files.path, kind=files.kind, context_length=context_length, **settings)
    draft_model = None
    if kind == "model" and draft is not None:
        draft_files = resolve(str(draft), mirror=mirror, progress=progress)
        require_same_vocabulary(tokenizer, load_tokenizer(draft_files.path))
        of_model = {"context_length": draft_context, "num_head_rows": draft_vocabulary, **settings}
        try:
            check_torch_model(draft_files.path, kind=draft_files.kind, **of_model)
        except ParameterError as error:
            raise ParameterError(_DRAFT_NAMES.get(error.name, error.name), error.reason, error.remedy) from error
        draft_model = load_torch_model(draft_files.path, kind=draft_files.kind, progress=progress, **of_model)
    model = load_torch_model(files.path, kind=files.kind, context_length=context_length, progress=progress, **settings)
    chosen: Drafter | None
    if draft_model is not None:
        chosen = ModelDrafter(draft_model, draft_context, draft_min_confidence)
    elif kind == "lookup":
        chosen = LookupDrafter()
    else:
        chosen = drafter if drafter is not None and not isinstance(drafter, str) else None
    return LLM(
        model,
        tokenizer,
        chosen,
        policy if chosen is not None else FixedLength(0),
        rules=RULES[verifier],
        scheduler=scheduler,
    )


_DRAFT_NAMES = {"context_length": "draft_context", "num_head_rows": "draft_vocabulary"}
"""What the runtime calls a setting of the draft model, and what the user called it."""


def _drafter_kind(drafter: str | Drafter | None, draft: str | Path | None) -> str:
    """Which drafter the settings name; contradictions are refused, so that no draft is silently unused."""
    if drafter is None:
        return "model" if draft is not None else "none"
    if not isinstance(drafter, str):
        if draft is not None:
            raise ParameterError(
                "drafter", "an own drafter was given together with a draft model", "give one of the two"
            )
        return "own"
    if drafter not in DRAFTERS:
        raise ParameterError("drafter", f"{drafter!r} is not allowed", f"one of {', '.join(DRAFTERS)}, or a Drafter")
    if drafter == "model" and draft is None:
        raise ParameterError("drafter", "'model' needs a draft model", "give draft=NAME")
    if drafter != "model" and draft is not None:
        raise ParameterError(
            "drafter", f"{drafter!r} would leave the draft model {str(draft)!r} unused", "drop one of the two"
        )
    return drafter
