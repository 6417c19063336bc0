"""Measured cost curves on disk: passes of a model are timed once on a machine, not at every start.

FORERUN_HOME/costs/KEY.json. KEY covers the model's files (size and time of change), how they are loaded, the runtime
and its version, the processor, the cores that may be used and the threads: what may change the curve's shape. Speed
itself changes from second to second, so whoever decides by a curve corrects it while passes are made.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from forerun import _native
from forerun.models.store import home
from forerun.runtime.select import Choice
from forerun.types import CostCurve


def kept_curve(choice: Choice, measure: Callable[[], CostCurve]) -> CostCurve:
    """The curve of a model that was loaded as `choice` says: the kept one, or what `measure` finds, kept from now on.
    A directory that cannot be written to costs a measurement at every start and nothing else."""
    path = home() / "costs" / f"{_key(choice)}.json"
    found = _read(path)
    if found is None:
        found = measure()
        with contextlib.suppress(OSError):
            _write(path, found, choice)
    return found


def _read(path: Path) -> CostCurve | None:
    """A kept curve; None where there is none, or no sound one."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        curve = CostCurve(
            int(document["context"]), {int(rows): float(ms) for rows, ms in document["milliseconds"].items()}
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    is_sound = bool(curve.milliseconds) and all(
        rows >= 1 and 0.0 < ms < math.inf for rows, ms in curve.milliseconds.items()
    )
    return curve if is_sound else None


def _write(path: Path, curve: CostCurve, choice: Choice) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"model": choice.path.name, "context": curve.context, "milliseconds": curve.milliseconds}
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".partial")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump(document, out, indent=1)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _key(choice: Choice) -> str:
    files = sorted(choice.path.rglob("*")) if choice.path.is_dir() else [choice.path]
    stamps = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()]
    settings = {name: _plain(value) for name, value in choice.settings.items()}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    machine = [platform.machine(), _processor(), cores, _native.num_threads(), _native.isa()]
    parts = [str(choice.path.absolute()), stamps, sorted(settings.items()), choice.runtime, _versions(), machine]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _plain(value: Any) -> str:
    """A setting by its value; arrays, of which `repr` shows but a part, by their bytes."""
    return hashlib.sha256(value.tobytes()).hexdigest() if hasattr(value, "tobytes") else repr(value)


def _versions() -> list[str]:
    module = Path(str(_native.__file__)).stat()
    found = [f"{module.st_size} {module.st_mtime_ns}"]
    for package in ("forerun", "torch"):
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{package} {version(package)}")
    return found


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
