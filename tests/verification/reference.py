"""A second, plain-Python statement of everything a request can ask of a row, and of the law of its text.

Nothing here is shared with the package: rows are lists, texts are walked token by token from the prompt, and every
parameter is applied as its definition reads. It stands for plain decoding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tests.verification.laws import Text, reference_probs, to_logits

FILTERS = ("temperature", "top_k", "top_p", "min_p")
STUCK = -1
"""The last "token" of a text that met a row in which nothing is legal."""
Row = Callable[[Text], Sequence[float]]


class Automaton:
    """A constraint for tests: a finite automaton over token ids with rollback. `edges[state][token]` is the next
    state; a state without edges is finished."""

    def __init__(self, edges: Sequence[Mapping[int, int]], vocabulary_size: int) -> None:
        self.edges, self.size, self.states = edges, vocabulary_size, [0]

    def advance(self, token: int) -> bool:
        following = self.edges[self.states[-1]].get(token)
        if following is None:
            return False
        self.states.append(following)
        return True

    def rollback(self, num_tokens: int) -> None:
        assert 0 < num_tokens < len(self.states), "more is rolled back than was taken"
        del self.states[-num_tokens:]

    def mask(self) -> np.ndarray:
        legal = np.zeros(self.size, dtype=bool)
        legal[list(self.edges[self.states[-1]])] = True
        return legal

    @property
    def is_finished(self) -> bool:
        return not self.edges[self.states[-1]]


class AutomatonGrammar:
    """`start` gives each text its own state."""

    def __init__(self, edges: Sequence[Mapping[int, int]], vocabulary_size: int) -> None:
        self.edges, self.size = edges, vocabulary_size

    def start(self) -> Automaton:
        return Automaton(self.edges, self.size)

    def state(self, text: Text) -> Mapping[int, int]:
        """The edges after `text`."""
        state = 0
        for token in text:
            state = self.edges[state][token]
        return self.edges[state]

    def __repr__(self) -> str:
        return f"AutomatonGrammar({self.edges})"


def reference_logits(row_of: Row, prompt: Text, text: Text, eos_ids: Sequence[int], params: Mapping[str, Any]) -> Any:
    """The row after `prompt` and `text` before the temperature, by walking the whole text (stateful processors see
    every position once)."""
    makers = params.get("logits_processors", ())
    processors = [maker.make() if hasattr(maker, "make") else maker for maker in makers]
    logits: list[float] = []
    for num in range(len(text) + 1):
        tokens = [*prompt, *text[:num]]
        logits = [float(value) for value in row_of(tuple(tokens))]
        size = len(logits)
        for token in range(size):
            times, penalty = tokens.count(token), params.get("repetition_penalty", 1.0)
            if times:
                logits[token] = logits[token] * penalty if logits[token] < 0 else logits[token] / penalty
                logits[token] -= params.get("frequency_penalty", 0.0) * times + params.get("presence_penalty", 0.0)
        for token, bias in dict(params.get("logit_bias", {})).items():
            logits[token] += bias
        for processor in processors:
            logits = [float(value) for value in processor(list(tokens), np.array(logits))]
        banned = {word[-1] for word in params.get("bad_words", ()) if _ends_with(tokens, word[:-1])}
        if num < params.get("min_tokens", 0):
            banned |= set(eos_ids)
        if params.get("allowed_token_ids") is not None:
            banned |= set(range(size)) - set(params["allowed_token_ids"])
        if params.get("constraint") is not None:
            banned |= set(range(size)) - set(params["constraint"].state(text[:num]))
        logits = [-math.inf if token in banned else value for token, value in enumerate(logits)]
    return logits


def _ends_with(tokens: Sequence[int], context: Sequence[int]) -> bool:
    return len(context) <= len(tokens) and list(tokens[len(tokens) - len(context) :]) == list(context)


def plain_law(
    row_of: Row, prompt: Sequence[int], num_tokens: int, eos_ids: Sequence[int] = (), **params: Any
) -> dict[Text, float]:
    """The law of what plain decoding commits: texts end at an end-of-text id, where the grammar lets nothing follow,
    where nothing is legal (then with STUCK), or after `num_tokens`."""
    law: dict[Text, float] = {}

    def walk(text: Text, mass: float) -> None:
        grammar = params.get("constraint")
        is_over = len(text) == num_tokens or (text and text[-1] in eos_ids)
        if is_over or (text and grammar is not None and not grammar.state(text)):
            law[text] = law.get(text, 0.0) + mass
            return
        logits = reference_logits(row_of, tuple(prompt), text, eos_ids, params)
        if max(logits) == -math.inf:
            law[(*text, STUCK)] = mass
            return
        probs = reference_probs(logits, **{name: params[name] for name in FILTERS if name in params})
        for token, probability in enumerate(probs):
            if probability > 0.0:
                walk((*text, token), mass * probability)

    walk((), 1.0)
    return law


def table_rows(weights: Any) -> Row:
    """Rows of `laws.model(weights)`."""
    logits, order = to_logits(weights), np.ndim(weights) - 1
    return lambda tokens: logits[((0,) * order + tokens)[len(tokens) :] if order else ()].tolist()
