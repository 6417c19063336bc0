"""Texts of a pattern, a grammar, a list or a JSON schema, on llguidance (docs/log.md, 2026-11-29, says why).

The library parses bytes, so a mask leaves every spelling of a legal text open, tokens that split characters included.
It is told never to force tokens: it would then allow only its own spelling of what must come, and the law of the text
would not be the model's law restricted to legal texts.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np
from llguidance import LLMatcher, LLParserLimits, regex_to_lark

from forerun.constraints.base import Mask, require_taken
from forerun.constraints.checks import PATTERN_HELP, as_pattern, check_pattern, check_texts, explain
from forerun.constraints.ebnf import to_library
from forerun.constraints.schema import AT_ROOT, check_schema
from forerun.constraints.vocabulary import Vocabulary
from forerun.errors import ParameterError

HEADER = '%llguidance {"no_forcing": true}\n'

WHITESPACE = r" |\n {0,32}|\n\t{0,16}"
"""JSON whitespace, at most once at each place between two tokens of JSON (none before or after the whole value): one
space, or one line break with up to 32 spaces or 16 tabs behind it."""

COMPILE_STACK = 64 * 2**20
"""Bytes. The library recurses once per subschema; an ordinary stack overflows, and the process with it."""

LIMITS = LLParserLimits(verbose_errors=False, step_lexer_fuel=1_000_000, max_lexer_states=100_000)
"""The library bounds the work of compiling and of each mask, in units of its own. One mask gets five times its default
(0.1 s at worst over 150,000 tokens; a pattern with a maxLength needs more than the default), and the lexer of a grammar
100,000 states of 1 to 2 KB instead of 250,000."""

NUM_KEPT = 9
"""Masks that a text keeps: after a rollback over up to eight draft tokens the mask is still there."""

TOO_MANY_ITEMS = "Current row has"
"""How the library says that a text can be read in too many ways: a fresh lexer would not help."""

DEAD_END = "NoExtensionBias"
"""The library's error where the vocabulary cannot spell what must come."""

T = TypeVar("T")


def compile_regex(pattern: str, vocabulary: Vocabulary) -> CompiledGrammar:
    """The texts that `pattern` matches as a whole (fullmatch), in the syntax of Rust's regex crate: Unicode classes, no
    look-arounds, no back-references. Lazy quantifiers mean what greedy ones do, since the whole text must match; `^`
    and `$` are allowed at the ends only; `.` matches everything but a line break.

    Raises ParameterError: the construct that is not supported, or that nothing but the empty text matches.
    """
    return CompiledGrammar("regex", _regex(pattern), vocabulary, PATTERN_HELP)


def _regex(pattern: str) -> str:
    if not isinstance(pattern, str):
        raise ParameterError("regex", f"a pattern is a string, not {type(pattern).__name__}")
    check_pattern("regex", pattern)
    return f"start: /{regex_to_lark(pattern, '')}/"


def compile_json_schema(schema: dict[str, Any] | bool | str, vocabulary: Vocabulary) -> CompiledGrammar:
    """The JSON texts that satisfy `schema` (draft 2020-12; a str is JSON), with WHITESPACE between their tokens.

    Properties come in the schema's order. Numbers and strings are as long as the schema allows. Names that only
    `additionalProperties` or `patternProperties` cover may come twice. Raises ParameterError for everything that would
    not be enforced: unknown keywords and formats (`not`, `if`, `uniqueItems`, ...), remote references, `oneOf` whose
    alternatives may overlap, and schemas that nothing, or nothing finite, satisfies.
    """
    return CompiledGrammar("json_schema", _json_schema(schema), vocabulary, REMEDIES["json_schema"])


def _json_schema(schema: dict[str, Any] | bool | str) -> str:
    name = "json_schema"
    try:
        given = json.loads(schema, parse_constant=_no_constant) if isinstance(schema, str) else schema
        plain = json.loads(json.dumps(given, allow_nan=False))
    except RecursionError as error:
        raise ParameterError(name, "it is nested too deeply", "name its parts in $defs and refer to them") from error
    except (TypeError, ValueError) as error:
        raise ParameterError(name, f"it is not JSON: {error}", "give a dict of JSON values, or JSON as text") from error
    check_schema(name, plain)
    if plain is False:
        raise ParameterError(name, "nothing satisfies the schema false")
    body = {key: value for key, value in plain.items() if key not in AT_ROOT} if isinstance(plain, dict) else {}
    text = json.dumps({**body, "x-guidance": {"whitespace_pattern": WHITESPACE}})
    return f"start: %json {text}"


