"""From names to loaded models and encoded prompts. What can be refused is refused before weights are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forerun.bench.weights import bytes_per_pass
from forerun.bench.workloads import RandomIds, Task
from forerun.drafting import COPIERS
from forerun.errors import InputError, ParameterError, PromptError
from forerun.llm import LLM, Prompt
from forerun.loading import choose_draft
from forerun.planning.run import Ready
from forerun.planning.shapes import parse_shape, shape_of_files
from forerun.planning.vocabularies import SAME, compared, told
from forerun.runtime.select import Choice, choose

if TYPE_CHECKING:
    from forerun.models.progress import Progress
    from forerun.models.store import ModelFiles


@dataclass(frozen=True, slots=True)
class Loading:
    """Settings of `forerun.load`, under the same names."""

    runtime: str = "auto"
    draft_runtime: str = "auto"
    device: str = "auto"
    dtype: str = "auto"
    quantize: str | None = None
    draft_vocabulary: int | None = None
    draft_requantise: bool = False
    mirror: bool | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """Models with their weights. `verdicts`: SAME, or in what a draft's vocabulary differs (those are left out)."""

    target: Ready
    drafts: Sequence[Ready]
    tokenizer: Any
    verdicts: Mapping[str, str]

    def encode(self, prompts: Sequence[Prompt | RandomIds]) -> tuple[list[list[int]], list[str]]:
        """(token ids of every prompt, notes). A chat is completed as plain text where the target has no template."""
        llm, found, num_plain = LLM(self.target.model, self.tokenizer), [], 0
        for prompt in prompts:
            try:
                found.append(Task("", prompt).encode(llm))
            except PromptError:
                parts = () if isinstance(prompt, RandomIds) else prompt
                texts = [one.get("content") for one in parts if isinstance(one, Mapping)]
                if not texts or not all(isinstance(text, str) for text in texts):
                    raise
                found.append(llm.encode("\n".join(str(text) for text in texts)))
                num_plain += 1
        note = f"{self.target.name} has no template for {num_plain} of the chats: their text is completed instead"
        return found, [note] * bool(num_plain)


def prepare(target: str, drafts: Sequence[str], loading: Loading, progress: Progress) -> Prepared:
    """Find, check and load. A draft of another vocabulary is left out with a verdict; where it is the only one there is
    nothing left to plan, and VocabularyMismatchError says what differs before anything is loaded."""
    from forerun.models.pull import resolve
    from forerun.models.tokenizer import load_tokenizer

    for name in (target, *drafts):
        if parse_shape(name) is not None:
            raise ParameterError("for", f"{name} is a shape, without weights to measure", "for example --for a100")
    for name in drafts:
        if name in COPIERS:
            raise InputError(
                f"{name} is the name of a drafter that every plan has", "",
                f"leave it out, or give the path of a model (./{name})",
            )  # fmt: skip
    files = {target: resolve(target, mirror=loading.mirror, progress=progress)}
    tokenizer = load_tokenizer(files[target].path)
    common: dict[str, Any] = {"device": loading.device, "dtype": loading.dtype}
    own = files[target]
    of_target = choose(own.path, own.kind, loading.runtime, quantize=loading.quantize, **common)
    choices: dict[str, Choice] = {}
    verdicts: dict[str, str] = {}
    for draft in drafts:
        files[draft] = resolve(draft, mirror=loading.mirror, progress=progress)
        difference = compared(tokenizer, load_tokenizer(files[draft].path))
        if difference is not None and len(drafts) == 1:
            raise difference
        verdicts[draft] = SAME if difference is None else told(difference)
        if difference is None:
            choices[draft] = choose_draft(
                files[draft], tokenizer, loading.draft_runtime, vocabulary=loading.draft_vocabulary,
                requantise=loading.draft_requantise, **common,
            )  # fmt: skip
    of_target.check()
    ready = _ready(target, of_target, own, progress)
    return Prepared(
        ready, [_ready(name, choice, files[name], progress) for name, choice in choices.items()], tokenizer, verdicts
    )


def _ready(name: str, choice: Choice, files: ModelFiles, progress: Progress) -> Ready:
    """The model, with what its files tell: the native runtime knows what a pass reads, for torch it follows."""
    model = choice.load(progress)
    known = getattr(model, "weight_bytes", None)
    shape = shape_of_files(name, files.path, files.kind)
    if known is None and shape is not None:
        size = int(getattr(getattr(model, "dtype", None), "itemsize", 4))
        known = bytes_per_pass(files.path, files.kind, size)
    return Ready(name, model, choice.runtime, shape, None if known is None else float(known))
