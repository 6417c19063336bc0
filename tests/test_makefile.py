"""The Makefile makes an environment once: pip compiles the native module a single time on a fresh machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PYTHON = """#!/bin/sh
echo "$@" >> {log}
case "$*" in *"-m venv"*) mkdir -p {venv}/bin && cp {python} {venv}/bin/python ;; esac
"""
"""Stands for Python: notes what it is asked, and makes an environment of itself."""


@pytest.mark.needs("make")
def test_an_environment_is_installed_into_once(tmp_path: Path) -> None:
    log, venv, python, source = (tmp_path / name for name in ("log", "venv", "python", "source.cpp"))
    python.write_text(PYTHON.format(log=log, venv=venv, python=python), encoding="utf-8")
    python.chmod(0o755)
    source.write_text("", encoding="utf-8")
    native = venv / ".forerun-native"

    def make() -> list[str]:
        """What was installed, each by the end of its command line."""
        log.write_text("", encoding="utf-8")
        done = subprocess.run(
            ["make", "-s", str(native), f"VENV={venv}", f"PYTHON={python}", f"SOURCES={source}"],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return [line for line in log.read_text(encoding="utf-8").splitlines() if " -e " in line]

    (first,) = make()
    assert first.endswith("-e .[dev]")
    assert make() == []
    later = native.stat().st_mtime + 10
    os.utime(source, (later, later))
    (again,) = make()
    assert again.endswith("--no-deps -e .")
