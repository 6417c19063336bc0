"""Values of a GGUF file's metadata, checked: keys are those of its architecture, without the architecture's name."""

from __future__ import annotations

import numpy as np

from forerun.errors import FileFormatError
from forerun.models.decoder_model import ANOTHER_FILE, unsupported
from forerun.models.gguf import GGUFFile


def number(file: GGUFFile, key: str, default: int | None = None) -> int:
    """A whole number of the architecture's metadata; a list of equal ones counts as one."""
    name = f"{file.architecture}.{key}"
    value = file.metadata.get(name, default)
    if isinstance(value, (list, tuple, np.ndarray)):
        if len(set(value)) != 1:
            raise unsupported(file, name, "it differs from layer to layer")
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise FileFormatError(f"{file.path} has no valid {name}", f"found {value!r}"[:200], ANOTHER_FILE)
    return int(value)


def real(file: GGUFFile, key: str, default: float, may_be_off: bool = False) -> float:
    """A positive number of the architecture's metadata, or zero if it `may_be_off`."""
    name = f"{file.architecture}.{key}"
    value = file.metadata.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not 0 <= value < np.inf:
        raise FileFormatError(f"{file.path} has no valid {name}", f"found {value!r}"[:200], ANOTHER_FILE)
    if value == 0 and not may_be_off:
        raise FileFormatError(f"{file.path} has no valid {name}", f"found {value!r}"[:200], ANOTHER_FILE)
    return float(value)
