"""Control: how long to draft. Speed may depend on it; text may not."""

from forerun.control.policy import FixedLength, Load, Policy

__all__ = ["FixedLength", "Load", "Policy"]