def compile_grammar(text: str, vocabulary: Vocabulary) -> CompiledGrammar:
    """The texts that a grammar derives: in GBNF (`root ::= ...`), as a grammar of characters, or in Lark's notation
    (`start: ...`), whose terminals are cut off greedily, the longest at each place.

    Rules may be recursive, to the left too. Raises ParameterError for what is not understood, with its line and column:
    unknown rules, rules that derive no finite text, tokens in angle brackets, attributes, templates, directives.
    """
    return CompiledGrammar("grammar", _grammar(text), vocabulary, REMEDIES["grammar"])


def _grammar(text: str) -> str:
    if not isinstance(text, str):
        raise ParameterError("grammar", f"a grammar is a string, not {type(text).__name__}")
    return to_library(text)


def compile_one_of(texts: Sequence[str], vocabulary: Vocabulary) -> CompiledGrammar:
    """Exactly these texts. Raises ParameterError for a list that is empty, too long, or holds anything but texts."""
    return CompiledGrammar("one_of", _one_of(texts), vocabulary, REMEDIES["one_of"])


def _one_of(texts: Sequence[str]) -> str:
    found = check_texts("one_of", texts)
    pattern = "|".join(map(as_pattern, found))
    return f"start: /{pattern}/"


REMEDIES = {
    "regex": PATTERN_HELP,
    "json_schema": "simplify that part of the schema",
    "grammar": "simplify that part of the grammar",
    "one_of": "give fewer or other texts",
}
NOTATIONS: dict[str, Callable[[Any], str]] = {
    "regex": _regex, "json_schema": _json_schema, "grammar": _grammar, "one_of": _one_of,
}  # fmt: skip
"""What was given for each parameter -> the same in the library's notation, as a rule `start` and those it needs. Raises
ParameterError as compiling does, before the library sees it."""

COMPILERS: dict[str, Callable[[Any, Vocabulary], CompiledGrammar]] = {
    "regex": compile_regex,
    "json_schema": compile_json_schema,
    "grammar": compile_grammar,
    "one_of": compile_one_of,
}
"""By the request's parameter."""


class Next(NamedTuple):
    """What may follow a text."""

    mask: Mask
    is_finished: bool


class CompiledGrammar:
    """A grammar over one vocabulary.

    Its texts share the library's lexer, which is built as they need it, under a lock of the library's own. When one of
    them uses up what the library allows, the lexer is of no use to any: every text then starts over with a lexer of its
    own, fails only if that fails too, and new texts get a new lexer to share.
    """

    def __init__(
        self, name: str, body: str, vocabulary: Vocabulary, remedy: str, inner: Mapping[str, str] | None = None
    ) -> None:
        """`body` is in the library's notation; it may refer to grammars of their own, `inner`, as @NAME."""
        self.name, self.remedy, self.vocabulary, self.library = name, remedy, vocabulary, vocabulary.library
        self._grammar, self._renewing = HEADER + body, threading.Lock()
        if inner:
            all_of_them = {"": body, **inner}
            self._grammar = json.dumps(
                {"grammars": [{"name": key, "lark_grammar": HEADER + text} for key, text in all_of_them.items()]}
            )
        self.shared = self.new_matcher()
        first = None if self.shared.is_error() else self.read(self.shared)
        if first is None:
            raise self.failure(self.shared)
        if first.is_finished or not first.mask.any():
            which = "nothing but the empty text" if first.is_finished else "no text"
            raise ParameterError(name, f"{which} that this vocabulary can spell satisfies it", remedy)
        self.first = first

    def start(self) -> GrammarConstraint:
        return GrammarConstraint(self)

    def new_matcher(self) -> LLMatcher:
        """A matcher at the beginning of a text, with a lexer of its own."""
        return _with_deep_stack(lambda: LLMatcher(self.library.tokenizer, self._grammar, log_level=0, limits=LIMITS))

    def renew(self, shared: LLMatcher) -> None:
        """Replace a matcher whose lexer is used up as the one that new texts copy."""
        with self._renewing:
            if self.shared is shared:
                self.shared = self.new_matcher()

    def read(self, matcher: LLMatcher) -> Next | None:
        """What may follow a matcher's state, in arrays of its own. None if the library gave up."""
        packed = matcher.compute_bitmask()
        matcher.compute_bitmask()  # from the library's cache: reports what went wrong at the end of the first
        if matcher.is_error():
            is_dead = matcher.get_error().startswith(DEAD_END)
            return Next(self.library.nothing, False) if is_dead else None
        bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little").view(np.bool_)
        bits.flags.writeable = False
        mask = bits[: self.vocabulary.size]
        is_complete = bool(bits[self.library.eos_bit])
        return Next(mask, is_complete and int(np.count_nonzero(mask)) == self.library.num_eos)

    def failure(self, matcher: LLMatcher, num_tokens: int = 0) -> ParameterError:
        """What the library said, as an error of the request's parameter."""
        reason = explain(matcher.get_error())
        if num_tokens:
            reason = f"it is too complex to be followed beyond {num_tokens} tokens ({reason})"
        return ParameterError(self.name, reason, self.remedy)


