"""Inputs to begin with, long enough to hold several edits: python -m fuzz.seeds FOLDER."""

from __future__ import annotations

import random
import sys
from pathlib import Path

if __name__ == "__main__":
    generator = random.Random(0)
    for number in range(150):
        length = generator.choice((40, 80, 160, 300))
        Path(sys.argv[1], f"seed{number}").write_bytes(generator.randbytes(length))
