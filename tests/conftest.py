"""What every test shares: nothing leaves this machine, and what was not run is said at the end."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

settings.register_profile("forerun", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("forerun")

_not_run: list[str] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """GPU tests need a CUDA device; without one they are listed as not run, never silently dropped."""
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_items and not _has_gpu():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))
            _not_run.append(f"{item.nodeid}: no CUDA device on this machine")


def pytest_deselected(items: list[pytest.Item]) -> None:
    _not_run.extend(f"{item.nodeid}: deselected by -m or -k" for item in items)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _not_run:
        terminalreporter.section("not run, and why")
        for line in _not_run:
            terminalreporter.line(line)


def _has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())
