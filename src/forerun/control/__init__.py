"""Control: how long to draft. Speed may depend on it; text may not."""

from forerun.control.fixed_tree import FixedTree
from forerun.control.policy import FixedLength, Load, Policy

__all__ = ["FixedLength", "FixedTree", "Load", "Policy"]
