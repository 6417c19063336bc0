"""The models that harnesses edit: one of every family that the native runtime serves, a few kilobytes each.

python -m fuzz.bases FOLDER, without a sanitizer: it builds them with torch and transformers.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.runtime.as_gguf import write_gguf
from tests.runtime.families import CASES
from tests.runtime.tiny import tiny


def main(folder: Path) -> None:
    """GGUF files as FOLDER/*.gguf, transformers directories as FOLDER/*/."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, (name, case) in enumerate(CASES.items()):
        stem = re.sub(r"[^a-z0-9]+", "-", name)
        module = tiny(case.name, **case.changes)
        kind = ("F16", "F32", "BF16", "Q8_0")[index % 4]
        widths = {weight.shape[-1] for weight in module.parameters() if weight.ndim > 1}
        kind = "F16" if kind == "Q8_0" and any(width % 32 for width in widths) else kind
        write_gguf(folder / f"{stem}.gguf", module, case.architecture, kind, metadata=case.metadata)
        if case.architecture != "mistral3":
            module.save_pretrained(folder / stem)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
