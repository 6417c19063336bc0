"""Compiled grammars of one model, by what was asked for."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from forerun.errors import ParameterError

if TYPE_CHECKING:
    from forerun.constraints.base import Grammar
    from forerun.constraints.vocabulary import Vocabulary

MAX_GRAMMARS = 64


class GrammarCache:
    """The latest 64 grammars: requests that ask for the same pattern or schema share one. Compiling happens in the
    caller's thread, before the request is queued; the vocabulary is prepared at the first of them.

    One grammar is compiled at a time: those who ask for the same one meanwhile wait for it instead of compiling it too,
    and what a compilation may take of memory is taken once.
    """

    def __init__(self, make_vocabulary: Callable[[], Vocabulary]) -> None:
        self._make_vocabulary = make_vocabulary
        self._vocabulary: Vocabulary | None = None
        self._grammars: OrderedDict[tuple[str, Any], Grammar] = OrderedDict()
        self._lock, self._compiling = threading.Lock(), threading.Lock()

    def get(self, kind: str, given: Any) -> Grammar:
        """The grammar of what was given for the parameter `kind`, or of a `Form` (kind "form"). Raises ParameterError
        where it cannot be compiled."""
        from forerun.constraints.forms import compile_form
        from forerun.constraints.grammar import COMPILERS

        key = (kind, lookup_key(kind, given))
        # Requests whose grammars are known go on while another is compiled, which may take seconds.
        if (grammar := self._known(key)) is not None:
            return grammar
        with self._compiling:
            if (grammar := self._known(key)) is not None:
                return grammar
            if self._vocabulary is None:
                self._vocabulary = self._make_vocabulary()
            compile_it = compile_form if kind == "form" else COMPILERS[kind]
            grammar = compile_it(key[1], self._vocabulary)
            with self._lock:
                self._grammars[key] = grammar
                while len(self._grammars) > MAX_GRAMMARS:
                    self._grammars.popitem(last=False)
            return grammar

    def _known(self, key: tuple[str, Any]) -> Grammar | None:
        with self._lock:
            if key in self._grammars:
                self._grammars.move_to_end(key)
            return self._grammars.get(key)


def lookup_key(kind: str, given: Any) -> Any:
    """What was given as something to look up: a schema as JSON, a list of texts as a tuple."""
    if kind == "json_schema" and not isinstance(given, str):
        return _text(given)
    return tuple(given) if kind == "one_of" else given


def _text(schema: Any) -> str:
    """The schema as JSON: its properties keep their order, which is the order they are written in."""
    try:
        return json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ParameterError("json_schema", f"it is not JSON: {error}", "give a dict of JSON values") from error
