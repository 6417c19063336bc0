"""The engine: continuous batching over one loop, plan -> propose -> forward -> verify -> commit."""

from forerun.engine.engine import Engine
from forerun.engine.kept import KeptTexts
from forerun.engine.scheduler import Scheduler
from forerun.engine.sequence import Sequence, Service
from forerun.engine.statistics import Statistics

__all__ = ["Engine", "KeptTexts", "Scheduler", "Sequence", "Service", "Statistics"]
