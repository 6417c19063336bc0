"""Sampling parameters of one request: what can be asked for, checked once and early."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_args

from forerun.checks import real, shown, token_ids, whole
from forerun.constraints import Grammar
from forerun.constraints.checks import check_texts
from forerun.errors import ParameterError
from forerun.models.stop_strings import check_stops
from forerun.sampling.processors import Processor, StatefulProcessor, check_processors
from forerun.types import LogprobsKind

GREEDY_BELOW = 1e-5
"""Temperatures below this are treated as 0."""

MAX_CHOICES = 1_000
"""Texts of one request: each holds a cache while it runs and its state until all have ended."""

NOT_BUILT = {
    "echo": "prompt_logprobs=N reports the prompt's tokens (requests to `forerun serve` may have echo)",
    "response_format": "give json_schema (requests to `forerun serve` may have response_format)",
    "suffix": "requests to `forerun serve` may have it",
    "typical_p": "min_p is the nearest",
}
"""Parameters that exist elsewhere and are refused by name here, in Python and on the command line, rather than silently
ignored; what there is instead. The server's requests have some of them: it makes them of the parameters here."""

STRUCTURES = ("regex", "json_schema", "grammar", "one_of")
"""Parameters that say what the whole text must be; one at most."""

ELSEWHERE = {
    "top_logprobs": "logprobs",
    "stop_strings": "stop",
    "stop_sequences": "stop",
    "random_seed": "seed",
    "do_sample": "temperature",
    "guided_choice": "one_of",
    "choice": "one_of",
    "structured_outputs": "json_schema",
    "bad_words_ids": "bad_words",
    "sequence_bias": "logit_bias",
    "logits_processor": "logits_processors",
    "min_new_tokens": "min_tokens",
    "max_new_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "num_return_sequences": "n",
    "guided_regex": "regex",
    "guided_json": "json_schema",
    "guided_grammar": "grammar",
    "ebnf": "grammar",
    "include_stop_str_in_output": "include_stop_string",
}
"""What other engines call a parameter -> its name here."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is sampled. Unset parameters mean the same with and without speculation.

    They act on every row in this order: repetition, frequency and presence penalties; `logit_bias`;
    `logits_processors`; `bad_words`, `min_tokens`, `allowed_token_ids` and the grammar (all of which rule tokens out);
    temperature; top-k; top-p; min-p. A row after draft tokens is processed with those draft tokens as part of the text.

    temperature: 0 is greedy; 1.0 (the default, as in the OpenAI API) leaves the model's own distribution.
    top_k: keep the k most likely tokens, ties with the k-th included; 0 or -1 is off. top_p: keep the smallest set of
    most likely tokens whose mass reaches top_p, in (0, 1]. min_p: keep tokens of at least min_p times the largest
    probability, in [0, 1]. seed: a whole number from 0 to 2^64 - 1; the text is then a function of prompt, seed and
    parameters alone.

    repetition_penalty: 0.01 to 100, 1 is off; the logit of every token in prompt or output is divided by it if
    positive, multiplied if negative (Keskar et al., arXiv 1909.05858, as transformers does). frequency_penalty and
    presence_penalty: -2 to 2, 0 is off; subtracted from the logit once for each occurrence, and once for any, in prompt
    and output. logit_bias: token id -> number from -100 to 100 added to its logit. bad_words: texts or sequences of
    token ids that are never completed; a text stands for its tokens, alone and after a space. allowed_token_ids:
    nothing else is ever chosen. min_tokens: end-of-text and stop ids are ruled out, and stop strings do not count,
    before that many tokens. logits_processors: functions (tokens so far, logits) -> logits, or `StatefulProcessor`s.

    regex, json_schema, grammar, one_of: the whole text matches the pattern, is JSON of that schema, is derived by that
    grammar (GBNF or Lark's notation), or is one of those texts. Grammar objects of your own go into `constraint`
    (anything with `start() -> Constraint`).

    max_tokens: None means until the context is full. stop_token_ids end the text like the model's own end-of-text ids,
    which `ignore_eos` ignores; the token that ended the text is left out of the result unless `include_stop_token`.
    stop: one string or several; the text is cut before the one that is complete first (`include_stop_string`: after).

    n: answers to one prompt, each with randomness of its own; best_of: make that many and keep the n whose tokens have
    the highest mean log probability. logprobs: report each token's log probability and those of the N likeliest (0:
    none) alternatives, of the model's own distribution or (logprobs_kind="processed") of the one it was drawn from.
    prompt_logprobs: the same for the prompt's tokens, always of the model's own distribution.

    tenant: on whose behalf it is asked. Where drafts from past outputs were asked for (`SharedTexts`), only those of
    the same tenant are drafted from, and without a tenant none. It never changes the text.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] | Mapping[int, float] | None = None
    bad_words: tuple[str | tuple[int, ...], ...] | None = ()
    allowed_token_ids: tuple[int, ...] | None = None
    logits_processors: tuple[Processor | StatefulProcessor, ...] = ()
    regex: str | None = None
    json_schema: Mapping[str, Any] | str | None = None
    grammar: str | None = None
    one_of: tuple[str, ...] | None = None
    constraint: Grammar | None = None
    seed: int | None = None
    n: int = 1
    best_of: int | None = None
    min_tokens: int = 0
    max_tokens: int | None = None
    stop: tuple[str, ...] | str | None = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_token: bool = False
    include_stop_string: bool = False
    logprobs: int | None = None
    logprobs_kind: LogprobsKind = "raw"
    prompt_logprobs: int | None = None
    tenant: str | None = None

    def __post_init__(self) -> None:
        self._check_filters()
        self._check_adjustments()
        self._check_choices()
        self._check_ends()

    def _check_filters(self) -> None:
        real("temperature", self.temperature, 0.0, math.inf, "a number of at least 0 (0 is greedy)")
        real("top_p", self.top_p, 0.0, 1.0, "above 0 and at most 1 (1 is off)", open_low=True)
        real("min_p", self.min_p, 0.0, 1.0, "between 0 (off) and 1")
        whole("top_k", self.top_k, -1, None, "a whole number; 0 or -1 is off")
        if self.seed is not None:
            whole("seed", self.seed, 0, (1 << 64) - 1, "a whole number from 0 to 2^64 - 1, or None")
        # Plain numbers from here on: a numpy integer would overflow where a seed is mixed, a fraction has no exp.
        self._make(float, "temperature", "top_p", "min_p")
        self._make(int, "top_k", "seed")

    def _check_adjustments(self) -> None:
        real("repetition_penalty", self.repetition_penalty, 0.01, 100.0, "between 0.01 and 100 (1 is off)")
        for name in ("frequency_penalty", "presence_penalty"):
            real(name, getattr(self, name), -2.0, 2.0, "between -2 and 2 (0 is off)")
        self._make(float, "repetition_penalty", "frequency_penalty", "presence_penalty")
        self._set("logit_bias", _biases(self.logit_bias))
        self._set("bad_words", _words(self.bad_words))
        if self.allowed_token_ids is not None:
            self._set("allowed_token_ids", token_ids("allowed_token_ids", self.allowed_token_ids))
            if not self.allowed_token_ids:
                raise ParameterError("allowed_token_ids", "no token would be legal", "give at least one id, or None")
        self._set("logits_processors", check_processors(self.logits_processors))
        self._check_structure()

    def _check_structure(self) -> None:
        given = [name for name in (*STRUCTURES, "constraint") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ParameterError(given[1], f"cannot be combined with {given[0]}", "give one of the two")
        for name, what in (("regex", "a pattern"), ("grammar", "the text of a grammar")):
            if getattr(self, name) is not None and not isinstance(getattr(self, name), str):
                raise ParameterError(name, f"{what} is needed, not {shown(getattr(self, name))}")
        if self.one_of is not None:
            self._set("one_of", check_texts("one_of", self.one_of))
        if self.json_schema is not None and not isinstance(self.json_schema, (Mapping, str, bool)):
            raise ParameterError("json_schema", f"a schema is needed, not {shown(self.json_schema)}", "a dict or JSON")
        if self.constraint is not None and not callable(getattr(self.constraint, "start", None)):
            raise ParameterError(
                "constraint", f"an object with start() -> Constraint is needed, not {shown(self.constraint)}"
            )

    def _check_choices(self) -> None:
        whole("n", self.n, 1, MAX_CHOICES, f"a whole number from 1 to {MAX_CHOICES}")
        if self.best_of is not None:
            whole("best_of", self.best_of, int(self.n), MAX_CHOICES, f"a whole number from n to {MAX_CHOICES}")
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), 0, None, "how many alternatives to report: a whole number, or None")
        if self.logprobs_kind not in (kinds := get_args(LogprobsKind)):
            raise ParameterError(
                "logprobs_kind", f"{shown(self.logprobs_kind)} is not allowed", f"one of {', '.join(kinds)}"
            )
        self._make(int, "n", "best_of", "logprobs", "prompt_logprobs")
        if self.tenant is not None and not (isinstance(self.tenant, str) and self.tenant):
            raise ParameterError("tenant", f"a name is needed, not {shown(self.tenant)}", "a text, or None")

    def _check_ends(self) -> None:
        whole("min_tokens", self.min_tokens, 0, None, "a whole number of at least 0")
        if self.max_tokens is not None:
            whole("max_tokens", self.max_tokens, 0, None, "a whole number of at least 0, or None")
            if self.min_tokens > self.max_tokens:
                raise ParameterError("min_tokens", f"{self.min_tokens} is above max_tokens, {self.max_tokens}")
        self._make(int, "min_tokens", "max_tokens")
        self._set("stop_token_ids", token_ids("stop_token_ids", self.stop_token_ids))
        self._set("stop", check_stops(self.stop))
        for name in ("ignore_eos", "include_stop_token", "include_stop_string"):
            if not isinstance(getattr(self, name), bool):
                raise ParameterError(name, f"True or False is needed, not {shown(getattr(self, name))}")
        if self.ignore_eos and self.is_structured:
            raise ParameterError(
                "ignore_eos", "cannot be combined with a grammar", "end of text is how a grammar says it is complete"
            )

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _make(self, plain: Callable[[Any], Any], *names: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                self._set(name, plain(getattr(self, name)))

    @classmethod
    def from_keywords(cls, keywords: Mapping[str, Any]) -> SamplingParams:
        """Build from keyword arguments; unknown names are errors that name the nearest known one."""
        known = [field.name for field in fields(cls)]
        for name in keywords:
            if name in NOT_BUILT:
                raise ParameterError(name, "not built yet, so it is refused rather than ignored", NOT_BUILT[name])
            if name not in known:
                near = [ELSEWHERE[name]] if name in ELSEWHERE else difflib.get_close_matches(name, known, 1)
                raise ParameterError(
                    name,
                    "unknown parameter",
                    f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}",
                )
        return cls(**keywords)

    @property
    def is_greedy(self) -> bool:
        """Whether a row's token is its argmax."""
        return self.temperature < GREEDY_BELOW

    @property
    def has_filter(self) -> bool:
        """Whether tokens are dropped for their probability alone."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    @property
    def is_structured(self) -> bool:
        """Whether a grammar decides which tokens are legal."""
        return self.structure is not None or self.constraint is not None

    @property
    def structure(self) -> tuple[str, Any] | None:
        """The parameter that says what the text must be, and what it was given, where a tokenizer is needed for it."""
        return next(((name, getattr(self, name)) for name in STRUCTURES if getattr(self, name) is not None), None)

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        """`logit_bias` as pairs (token id, bias), by id."""
        return self.logit_bias if isinstance(self.logit_bias, tuple) else ()

    @property
    def stops(self) -> tuple[str, ...]:
        """`stop` as a tuple of strings."""
        return self.stop if isinstance(self.stop, tuple) else ()

    @property
    def num_choices(self) -> int:
        """Texts that are made: `best_of`, or `n` where it is not given."""
        return self.n if self.best_of is None else self.best_of

    @property
    def ranks_choices(self) -> bool:
        """Whether some texts are dropped, so that all of them need a log probability."""
        return self.num_choices > self.n


def _biases(given: Any) -> tuple[tuple[int, float], ...]:
    """Pairs (token id, bias), by id. JSON objects have text keys, so ids written as plain decimals are understood."""
    if given is None:
        return ()
    try:
        pairs = list(given.items()) if isinstance(given, Mapping) else [(key, value) for key, value in given]
    except (TypeError, ValueError):
        raise ParameterError(
            "logit_bias", f"a mapping of token ids to numbers is needed, not {shown(given)}", "for example {1234: -100}"
        ) from None
    found: dict[int, float] = {}
    for key, value in pairs:
        if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 20 and str(int(key)) == key:
            key = int(key)
        whole("logit_bias", key, 0, None, "token ids are whole numbers of at least 0")
        real("logit_bias", value, -100.0, 100.0, f"the bias of token {key} must be from -100 to 100")
        if int(key) in found:
            raise ParameterError("logit_bias", f"token {key} is given twice")
        found[int(key)] = float(value)
    return tuple(sorted(found.items()))


def _words(given: Any) -> tuple[str | tuple[int, ...], ...]:
    if given is None:
        return ()
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        raise ParameterError("bad_words", f"a list of words is needed, not {shown(given)}", 'for example ["perhaps"]')
    words: list[str | tuple[int, ...]] = []
    for word in given:
        one = word if isinstance(word, str) else token_ids("bad_words", word)
        if not one:
            raise ParameterError("bad_words", "an empty word is no word", "leave it out")
        words.append(one)
    return tuple(words)
