"""Paths of the registered models, for slow tests in modules whose FORERUN_HOME is their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forerun.models.pull import resolve

_HOME = os.environ.get("FORERUN_HOME")


def real_file(name: str) -> Path:
    """The file of a registered model in the cache this test run was started with, fetched if need be."""
    with pytest.MonkeyPatch.context() as patch:
        if _HOME is None:
            patch.delenv("FORERUN_HOME", raising=False)
        else:
            patch.setenv("FORERUN_HOME", _HOME)
        return resolve(name).path
