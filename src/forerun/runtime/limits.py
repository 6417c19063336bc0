"""Refused before weights are read: a bad environment, and limits (a model's context, its head) that are none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun import _native
from forerun.checks import shown
from forerun.errors import InputError, ParameterError

QUANTISATIONS = ("q4", "q8_0", "bf16")
"""What the native runtime can round float weights to while it loads them."""


def check_environment() -> None:
    """Refuse FORERUN_ISA and FORERUN_THREADS where this machine cannot do as they say: rows of every runtime go through
    the compiled module. InputError."""
    try:
        _native.isa()
        _native.num_threads()
    except RuntimeError as error:
        raise InputError(str(error), "it was set in the environment", "unset it, and the best is chosen") from error


def check_quantisation(name: str) -> None:
    """Refuse a form to round weights to that is none."""
    if name not in QUANTISATIONS:
        raise ParameterError("quantize", f"{shown(name)} is not allowed", f"one of {', '.join(QUANTISATIONS)}")


def chosen_context(own: int | None, wanted: int | None) -> int | None:
    """The context length to serve: the model's own, or a shorter one."""
    if wanted is None:
        return own
    if wanted < 1:
        raise ParameterError("context_length", f"{wanted} is not allowed", "a whole number of at least 1")
    if own is not None and wanted > own:
        fact = f"{wanted} is more than the model's own context of {own} tokens"
        raise ParameterError("context_length", fact, f"give {own} or less, or leave it out for all of it")
    return wanted


def check_head_rows(num_rows: int | None, available: int) -> None:
    """Refuse a cut of the output head that is none."""
    if num_rows is not None and not 1 <= num_rows <= available:
        raise ParameterError("num_head_rows", f"{num_rows} is not between 1 and the head's {available} rows")


def check_head_ids(head_ids: Sequence[int] | np.ndarray, available: int) -> np.ndarray:
    """Tokens that an output head is cut to: [n] int64, ascending, each once. Refused unless some of the head's."""
    ids = np.unique(np.asarray(head_ids, dtype=np.int64))
    if not len(ids) or ids[0] < 0 or ids[-1] >= available:
        raise ParameterError("head_ids", f"not some of the {available} ids of the output head")
    return ids
