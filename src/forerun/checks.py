"""Checks of single values: what is refused is refused with its name, what was given and what is needed."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from forerun.errors import ParameterError


def real(name: str, value: Any, low: float, high: float, need: str, *, open_low: bool = False) -> None:
    """Refuse a value that is not a finite number in [low, high] ((low, high] with `open_low`)."""
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # a whole number too large for a float
        number = math.inf
    if not (math.isfinite(number) and low <= number <= high) or (open_low and number <= low):
        raise ParameterError(name, f"{shown(value)} is not allowed", need)


def whole(name: str, value: Any, low: int, high: int | None, need: str) -> None:
    """Refuse a value that is not a whole number in [low, high]."""
    fine = isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= low
    if not fine or (high is not None and int(value) > high):
        raise ParameterError(name, f"{shown(value)} is not allowed", need)


def flag(name: str, value: Any) -> None:
    """Refuse a value that is neither True nor False: the string "no" would count as true."""
    if not isinstance(value, bool):
        raise ParameterError(name, f"{shown(value)} is not allowed", "True or False")


def parts_of(name: str, value: Any, wanted: Collection[str], what: str) -> None:
    """Refuse an object that lacks what the protocol `what` asks for: later it would fail in the middle of a text."""
    missing = [one for one in wanted if not hasattr(value, one)]
    if missing:
        raise ParameterError(
            name, f"a {type(value).__name__} has no {' and no '.join(missing)}", f"a {what} has {', '.join(wanted)}"
        )


def token_ids(name: str, value: Any) -> tuple[int, ...]:
    """A sequence of token ids as a tuple of plain integers."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise ParameterError(name, f"a sequence of token ids is needed, not {shown(value)}")
    for token in value:
        whole(name, token, 0, None, "token ids are whole numbers of at least 0")
    return tuple(int(token) for token in value)


def inside(name: str, ids: Iterable[int], vocabulary_size: int) -> None:
    """Refuse a token id that the model does not have."""
    outside = next((token for token in ids if not 0 <= token < vocabulary_size), None)
    if outside is not None:
        raise ParameterError(name, f"token id {outside} is outside the model's vocabulary, 0..{vocabulary_size - 1}")


def listed(text: str) -> tuple[str, ...]:
    """The parts of a list with commas, in order and each once."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def some_of(name: str, text: str, known: Collection[str], also: str = "") -> tuple[str, ...]:
    """`listed`, where every part has to be one of `known`. `also` is what the refusal names beside them."""
    names = listed(text)
    unknown = next((one for one in names if one not in known), None)
    if unknown is not None or not names:
        raise ParameterError(name, f"{unknown or text!r} is not known", f"{also}some of {','.join(known)}")
    return names


def writable(name: str, path: Path) -> None:
    """Refuse a file that cannot be written because of where it would lie."""
    place = path if path.exists() else path.absolute().parent
    if path.is_dir() or not path.absolute().parent.is_dir() or not os.access(place, os.W_OK):
        raise ParameterError(
            name, f"{str(path)!r} cannot be written", "name a file in a directory that exists and may be written to"
        )


def shown(value: Any) -> str:
    """`repr`, cut where it would fill a screen; never an error of its own."""
    try:
        text = repr(value)
    except ValueError:  # Python writes out no whole number of more than 4300 digits
        text = f"a whole number of {value.bit_length()} bits" if isinstance(value, int) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."
