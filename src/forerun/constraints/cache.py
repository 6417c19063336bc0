"""Compiled grammars of one model, by what was asked for."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from forerun.errors import ParameterError

if TYPE_CHECKING:
    from forerun.constraints.base import Grammar
    from forerun.constraints.vocabulary import Vocabulary

MAX_GRAMMARS = 64


class GrammarCache:
    """The latest 64 grammars: requests that ask for the same pattern or schema share one. Compiling happens in the
    caller's thread, before the request is queued; the vocabulary is prepared at the first of them."""

    def __init__(self, make_vocabulary: Callable[[], Vocabulary]) -> None:
        self._make_vocabulary = make_vocabulary
        self._vocabulary: Vocabulary | None = None
        self._grammars: OrderedDict[tuple[str, str], Grammar] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, regex: str | None, json_schema: Mapping[str, Any] | str | None) -> Grammar:
        """The grammar of a pattern, or of a schema. Raises ParameterError where it cannot be compiled."""
        from forerun.constraints.grammar import compile_json_schema, compile_regex

        schema = json_schema if isinstance(json_schema, str) or json_schema is None else _text(json_schema)
        key = ("json_schema", schema) if schema is not None else ("regex", regex or "")
        with self._lock:
            if key in self._grammars:
                self._grammars.move_to_end(key)
                return self._grammars[key]
            if self._vocabulary is None:
                self._vocabulary = self._make_vocabulary()
        # Compiling may take seconds; requests whose grammars are known go on meanwhile.
        grammar = (compile_regex if schema is None else compile_json_schema)(key[1], self._vocabulary)
        with self._lock:
            self._grammars[key] = grammar
            while len(self._grammars) > MAX_GRAMMARS:
                self._grammars.popitem(last=False)
        return grammar


def _text(schema: Any) -> str:
    """The schema as JSON: its properties keep their order, which is the order they are written in."""
    try:
        return json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ParameterError("json_schema", f"it is not JSON: {error}", "give a dict of JSON values") from error
