"""Values of a config.json, checked one by one. A value that is null counts as absent, as in transformers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from forerun.errors import FileFormatError
from forerun.models.decoder_model import ANOTHER_FILE


@dataclass(frozen=True, slots=True)
class Config:
    """`values` of the file `path`. Each reader raises FileFormatError for a value that cannot be, and for one that is
    absent where there is no default."""

    path: Path
    model_type: str
    values: Mapping[str, Any]

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self._get(name, default)
        if type(value) is not int or not 1 <= value < 1 << 31:
            raise self._invalid(name, value)
        return int(value)

    def real(self, name: str, default: float | None = None) -> float:
        """A finite number above 0; the default may be 0."""
        value = self._get(name, default)
        if not _is_finite(value) or (value <= 0 and not (value == default == 0)):
            raise self._invalid(name, value)
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self._invalid(name, value)
        return value

    def table(self, name: str) -> Mapping[str, Any]:
        """An object, empty where there is none."""
        value = self._get(name, {})
        if not isinstance(value, dict):
            raise self._invalid(name, value)
        return value

    def layers(self, name: str, num_layers: int, default: Sequence[Any]) -> Sequence[Any]:
        """A list with one entry for each layer."""
        value = self._get(name, default)
        if not isinstance(value, list) or len(value) != num_layers:
            raise self._invalid(name, value, f"; {num_layers} are needed, one for each layer")
        return value

    def reals(self, name: str, count: int) -> Sequence[float]:
        """`count` finite numbers above 0, rounded to float32, as transformers and GGUF files have them."""
        value = self._get(name, None)
        if isinstance(value, list) and len(value) == count and all(map(_is_finite, value)):
            with np.errstate(over="ignore", under="ignore"):
                numbers = np.array(value, dtype=np.float64).astype(np.float32)
            if ((numbers > 0) & (numbers < np.inf)).all():
                return [float(one) for one in numbers]
        raise self._invalid(name, value, f"; {count} positive numbers are needed")

    def invalid(self, name: str, why: str) -> FileFormatError:
        """The error for a setting that cannot be."""
        return FileFormatError(f"{self.path} has no valid {name}", why, ANOTHER_FILE)

    def _get(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        return default if value is None else value

    def _invalid(self, name: str, value: Any, needed: str = "") -> FileFormatError:
        return self.invalid(name, ("it is missing" if value is None else f"found {value!r}"[:200]) + needed)


def _is_finite(value: Any) -> bool:
    """Whether `value` is a number that a float can hold; JSON knows whole numbers that none can."""
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:
        return False