class GrammarConstraint:
    """One text of a grammar. End-of-text ids are kept here and never told to the library, which would stop at them.

    The mask decides what `advance` takes: the library allows work per mask, and its other answers are silently "no"
    once that is used up.
    """

    def __init__(self, grammar: CompiledGrammar) -> None:
        self._grammar, self._shared = grammar, grammar.shared
        self._matcher: LLMatcher | None = self._shared.deep_copy()
        self._tokens: list[int] = []
        self._is_ended = False
        self._nexts: list[Next | None] = [grammar.first]  # after each number of tokens taken; old ones are dropped

    def advance(self, token: int) -> bool:
        vocabulary, token = self._grammar.vocabulary, int(token)
        if not 0 <= token < vocabulary.size or not self.mask()[token]:
            return False
        if token in vocabulary.eos_ids:
            self._is_ended = True
        elif not self._current().consume_token(token) and not self._start_over().consume_token(token):
            self._give_up()
        self._tokens.append(token)
        self._nexts.append(None)
        if len(self._nexts) > NUM_KEPT:
            self._nexts[-NUM_KEPT - 1] = None
        return True

    def rollback(self, num_tokens: int) -> None:
        require_taken(num_tokens, len(self._tokens))
        if num_tokens == 0:
            return
        num_library, self._is_ended = num_tokens - self._is_ended, False
        del self._tokens[-num_tokens:], self._nexts[-num_tokens:]
        if num_library and self._matcher is not None and not self._matcher.rollback(num_library):
            self._matcher = None

    def mask(self) -> Mask:
        return self._look().mask

    @property
    def is_finished(self) -> bool:
        return self._look().is_finished

    def _look(self) -> Next:
        found = self._nexts[-1]
        if found is None and self._is_ended:
            found = Next(self._grammar.library.nothing, True)
        elif found is None:
            found = self._grammar.read(self._current()) or self._grammar.read(self._start_over())
            if found is None:
                self._give_up()
        self._nexts[-1] = found
        return found

    def _current(self) -> LLMatcher:
        """The library's state after the tokens taken."""
        if self._matcher is None:
            self._matcher = self._shared.deep_copy()
            if self._tokens and not self._matcher.consume_tokens(self._tokens):
                return self._start_over()
        return self._matcher

    def _start_over(self) -> LLMatcher:
        """The same with a lexer of its own, and all the work that the library allows for every token. To compile again
        may take a second, in which nobody else's text goes on."""
        if self._matcher is not None and TOO_MANY_ITEMS in self._matcher.get_error():
            self._give_up()
        self._grammar.renew(self._shared)
        self._matcher = self._grammar.new_matcher()
        for token in self._tokens:
            self._matcher.compute_bitmask()
            if not self._matcher.consume_token(token):
                self._give_up()
        return self._matcher

    def _give_up(self) -> NoReturn:
        matcher, self._matcher = self._current(), None
        raise self._grammar.failure(matcher, len(self._tokens))


def _no_constant(value: str) -> Any:
    raise ValueError(f"{value} is no JSON number")


_STACK = threading.Lock()


def _with_deep_stack(work: Callable[[], T]) -> T:
    """`work()` on a thread of its own with COMPILE_STACK; the library lets other threads run meanwhile."""
    results: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            failures.append(error)

    with _STACK:
        before = threading.stack_size(COMPILE_STACK)
        try:
            thread = threading.Thread(target=run, name="forerun-grammar")
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    if failures:
        raise failures[0]
    return results[0]
