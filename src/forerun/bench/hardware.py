"""What a figure was measured on: machine, versions and commit. A figure without them is worth nothing."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import forerun
from forerun.bench.probe import available_cores
from forerun.version import __version__

ISA_FLAGS = (
    *("avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_bf16", "amx_int8", "asimd", "asimddp", "i8mm", "bf16", "sve", "sve2"),
)
"""Instruction sets that decide how fast a matrix is multiplied."""

PACKAGES = ("torch", "transformers", "numpy", "tokenizers", "gguf")


def hardware() -> dict[str, Any]:
    """Processor, cores, memory, instruction sets and GPU of this machine."""
    fields = _cpuinfo()
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    model = fields.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in fields:
        model = f"{model} (family {fields['cpu family']}, model {fields.get('model', '?')})"
    return {
        "cpu": model,
        "cores": available_cores(),
        "memory_gb": _memory_gb(),
        "isa": [flag for flag in ISA_FLAGS if flag in flags],
        "gpu": _gpu(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions() -> dict[str, str | None]:
    """Versions of forerun, Python and the packages that do the work; None: not installed."""
    found: dict[str, str | None] = {"forerun": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def commit() -> str:
    """The commit of the source tree forerun runs from, "-dirty" if tracked files differ; else its version."""
    package = Path(forerun.__file__).resolve().parent
    root = _git(package, "rev-parse", "--show-toplevel")
    # An installed copy may lie inside somebody else's repository, whose commit says nothing about forerun.
    if root is None or Path(root).resolve() / "src" / "forerun" != package:
        return f"forerun {__version__}"
    head = _git(package, "rev-parse", "HEAD") or f"forerun {__version__}"
    return f"{head}-dirty" if _git(package, "status", "--porcelain", "--untracked-files=no") else head


def provenance(command: str) -> dict[str, Any]:
    """Command, commit, time, machine and versions: what every document of a bench begins with."""
    return {
        "command": command,
        "commit": commit(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "hardware": hardware(),
        "versions": versions(),
    }


def _git(directory: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _cpuinfo() -> dict[str, str]:
    """The fields of the first processor in Linux' /proc/cpuinfo; empty elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (AttributeError, ValueError, OSError):
        return None


def _gpu() -> str | None:
    """The CUDA device's name, where torch has been loaded and sees one."""
    torch = sys.modules.get("torch")
    return str(torch.cuda.get_device_name()) if torch is not None and torch.cuda.is_available() else None
