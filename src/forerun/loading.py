"""From names to an LLM. Everything that can be refused is refused before any weights are read."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from forerun.checks import flag, parts_of, real, shown, whole
from forerun.control import AdaptiveLength, FixedLength, PassCost, Policy
from forerun.control.trace import TRACE_BEGINS, TracedPolicy
from forerun.drafting import COPIERS, Drafter, ModelDrafter, StackDrafter, SuffixDrafter
from forerun.drafting.vocabulary import head_ids
from forerun.engine import Scheduler
from forerun.errors import InputError, ParameterError
from forerun.llm import LLM
from forerun.runtime.base import Model
from forerun.runtime.select import Choice, choose, runs_on_accelerator
from forerun.verification import RULES

if TYPE_CHECKING:
    from forerun.models.progress import Progress
    from forerun.models.store import ModelFiles
    from forerun.models.tokenizer import Tokenizer

DRAFTERS = ("none", "model", "lookup", "suffix", "stack")
MODEL_DRAFTERS = ("model", "stack")
"""Those that draft with a draft model."""


def load(
    target: str | Path,
    *,
    draft: str | Path | None = None,
    drafter: str | Drafter | None = None,
    policy: Policy | None = None,
    k: int | str = "auto",
    verifier: str = "block",
    runtime: str = "auto",
    draft_runtime: str = "auto",
    device: str = "auto",
    dtype: str = "auto",
    strict: bool = False,
    quantize: str | None = None,
    context_length: int | None = None,
    draft_context: int | None = None,
    draft_vocabulary: int | None = None,
    draft_requantise: bool = False,
    draft_min_confidence: float = 0.0,
    max_sequences: int = 64,
    trace: str | Path | None = None,
    mirror: bool | None = None,
    progress: Progress | None = None,
) -> LLM:
    """Load a target, and what drafts for it.

    `target` and `draft` are registered names (`forerun models`), GGUF files, transformers directories or Hub
    repositories (`org/name[:file]`). `drafter` is "stack" (suffix and the draft model, whichever promises more: the
    default when `draft` is given), "model" (the default when a number is given for `k`, too), "suffix", "lookup",
    "none" (the default without `draft`) or a Drafter. `k` "auto" chooses source and length for every round
    (`AdaptiveLength`; passes are timed the first time a model is used on this machine), a number drafts that many
    tokens in each. `policy` takes the place of both. `verifier` is "block" or "chain". `trace` names a file that gets a
    line of JSON for every pass (`TracedPolicy`).

    `runtime` and `draft_runtime` are "native" (on the CPU, weights as they are stored), "torch" (any served model, on a
    CPU or CUDA) or "auto": native for GGUF files that it serves, where neither `device` nor `dtype` asks for what torch
    alone has, and for transformers directories whose weights are to be rounded. The two may differ. `quantize` rounds
    the target's float matrices (F32, F16, BF16) while the native runtime loads them: "q4", "q8_0" or "bf16". `device`
    and `dtype` are settings of torch; `dtype` "auto" takes what the device computes fast. `strict` makes a row
    independent, bit for bit, of what shares its pass, so that text is equal to plain decoding's: torch then pads every
    pass to one shape (slower), the native runtime is always so.

    `context_length` and `draft_context` (tokens) lower the models' own. Cheaper drafts, none of which changes the text:
    `draft_vocabulary` cuts the draft's output head to the N most used tokens (q has no mass elsewhere; see
    `drafting/vocabulary.py`), `draft_context` lets it see so many of the latest tokens (see `ModelDrafter`),
    `draft_requantise` rounds a native draft model's weights to 4 bits at load, `draft_min_confidence` ends a draft
    early where the draft model is unsure (see `ModelDrafter`).
    """
    if k != "auto":
        whole("k", k, 0, None, "'auto', or a whole number of at least 0")
    kind = _drafter_kind(drafter, draft, "stack" if k == "auto" else "model")
    if verifier not in RULES:
        raise ParameterError("verifier", f"{verifier!r} is not allowed", f"one of {', '.join(RULES)}")
    if policy is not None:
        parts_of("policy", policy, ("plan", "update", "release"), "Policy")
    if kind == "own":
        parts_of("drafter", drafter, ("needs", "prospects", "propose", "observe", "release"), "Drafter")
    if policy is not None and kind == "none":
        raise ParameterError("policy", "nothing drafts, so there is nothing to plan", "give draft=NAME or a drafter")
    for name, value in (("draft_context", draft_context), ("draft_vocabulary", draft_vocabulary)):
        if value is not None:
            whole(name, value, 1, None, "a whole number of at least 1")
    real("draft_min_confidence", draft_min_confidence, 0.0, 1.0, "between 0 (never end early) and 1")
    flag("strict", strict)
    flag("draft_requantise", draft_requantise)
    for name, given in (("device", device), ("dtype", dtype)):
        if not isinstance(given, str):
            raise ParameterError(name, f"{shown(given)} is not allowed", "give a name, for example 'auto'")
    of_draft = {
        "draft_context": draft_context,
        "draft_vocabulary": draft_vocabulary,
        "draft_runtime": draft_runtime if draft_runtime != "auto" else None,
        "draft_requantise": draft_requantise or None,
        "draft_min_confidence": draft_min_confidence or None,
    }
    unused = [name for name, value in of_draft.items() if value is not None and kind not in MODEL_DRAFTERS]
    if unused:
        raise ParameterError(unused[0], "needs a draft model", "give draft=NAME")
    if context_length is not None:
        whole("context_length", context_length, 2, None, "a whole number of at least 2")
    scheduler = Scheduler(max_sequences)
    if trace is not None:
        _trace_file(trace).close()  # what cannot be written is refused before weights are read

    from forerun.models.pull import resolve
    from forerun.models.tokenizer import load_tokenizer
    from forerun.models.vocabulary import require_same_vocabulary

    files = resolve(str(target), mirror=mirror, progress=progress)
    tokenizer = load_tokenizer(files.path)
    settings: dict[str, Any] = {"device": device, "dtype": dtype, "strict": strict}
    of_target = choose(files.path, files.kind, runtime, context_length=context_length, quantize=quantize, **settings)
    of_target.check()
    choices, of_draft_model = [(files.name, of_target)], None
    if kind in MODEL_DRAFTERS and draft is not None:
        draft_files = resolve(str(draft), mirror=mirror, progress=progress)
        require_same_vocabulary(tokenizer, load_tokenizer(draft_files.path))
        of_draft_model = choose_draft(
            draft_files, tokenizer, draft_runtime, context=draft_context, vocabulary=draft_vocabulary,
            requantise=draft_requantise, **settings,
        )  # fmt: skip
        choices.append((draft_files.name, of_draft_model))
    _check_runtimes([choice for _, choice in choices], device, dtype)
    for name, choice in choices:
        if choice.reason and progress is not None:
            progress.note(f"{name}: on the torch runtime, since {choice.reason}")
    draft_model = of_draft_model.load(progress) if of_draft_model is not None else None
    model = of_target.load(progress)
    if kind == "none":
        policy = FixedLength(0)
    elif policy is None:
        policy = FixedLength(int(k)) if k != "auto" else _adaptive(of_target, model, of_draft_model, draft_model)
    chosen: Drafter | None
    if draft_model is not None:
        by_model = ModelDrafter(draft_model, draft_context, draft_min_confidence, meter=getattr(policy, "meter", None))
        chosen = StackDrafter([SuffixDrafter(), by_model]) if kind == "stack" else by_model
    elif kind in COPIERS:
        chosen = COPIERS[kind]()
    else:
        chosen = drafter if drafter is not None and not isinstance(drafter, str) else None
    return LLM(
        model,
        tokenizer,
        chosen,
        policy if trace is None else _traced(policy, _trace_file(trace)),
        rules=RULES[verifier],
        scheduler=scheduler,
    )


def _adaptive(of_target: Choice, target: Model, of_draft: Choice | None, draft: Model | None) -> AdaptiveLength:
    """The adaptive policy, with curves of an earlier start where there are any."""
    from forerun.runtime.kept_costs import kept_curve

    cost = PassCost(kept_curve(of_target, target.cost))
    if of_draft is None or draft is None:
        return AdaptiveLength(cost)
    return AdaptiveLength(cost, PassCost(kept_curve(of_draft, draft.cost)))


def _trace_file(path: str | Path) -> TextIO:
    """A file for lines, each written at once. What is in it stays until the LLM is made; InputError where it cannot be
    written to, and where it holds anything but a trace."""
    if not isinstance(path, str | Path):
        raise ParameterError("trace", f"{shown(path)} is not allowed", "give the name of a file")
    path = Path(path)
    try:
        if path.is_file():
            with path.open("rb") as before:
                if before.read(len(TRACE_BEGINS)) not in (b"", TRACE_BEGINS.encode()):
                    raise InputError("the file exists and is no trace", str(path), "name another file")
        return path.open("a", encoding="utf-8", buffering=1)
    except OSError as error:
        raise InputError(f"cannot write the trace: {error.strerror}", str(path), "name another file") from error


def _traced(policy: Policy, file: TextIO) -> TracedPolicy:
    with contextlib.suppress(OSError):  # a pipe or a terminal has nothing to drop
        file.truncate(0)

    def write(line: str) -> None:
        if file.closed:
            return
        try:
            file.write(line)
        except OSError as error:  # a full disk is no reason to lose the text
            with contextlib.suppress(OSError):
                file.close()
            warnings.warn(
                f"tracing to {file.name} ends here (the text is unaffected): {error}", RuntimeWarning, stacklevel=2
            )

    return TracedPolicy(policy, write, file.close)


_DRAFT_NAMES = {
    "context_length": "draft_context", "head_ids": "draft_vocabulary", "runtime": "draft_runtime",
    "requantise": "draft_requantise",
}  # fmt: skip
"""What a runtime calls a setting of the draft model, and what the user called it."""


def choose_draft(
    files: ModelFiles,
    tokenizer: Tokenizer,
    runtime: str = "auto",
    *,
    context: int | None = None,
    vocabulary: int | None = None,
    requantise: bool = False,
    **settings: Any,
) -> Choice:
    """The runtime for a draft model of the target's vocabulary (whose `tokenizer` is given), checked without reading
    weights. `context`, `vocabulary` and `requantise` are `load`'s draft_context and so on, and a refusal says so;
    `settings` as for `choose`."""
    kept = None if vocabulary is None else head_ids(tokenizer, vocabulary)
    try:
        choice = choose(
            files.path, files.kind, runtime, context_length=context, head_ids=kept, requantise=requantise, **settings
        )
        choice.check()
    except ParameterError as error:
        raise ParameterError(_DRAFT_NAMES.get(error.name, error.name), error.reason, error.remedy) from error
    return choice


def _check_runtimes(choices: Sequence[Choice], device: str, dtype: str) -> None:
    """Refuse settings of torch that no model takes, and rows on two devices. The target comes first."""
    if all(choice.runtime == "native" for choice in choices):
        for name, value, fine in (("device", device, ("auto", "cpu")), ("dtype", dtype, ("auto",))):
            if value not in fine:
                fact = f"{value!r} is for the torch runtime: the native one computes on the CPU with the stored weights"
                raise ParameterError(name, fact, "leave it out, or give runtime='torch'")
    if choices[0].runtime == "torch" and choices[-1].runtime == "native" and runs_on_accelerator(device):
        raise ParameterError(
            "draft_runtime", "'native' drafts on the CPU, and the target is not there", "give device='cpu'"
        )


def _drafter_kind(drafter: str | Drafter | None, draft: str | Path | None, default: str) -> str:
    """Which drafter the settings name; contradictions are refused, so that no draft is silently unused."""
    if drafter is None:
        return default if draft is not None else "none"
    if not isinstance(drafter, str):
        if draft is not None:
            raise ParameterError(
                "drafter", "an own drafter was given together with a draft model", "give one of the two"
            )
        return "own"
    if drafter not in DRAFTERS:
        raise ParameterError("drafter", f"{drafter!r} is not allowed", f"one of {', '.join(DRAFTERS)}, or a Drafter")
    if drafter in MODEL_DRAFTERS and draft is None:
        remedy = "give draft=NAME" if drafter == "model" else "give draft=NAME, or drafter='suffix'"
        raise ParameterError("drafter", f"{drafter!r} needs a draft model", remedy)
    if drafter not in MODEL_DRAFTERS and draft is not None:
        raise ParameterError(
            "drafter", f"{drafter!r} would leave the draft model {str(draft)!r} unused", "drop one of the two"
        )
    return drafter
