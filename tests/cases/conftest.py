"""The command line with toy models, as in tests/cli."""

from __future__ import annotations

from tests.cli.conftest import invoke

__all__ = ["invoke"]
