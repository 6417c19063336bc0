"""Drafters: where draft tokens come from. One file each; `base.py` is the protocol, `scripted.py` the test doubles."""

from collections.abc import Callable

from forerun.drafting.base import Drafter, NoDrafter, SequenceView
from forerun.drafting.lookup import LookupDrafter
from forerun.drafting.model import ModelDrafter
from forerun.drafting.shared import SharedTexts
from forerun.drafting.stack import StackDrafter
from forerun.drafting.suffix import SuffixDrafter

COPIERS: dict[str, Callable[[], Drafter]] = {"lookup": LookupDrafter, "suffix": SuffixDrafter}
"""Drafters that copy earlier text and cost no passes, by name: a new one is one more line."""

__all__ = [
    "COPIERS",
    "Drafter",
    "LookupDrafter",
    "ModelDrafter",
    "NoDrafter",
    "SequenceView",
    "SharedTexts",
    "StackDrafter",
    "SuffixDrafter",
]
