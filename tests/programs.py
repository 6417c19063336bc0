"""Programs that some tests need."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def find_program(name: str) -> str | None:
    """Where a program is: on PATH, or beside the Python that runs the tests (an environment that is not activated)."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)]))
