"""Logits processors of the user's own, under speculation: called exactly as plain decoding would call them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from array_api_compat import device

from forerun.arrays import namespace
from forerun.errors import ParameterError, UserCodeError
from forerun.types import Array

Processor = Callable[[list[int], Array], Array]
"""(tokens so far: prompt, output and draft prefix; logits [vocab], a copy it may change) -> logits [vocab].

A plain function of its two arguments. It may be called for draft tokens that are then rejected, and more than once.
"""


@dataclass(frozen=True, slots=True)
class StatefulProcessor:
    """A processor that remembers: `make()` gives each text a fresh one.

    It sees the calls that plain decoding would make, one for each position in order, and no others: rows behind draft
    tokens are processed by deep copies, and the copy that saw what was committed lives on. So what it holds must allow
    `copy.deepcopy` (no open files, no counters outside the object). It is called for draft tokens too, by copies that
    are then dropped, so a side effect outside the object would be seen.
    """

    make: Callable[[], Processor]

    def fresh(self) -> Processor:
        """One that has seen nothing. A function is refused: `copy.deepcopy` of one is that function itself, so what it
        remembers would be of every path at once."""
        try:
            made = self.make()
        except Exception as error:
            raise UserCodeError(f"a logits processor cannot be made: {type(error).__name__}: {error}") from error
        if isinstance(made, FunctionType):
            raise ParameterError(
                "logits_processors",
                f"StatefulProcessor needs an object that copy.deepcopy copies with what it remembers, not {made!r}",
                "return an object of a class with __call__; a function without memory needs no StatefulProcessor",
            )
        return made


def copies(processors: Sequence[Processor]) -> list[Processor]:
    """Independent copies, with the same memory."""
    try:
        return copy.deepcopy(list(processors))
    except Exception as error:
        raise UserCodeError(
            f"a stateful logits processor cannot be copied: {type(error).__name__}: {error}",
            "it goes on from a copy behind every draft token",
            "hold nothing that copy.deepcopy refuses, or define __deepcopy__",
        ) from error


def check_processors(given: Any) -> tuple[Processor | StatefulProcessor, ...]:
    """A list of processors as a tuple."""
    if given is None:
        return ()
    if callable(given) or isinstance(given, StatefulProcessor) or not isinstance(given, Sequence):
        raise ParameterError("logits_processors", "a list of functions is needed", "logits_processors=[function]")
    for processor in given:
        if isinstance(processor, type):
            raise ParameterError(
                "logits_processors", f"{processor.__name__} is a class", f"StatefulProcessor({processor.__name__})"
            )
        if not isinstance(processor, StatefulProcessor) and not callable(processor):
            raise ParameterError("logits_processors", f"{processor!r} cannot be called")
    return tuple(given)


def call(processor: Processor, tokens: list[int], logits: Array) -> Array:
    """The processor's logits; whatever goes wrong in it is a UserCodeError."""
    needed = namespace(logits), logits.dtype, tuple(logits.shape), device(logits)
    try:
        out = processor(tokens, logits)
        if out is None:
            raise UserCodeError("a logits processor returned None", repr(processor), "end it with `return logits`")
        if not hasattr(out, "dtype"):
            raise UserCodeError(
                f"a logits processor returned a {type(out).__name__}",
                repr(processor),
                "return an array like its logits",
            )
        got = namespace(out), out.dtype, tuple(out.shape), device(out)
    except UserCodeError:
        raise
    except Exception as error:
        raise UserCodeError(f"a logits processor failed: {type(error).__name__}: {error}", repr(processor)) from error
    if got != needed:
        raise UserCodeError(
            f"a logits processor returned {got[1]} of shape {got[2]} on {got[3]} where {needed[1]} of shape "
            f"{needed[2]} on {needed[3]} is needed",
            repr(processor),
            "return the logits it was given, changed",
        )
    # Later steps write to it, so an array that is not the copy it was given (a buffer or table of its own) is copied.
    return out if out is logits else needed[0].asarray(out, copy=True)
