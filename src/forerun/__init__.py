"""forerun: exact speculative decoding. A draft proposes, the target checks, the text is the target's own.

    import forerun
    llm = forerun.load("qwen2.5-coder-1.5b", draft="qwen2.5-coder-0.5b", k=3)
    print(llm.generate("def fibonacci(n):", temperature=0, max_tokens=64).text)

Importing this package is cheap: models, tokenizers and torch are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forerun.errors import ForerunError
from forerun.version import __version__

if TYPE_CHECKING:
    from forerun.control import AdaptiveLength, FixedLength, FixedTree
    from forerun.drafting import LookupDrafter, ModelDrafter, NoDrafter, SharedTexts, StackDrafter, SuffixDrafter
    from forerun.llm import LLM, Stream
    from forerun.loading import load
    from forerun.result import Piece, Result, Usage
    from forerun.sampling import SamplingParams, StatefulProcessor
    from forerun.types import TokenLogprob

_HOMES = {
    "FixedLength": "forerun.control",
    "AdaptiveLength": "forerun.control",
    "FixedTree": "forerun.control",
    "LLM": "forerun.llm",
    "LookupDrafter": "forerun.drafting",
    "ModelDrafter": "forerun.drafting",
    "NoDrafter": "forerun.drafting",
    "Piece": "forerun.result",
    "Result": "forerun.result",
    "SamplingParams": "forerun.sampling",
    "SharedTexts": "forerun.drafting",
    "StackDrafter": "forerun.drafting",
    "StatefulProcessor": "forerun.sampling",
    "Stream": "forerun.llm",
    "SuffixDrafter": "forerun.drafting",
    "TokenLogprob": "forerun.types",
    "Usage": "forerun.result",
    "load": "forerun.loading",
}

__all__ = [
    "LLM",
    "AdaptiveLength",
    "FixedLength",
    "FixedTree",
    "ForerunError",
    "LookupDrafter",
    "ModelDrafter",
    "NoDrafter",
    "Piece",
    "Result",
    "SamplingParams",
    "SharedTexts",
    "StackDrafter",
    "StatefulProcessor",
    "Stream",
    "SuffixDrafter",
    "TokenLogprob",
    "Usage",
    "__version__",
    "load",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'forerun' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
