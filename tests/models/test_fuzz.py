"""The harnesses of fuzz/ work, and a few hundred random edits of tiny models find nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the harnesses limit time by a signal that Windows lacks")
@pytest.mark.parametrize("name", ["gguf", "tokenizer"])
def test_random_edits_end_in_errors_of_ours_or_work(name: str, tmp_path: Path) -> None:
    """Each run has the same edits; `make fuzz` has more, and sanitizers."""
    folders = {"FUZZ_FINDINGS": "found", "FUZZ_BASES": "none", "FUZZ_SCRATCH": "", "FORERUN_HOME": "home"}
    environment = {**os.environ, **{key: str(tmp_path / folder) for key, folder in folders.items()}}
    command = [sys.executable, "-m", "fuzz.plain", name, "250", "1"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + "".join(path.read_text() for path in tmp_path.glob("found/*.txt"))
    for word in ("fine", "FileFormatError", "UnsupportedModelError"):
        assert word in done.stdout
