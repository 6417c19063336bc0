"""The engine: continuous batching over one loop, plan -> propose -> forward -> verify -> commit."""

from forerun.engine.engine import Engine
from forerun.engine.scheduler import Scheduler
from forerun.engine.sequence import Sequence
from forerun.engine.statistics import Statistics

__all__ = ["Engine", "Scheduler", "Sequence", "Statistics"]
