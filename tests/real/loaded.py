"""Real weights for levels 3 and 4: a model, what may draft for it, and texts of HumanEval prompts.

The names of drafters and speculation lengths are those of the test ids and of the ladder's options.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from tests.verification.policies import Adaptive

from forerun.bench.workloads import load_workload
from forerun.control import FixedLength, FixedTree, Policy
from forerun.drafting import Drafter, LookupDrafter, ModelDrafter, StackDrafter, SuffixDrafter
from forerun.drafting.vocabulary import head_ids
from forerun.models.pull import resolve
from forerun.models.tokenizer import load_tokenizer
from forerun.runtime.base import Model
from forerun.runtime.native import load_native_model

NAME = "qwen2.5-coder-0.5b"
Length = int | str
"""How much a round drafts: a number of tokens, "2x2x1" (a tree, children by depth) or "adaptive"."""
LENGTHS: tuple[Length, ...] = (1, 3, 5, 8, "2x2x1", "adaptive")
DRAFTERS = ("self", "lookup", "suffix", "copy", "top", "stack")
COPY_VOCABULARY = 8192
"""Tokens of the copy's head: what only the target writes, it cannot draft."""


class Twin:
    """The same weights as a second model: sequence ids are moved, so that target and draft caches stay apart."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.capabilities = model.capabilities

    def begin(self, sequence_id: int) -> None:
        self._model.begin(-1 - sequence_id)

    def forward(self, spans: Sequence[Any]) -> Any:
        return self._model.forward([dataclasses.replace(span, sequence_id=-1 - span.sequence_id) for span in spans])

    def keep(self, sequence_id: int, length: int, path: tuple[int, ...] = ()) -> None:
        self._model.keep(-1 - sequence_id, length, path)

    def length(self, sequence_id: int) -> int:
        return self._model.length(-1 - sequence_id)

    def fork(self, source: int, target: int, length: int) -> None:
        self._model.fork(-1 - source, -1 - target, length)

    def free(self, sequence_id: int) -> None:
        self._model.free(-1 - sequence_id)

    def cost(self) -> Any:
        return self._model.cost()


def make_policy(length: Length) -> Policy:
    """The adaptive policy lives by made-up costs (a pass takes 10 ms, a drafted token 3.5), so that what it drafts
    depends on the text alone and is the same in every run."""
    if isinstance(length, int):
        return FixedLength(length)
    if length == "adaptive":
        return Adaptive(dear=True, max_length=8, max_rows=48)
    return FixedTree([int(width) for width in length.split("x")])


class Loaded:
    """A model, of weights as they are stored ("native") or of torch's `dtype`, and the first HumanEval prompts."""

    def __init__(self, name: str, dtype: str, num_prompts: int, strict: bool = True) -> None:
        files = resolve(name)
        self._path = files.path
        self.tokenizer = load_tokenizer(files.path)
        self.model: Any
        if dtype == "native":
            self.model = load_native_model(files.path)
        else:
            from forerun.runtime.torch import load_torch_model

            self.model = load_torch_model(files.path, kind=files.kind, device="cpu", dtype=dtype, strict=strict)
        self.tasks = load_workload("humaneval", num_prompts)
        self.prompts = [self.tokenizer.encode(task.prompt) for task in self.tasks]

    @cached_property
    def copy(self) -> Model:
        """A draft model that is often wrong: the same weights rounded anew, in the native runtime, with a cut head."""
        return load_native_model(self._path, requantise=True, head_ids=head_ids(self.tokenizer, COPY_VOCABULARY))

    def drafter(self, name: str | None) -> Drafter | None:
        """ "self" is accepted always, "copy" and "top" (its likeliest tokens) are not, "stack" is suffix and copy."""
        made: Mapping[str | None, Callable[[], Drafter | None]] = {
            "self": lambda: ModelDrafter(Twin(self.model)),
            "copy": lambda: ModelDrafter(self.copy),
            "top": lambda: ModelDrafter(self.copy, candidates="top"),
            "stack": lambda: StackDrafter([SuffixDrafter(), ModelDrafter(self.copy)]),
            "lookup": LookupDrafter,
            "suffix": SuffixDrafter,
            None: lambda: None,
        }
        return made[name]()
