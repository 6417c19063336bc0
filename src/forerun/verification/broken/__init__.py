"""Deliberately broken parts, each a fault that an engine has had or could have.

They exist to be caught: every entry of `BROKEN` is killed by a named test at level 1 (enumeration) or 2 (statistics),
and `audit` shows its power by running them as controls beside the real thing. Never use one to write text.
"""

from collections.abc import Mapping

from forerun.verification.broken.parts import Broken
from forerun.verification.broken.processing import BROKEN_PROCESSING
from forerun.verification.broken.rules import BROKEN_RULES
from forerun.verification.broken.trees import BROKEN_TREES

BROKEN: Mapping[str, Broken] = {**BROKEN_RULES, **BROKEN_TREES, **BROKEN_PROCESSING}
"""Every fault by name."""

__all__ = ["BROKEN", "BROKEN_PROCESSING", "BROKEN_RULES", "BROKEN_TREES", "Broken"]
