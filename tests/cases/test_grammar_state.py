"""cases.md C22 (whole kind), the part about the matcher's state: it is that of the committed tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.cases.test_grammar_drafts import MODES, NOTE, PIECES, PROMPT, SIZE, TOKENIZER, Junk, target
from tests.cases.tools import DRAFTERS, outcome, writer

from forerun.constraints import TokenSet
from forerun.constraints.grammar import compile_json_schema
from forerun.constraints.vocabulary import Vocabulary
from forerun.control import FixedLength
from forerun.drafting import NoDrafter
from forerun.drafting.scripted import OracleDrafter
from forerun.errors import UserCodeError
from forerun.llm import LLM
from forerun.types import Draft, Plan, Prospect


class Watched:
    """A grammar whose texts write down what they have taken."""

    def __init__(self, grammar: Any) -> None:
        self.grammar, self.taken = grammar, list[list[int]]()

    def start(self) -> Any:
        inner, taken = self.grammar.start(), list[int]()
        self.taken.append(taken)

        class Text:
            is_finished = property(lambda _: inner.is_finished)

            def advance(self, token: int) -> bool:
                if not inner.advance(token):
                    return False
                taken.append(token)
                return True

            def rollback(self, num_tokens: int) -> None:
                inner.rollback(num_tokens)
                del taken[len(taken) - num_tokens :]

            def mask(self) -> Any:
                return inner.mask()

        return Text()


class Checking:
    """A drafter that looks at the grammar's state when a round begins."""

    def __init__(self, inner: Any, grammar: Watched) -> None:
        self.inner, self.grammar, self.needs, self.num_checks = inner, grammar, (), 0

    def prospects(self, sequences: Sequence[Any], longest: Sequence[int]) -> list[list[Prospect]]:
        return list(self.inner.prospects(sequences, longest))

    def propose(self, sequences: Sequence[Any], plans: Sequence[Plan]) -> list[Draft]:
        for sequence in sequences:
            assert self.grammar.taken[-1] == sequence.tokens[sequence.prompt_length :]
            self.num_checks += 1
        return list(self.inner.propose(sequences, plans))

    def observe(self, *seen: Any) -> None:
        self.inner.observe(*seen)

    def release(self, sequence_id: int) -> None:
        self.inner.release(sequence_id)


@pytest.mark.parametrize("drafter", ["junk", "self", "model", "lookup"])
@pytest.mark.parametrize("params", [*MODES.values(), {}])
def test_c22_a_round_begins_with_the_committed_tokens_taken_and_no_others(drafter: str, params: dict[str, Any]) -> None:
    """fak#5271: a matcher that was advanced by guesses and not rolled back."""
    grammar = Watched(compile_json_schema(NOTE, Vocabulary.of(TOKENIZER, SIZE)))
    used = Checking(Junk() if drafter == "junk" else DRAFTERS[drafter]({}, target), grammar)
    llm = LLM(target(), TOKENIZER, used, FixedLength(5))
    for _ in range(5):
        result = llm.generate(PROMPT, constraint=grammar, max_tokens=60, **params)
        assert result.finish_reason == "length" or isinstance(json.loads(result.text)["n"], str)
    assert used.num_checks >= 5


def test_c22_draft_tokens_behind_an_illegal_one_are_never_fed() -> None:
    model = target()
    llm = LLM(model, TOKENIZER, Junk(), FixedLength(7))
    result = llm.generate(PROMPT, regex="[a-z]{30}", temperature=0, max_tokens=100)
    did = result.speculation
    # A blank line, a fence or an end is illegal at once, so nothing of such a draft is looked at.
    assert model.num_fed == len(TOKENIZER.encode(PROMPT)) + did.num_rounds - 1 + did.num_proposed
    assert did.num_proposed < 2 * did.num_rounds


def test_c22_what_is_certain_is_drafted_for_nothing_and_nothing_else_is() -> None:
    """Where exactly one id is legal the target confirms it, though nobody drafts."""
    for params in ({"temperature": 0}, {"seed": 3}, {}):
        for ids, is_certain in (([5], True), ([5, 6], False)):
            llm = LLM(target(), TOKENIZER, NoDrafter(), FixedLength(7))
            result = llm.generate(PROMPT, constraint=TokenSet(ids, SIZE), max_tokens=40, **params)
            assert set(result.tokens) <= set(ids)
            assert result.speculation.num_rounds == (6 if is_certain else 40)
            assert result.speculation.acceptance_rate == (1.0 if is_certain else None)


@pytest.mark.parametrize("stop", [None, "1", "12", "121", "1212"])
def test_c22_a_grammar_that_fails_takes_nothing_with_it_that_plain_decoding_had_delivered(stop: str | None) -> None:
    """What comes before the failure is kept, held-back text included; a stop string before it ends the text first."""

    class Failing:
        """Anything goes for six tokens; the seventh breaks it."""

        def __init__(self) -> None:
            self.num_taken = 0

        def start(self) -> Any:
            return Failing()

        def advance(self, token: int) -> bool:
            self.num_taken += 1
            return True

        def rollback(self, num_tokens: int) -> None:
            self.num_taken -= num_tokens

        def mask(self) -> Any:
            return np.ones(SIZE, np.bool_)

        @property
        def is_finished(self) -> bool:
            if self.num_taken == 7:
                raise RuntimeError("boom")
            return False

    script = [PIECES.index(piece) for piece in ["a", "e", "{", "}", ":", "1", "2", "12", *"3456"]]
    outcomes = set()
    for k in (0, 1, 3, 8):
        drafter = OracleDrafter({(0, 1): script})
        llm = LLM(writer(script, SIZE, 2), TOKENIZER, drafter, FixedLength(k))
        stream = llm.stream([0, 1], constraint=Failing(), temperature=0, max_tokens=30, stop=stop, logprobs=0)
        shown, message = "", ""
        try:
            for piece in stream:
                shown += piece.text
        except UserCodeError as error:
            message = str(error)
        assert shown == stream.result.text
        outcomes.add((message, outcome(stream.result)))
    assert len(outcomes) == 1
    message, (tokens, text, reason, stop_reason, *_) = outcomes.pop()
    if stop == "1":
        assert (message, text, reason, stop_reason) == ("", "ae{}:", "stop", stop)
    else:
        assert "boom" in message
        assert (tokens, text, reason, stop_reason) == (tuple(script[:6]), "ae{}:1", "error", None)
