"""What is refused before any model is looked at, and what is said about settings that have no effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forerun.cli.options import flag_names
from forerun.cli.report import say

if TYPE_CHECKING:
    from forerun.sampling import SamplingParams

NEEDED = {
    "include_stop_string": ("stop",),
    "logprobs_kind": ("logprobs", "best_of"),
}
"""Parameter -> those of which it needs one to mean anything."""


def check_params(params: dict[str, Any]) -> SamplingParams:
    """The parameters, each in range; a pattern, grammar or schema is compiled over the 256 bytes, which finds
    everything wrong with it but what only the model's vocabulary can tell."""
    from forerun.sampling import SamplingParams

    sampling = SamplingParams.from_keywords(params)
    if sampling.structure is not None:
        from forerun.constraints.grammar import COMPILERS
        from forerun.constraints.vocabulary import Vocabulary

        kind, given = sampling.structure
        COMPILERS[kind](given, Vocabulary(256, lambda token: bytes([token])))
    return sampling


def note_unused(settings: dict[str, Any], params: dict[str, Any]) -> None:
    """Say which settings have no effect beside the others."""
    names = flag_names()
    if not has_drafter(settings):
        for name in ("k", "verifier"):
            if settings.get(name) not in (None, 0):
                say(f"note: {names[name]} has no effect without --draft MODEL or --drafter lookup")
    for name, needed in NEEDED.items():
        if name in params and not any(other in params for other in needed):
            say(f"note: {names[name]} has no effect without {' or '.join(names[other] for other in needed)}")


def has_drafter(settings: dict[str, Any]) -> bool:
    """Whether these settings draft at all."""
    return "draft" in settings or settings.get("drafter", "none") != "none"
