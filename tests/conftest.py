"""What every test shares: nothing leaves this machine, and what was not run is said at the end."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from .programs import find_program

if "PYTEST_XDIST_WORKER_COUNT" in os.environ:  # before torch is imported: each worker's takes its share of the cores
    share = (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(share, 1)))
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job, whose children would ignore it too: those that tests send one to would never end.
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

settings.register_profile("forerun", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("forerun")

THOROUGH = "1" in (os.environ.get("FORERUN_THOROUGH"), os.environ.get("FORERUN_FULL"))
_not_run: list[str] = []
"""Of this process; workers hand theirs to the process that reports."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What needs a CUDA device or programs that are not here is listed as not run, never silently dropped."""
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_items and not _has_gpu():
        for item in gpu_items:
            _skip(item, "no CUDA device on this machine")
    if not any("::" in arg for arg in config.args) and not config.getoption("lf", False):
        _check_marks(items)
    for item in items:
        marker = item.get_closest_marker("thorough")
        if marker is not None and not THOROUGH and _takes_long(item, marker):
            _skip(item, "takes long: FORERUN_THOROUGH=1 runs it (CI does)")
        wanted = [program for marker in item.iter_markers("needs") for program in marker.args]
        missing = [program for program in wanted if find_program(program) is None]
        if missing:
            _skip(item, f"not installed here: {', '.join(missing)}")


def _check_marks(items: list[pytest.Item]) -> None:
    """Refuse a part of a marker that is in no id of its test: a case was renamed, and runs where it should not. All
    cases of each test are wanted: a few that were named by hand, or those that failed last, tell nothing."""
    marked = [(item, marker) for item in items if (marker := item.get_closest_marker("thorough")) is not None]
    identities: dict[str, list[str]] = {}
    for item, _ in marked:
        name, _, identity = item.nodeid.partition("[")
        identities.setdefault(name, []).append(identity)
    for item, marker in marked:
        of_test = identities[item.nodeid.partition("[")[0]]
        lost = [
            part for part in (*marker.args, *marker.kwargs.get("but", ())) if not any(part in one for one in of_test)
        ]
        if lost:
            raise pytest.UsageError(f"thorough: {lost} names no case of {item.nodeid.partition('[')[0]}")


def _takes_long(item: pytest.Item, marker: pytest.Mark) -> bool:
    """Whether an item's id has one of the marker's parts, or none of ``but``; any item's, without either."""
    identity = item.name.partition("[")[2]
    if marker.kwargs.keys() - {"but"} or (marker.args and marker.kwargs):
        raise pytest.UsageError(f"thorough of {item.nodeid} takes parts of ids, or but=parts, and nothing else")
    if marker.kwargs:
        return not any(part in identity for part in marker.kwargs["but"])
    return not marker.args or any(part in identity for part in marker.args)


def _skip(item: pytest.Item, reason: str) -> None:
    item.add_marker(pytest.mark.skip(reason=reason))
    _not_run.append(f"{item.nodeid}: {reason}")


def pytest_deselected(items: list[pytest.Item]) -> None:
    _not_run.extend(f"{item.nodeid}: deselected by -m or -k" for item in items)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["not_run"] = _not_run


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A worker has ended: every worker collects every test, so one's list is all."""
    for line in getattr(node, "workeroutput", {}).get("not_run", ()):
        if line not in _not_run:
            _not_run.append(line)


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
