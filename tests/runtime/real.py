"""Real weights for slow tests: whatever `make demo` has pulled into the cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from forerun.errors import ModelError


def pulled(name: str) -> Path:
    """The file of a registered model; the test is skipped, with the reason, where it cannot be had."""
    from forerun.models.pull import resolve

    try:
        return Path(resolve(name).path)
    except ModelError as error:
        pytest.skip(f"{name} is not here: {error}")
