"""A harness with random edits and nothing else: no coverage, no atheris, many more inputs a second.

python -m fuzz.plain gguf|tokenizer|safetensors RUNS SEED; FUZZ_BASES names the folder that fuzz/bases.py filled.
"""

from __future__ import annotations

import contextlib
import importlib
import random
import signal
import sys
import types
from collections import Counter


class Random:
    """In place of atheris.FuzzedDataProvider: the input seeds a generator."""

    def __init__(self, data: bytes) -> None:
        self._random = random.Random(data)

    def ConsumeIntInRange(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def ConsumeBool(self) -> bool:
        return self._random.random() < 0.5

    def ConsumeBytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def ConsumeUnicode(self, count: int) -> str:
        tops = self._random.choices((0x80, 0x800, 0x110000), k=count)
        return "".join(chr(self._random.randrange(top)) for top in tops)

    def ConsumeUnicodeNoSurrogates(self, count: int) -> str:
        return self.ConsumeUnicode(count).encode("utf-8", "replace").decode()


def main(name: str, runs: int, seed: int) -> int:
    """Prints what came of the inputs; 1 if anything but ForerunError came out of one."""
    stub = types.ModuleType("atheris")
    stub.FuzzedDataProvider = Random  # type: ignore[attr-defined]
    stub.instrument_imports = lambda **_: contextlib.nullcontext()  # type: ignore[attr-defined]
    sys.modules["atheris"] = stub
    harness = importlib.import_module(f"fuzz.fuzz_{name}")
    from fuzz import common

    found: Counter[str] = Counter()
    generator = random.Random(seed)
    signal.signal(signal.SIGPROF, common.late)
    for _ in range(runs):
        found[common.run(harness.one, generator.randbytes(16), name)] += 1
    print(dict(found))
    return int(bool(found["finding"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
