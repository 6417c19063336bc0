"""What an installed wheel must do where nothing else is: decode a tiny model, plainly and by speculation, alike.

    python tests/wheel_smoke.py

Run by cibuildwheel in a clean environment; it needs forerun and what forerun depends on, no test tools.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> int:
    import forerun
    from forerun import _native

    if (ROOT / "src") in Path(forerun.__file__).parents:
        print(f"forerun comes from the checkout, not from the wheel: {forerun.__file__}")
        return 1
    sys.path.insert(0, str(ROOT))
    from tests.models.tiny_gguf import write_tiny_gguf

    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        target = write_tiny_gguf(Path(folder) / "target.gguf", tensor_type="Q8_0")
        draft = write_tiny_gguf(Path(folder) / "draft.gguf", tensor_type="Q8_0", perturb=0.2)
        with forerun.load(target, runtime="native") as plain, forerun.load(target, draft=draft, k=3) as drafted:
            for settings in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 7}):
                texts = [
                    llm.generate("the time of", max_tokens=24, ignore_eos=True, **settings) for llm in (plain, drafted)
                ]
                same = texts[0].tokens == texts[1].tokens and len(texts[0].tokens) == 24
                print(f"{settings}: {'equal' if same else 'DIFFERENT'}, {texts[0].text!r}")
                failures += not same
    isas = ", ".join(_native.usable_isas())
    print(f"forerun {forerun.__version__}, instruction sets {isas}, python {sys.version.split()[0]}")
    return failures


if __name__ == "__main__":
    sys.exit(main())
