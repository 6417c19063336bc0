"""Control: where drafts come from and how long they are. Speed may depend on it; text may not."""

from forerun.control.adaptive import AdaptiveLength
from forerun.control.cost import PassCost
from forerun.control.fixed_tree import FixedTree
from forerun.control.policy import FixedLength, Load, Policy

__all__ = ["AdaptiveLength", "FixedLength", "FixedTree", "Load", "PassCost", "Policy"]
