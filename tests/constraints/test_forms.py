"""Answers with thoughts and calls: what is legal against a reading of the text by hand, and the law under speculation.

Marks are short here, and tokens cross all of them, so that few tokens go through every phase of an answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.constraints.vocabularies import by_trying, fed, json_bytes
from tests.verification.laws import Text, draft_with, engine_law, pairs, violations
from tests.verification.reference import plain_law, table_rows

from forerun.constraints.calls import call_schema
from forerun.constraints.forms import Form, compile_form
from forerun.constraints.marks import CallMarks
from forerun.constraints.vocabulary import Vocabulary
from forerun.errors import ParameterError
from forerun.sampling.masks import Masks
from forerun.verification import RULES

PIECES = ("x", "<", "<<", "1", ">", "[", "]", "<1", "1>x", "]<<1", "x<")
FEW = ("x", "<<1", ">", "<"), ("x", "[<", "]<<1", ">"), ("x", "[", "]1", "1")
"""Fewer, where all texts are enumerated: without thoughts, before calls, before a body."""
MARKS: dict[str, Any] = {"marks": CallMarks((), "<<", behind=">"), "thoughts": ("[", "]")}
BARE: dict[str, Any] = {"marks": CallMarks((), "<<", bare="1"), "thoughts": ("[", "]")}
LISTED: dict[str, Any] = {"marks": CallMarks((), "<<", between="x", behind=">"), "thoughts": ("[", "]")}
ONE = json.dumps({"const": 1})
BODY = ("regex", "1*x")

FORMS: dict[str, Form] = {
    "calls": Form(call=ONE, **MARKS),
    "one call": Form(call=ONE, only_one=True, **MARKS),
    "thoughts, calls": Form(call=ONE, thinking="maybe", **MARKS),
    "begun thoughts, calls": Form(call=ONE, thinking="begun", **MARKS),
    "thoughts, a body": Form(body=BODY, thinking="maybe", **MARKS),
    "begun thoughts, a body": Form(body=BODY, thinking="begun", **MARKS),
    "calls or a body": Form(body=BODY, call=ONE, **MARKS),
    "one call or a body": Form(body=BODY, call=ONE, only_one=True, **MARKS),
    "thoughts, calls or a body": Form(body=BODY, call=ONE, thinking="maybe", **MARKS),
    "must call": Form(call=ONE, must_call=True, **MARKS),
    "thoughts, one call": Form(call=ONE, must_call=True, only_one=True, thinking="maybe", **MARKS),
    "listed": Form(call=ONE, **LISTED),
    "one of a list": Form(call=ONE, only_one=True, **LISTED),
    "must list": Form(call=ONE, must_call=True, **LISTED),
    "bare": Form(call=ONE, **BARE),
    "one bare": Form(call=ONE, only_one=True, **BARE),
    "must be bare": Form(call=ONE, must_call=True, thinking="begun", **BARE),
}
SHAPES: dict[str, int | tuple[int, ...]] = {"k=2": 2, "k=3": 3, "comb": (-1, -1, 0), "second goes on": (-1, -1, 1)}


def vocabulary(pieces: Sequence[str] = PIECES) -> Vocabulary:
    table = [piece.encode() for piece in pieces] + [b"<end>"]
    return Vocabulary(len(table), table.__getitem__, frozenset({len(pieces)}), (len(pieces),))


def read(form: Form, text: str) -> tuple[bool, bool]:
    """(whether a text may still become one of the form, whether it is one), from the definition."""
    free = form.is_free
    if form.thinking == "begun" or (form.thinking == "maybe" and text.startswith("[")):
        _, closing, after = text.partition("]")
        return _answer(form, after) if closing else (True, free)
    alive, complete = _answer(form, text)
    return alive or (form.thinking == "maybe" and text == ""), complete


def _answer(form: Form, text: str) -> tuple[bool, bool]:
    if form.marks.bare and text.startswith("1"):
        return _behind(form, text[1:])
    if form.body is None:
        alive, complete = _calls(form, text, is_free=form.is_free)
        return alive or (text == "" and bool(form.marks.bare)), complete and (bool(text) or form.is_free)
    ones = text.rstrip("x")
    is_body = set(ones) <= {"1"} and len(text) - len(ones) <= 1
    alive, complete = is_body, is_body and text.endswith("x")
    if form.call is not None and (text.startswith("<") or not text):
        calls = _calls(form, text, is_free=False)
        alive, complete = alive or calls[0], complete or (calls[1] and bool(text))
    return alive, complete


def _calls(form: Form, text: str, is_free: bool) -> tuple[bool, bool]:
    """Calls and, where it is free, the text around them."""
    before, opening, rest = text.partition("<<")
    if not opening:
        return is_free or "<<".startswith(text), is_free or text == ""
    if before and not is_free:
        return False, False
    call, between, behind = "1", form.marks.between, form.marks.behind
    while between and not form.only_one and rest.startswith(call + between):
        rest = rest[len(call + between) :]
        if not rest:
            return True, False
    if len(rest) < len(call + behind):
        return (call + behind).startswith(rest), False
    return _behind(form, rest[len(call + behind) :]) if rest.startswith(call + behind) else (False, False)


def _behind(form: Form, text: str) -> tuple[bool, bool]:
    """What may follow the last call behind a mark."""
    goes_on = not form.only_one and (form.is_free or form.marks.behind)
    return _calls(form, text, form.is_free) if goes_on else (text == "", text == "")


class Read:
    """The same over tokens, for `plain_law`."""

    def __init__(self, form: Form, pieces: Sequence[str] = PIECES) -> None:
        self.form, self.pieces = form, pieces

    def state(self, text: Text) -> Mapping[int, int]:
        so_far = "".join(self.pieces[token] for token in text)
        legal = {token: 0 for token, piece in enumerate(self.pieces) if read(self.form, so_far + piece)[0]}
        return legal | {len(self.pieces): 0} if legal and read(self.form, so_far)[1] else legal


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_mask_is_what_may_still_become_an_answer(name: str, data: Any) -> None:
    form, eos = FORMS[name], len(PIECES)
    grammar, reference = compile_form(form, vocabulary()), Read(form)
    text: list[int] = []
    for _ in range(8):
        constraint = fed(grammar, text)
        legal = sorted(reference.state(tuple(text)))
        if not legal:
            assert constraint.is_finished
            break
        so_far = "".join(PIECES[token] for token in text)
        assert not constraint.is_finished
        assert constraint.mask().nonzero()[0].tolist() == legal, (so_far, [PIECES[i] for i in legal if i < eos])
        text.append(data.draw(st.sampled_from([one for one in legal if one != eos])))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FORMS)
def test_the_law_is_that_of_plain_decoding(name: str, shape: str) -> None:
    form = FORMS[name]
    pieces = FEW[0 if form.thinking == "never" else 2 if form.call is None else 1]
    eos = len(pieces)
    grammar, reference = compile_form(form, vocabulary(pieces)), Read(form, pieces)
    seen: set[Text] = set()

    @settings(max_examples=2, deadline=None)
    @given(pairs(eos + 1), st.sampled_from(sorted(RULES)), st.sampled_from(["sampled", "deterministic"]))
    def check(pair: tuple[Any, Any], rule: str, noise: str) -> None:
        target, draft = (np.array(one) + 1 for one in pair)
        request = ([0], {"max_tokens": 3, "constraint": grammar})
        law = engine_law(
            target, draft_with(draft), SHAPES[shape], [request], kind=noise, rules=RULES[rule], eos_ids=[eos]
        )
        assert not violations(law, plain_law(table_rows(target), [0], 3, [eos], constraint=reference))
        seen.update(law)

    check()
    assert len(seen) >= 3


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_rejected_branches_leave_nothing(name: str, data: Any) -> None:
    """Any prefixes are looked at, then another is committed: the answer stands where a fresh one would."""
    grammar, committed, eos = compile_form(FORMS[name], vocabulary()), list[int](), len(PIECES)
    walked = grammar.start()
    masks = Masks([walked], eos + 1)
    for _ in range(3):
        for prefix in data.draw(st.lists(st.lists(st.integers(0, eos), max_size=4), min_size=1, max_size=4)):
            masks.after(prefix)
        fresh, path = fed(grammar, committed), list[int]()
        for _ in range(data.draw(st.integers(0, 3))):
            legal = [one for one in fresh.mask().nonzero()[0].tolist() if one != eos]
            if not legal:
                break
            path.append(data.draw(st.sampled_from(legal)))
            assert fresh.advance(path[-1])
        masks.commit(path)
        committed += path
        assert by_trying(walked, eos + 1) == by_trying(fed(grammar, committed), eos + 1)
        if walked.is_finished:
            break


# -- with the marks that models write ----------------------------------------------------------------------------------

BYTES = json_bytes()
WEATHER = call_schema([("weather", {"type": "object", "properties": {"city": {"type": "string"}}})])
CALL = '{"name": "weather", "arguments": {"city": "Oslo"}}'


def takes(form: Form, text: str, is_whole: bool = True) -> bool:
    constraint = compile_form(form, BYTES).start()
    if not all(constraint.advance(byte) for byte in text.encode()):
        return False
    return not is_whole or constraint.is_finished or bool(constraint.mask()[256])


@pytest.mark.parametrize(
    ("text", "is_legal"),
    [
        ("", True),
        ("any <tool_cal é\n < </tool_call>", True),
        (f"So:\n<tool_call>\n{CALL}\n</tool_call>", True),
        (f"<tool_call>{CALL}</tool_call>\n<tool_call>\n{CALL}\n</tool_call> done", True),
        (f"<tool_call>{CALL}", False),
        ("<tool_call>", False),
        ('<tool_call>{"name": "clock"', False),
        ('<tool_call>{"arguments"', False),
        (f"<tool_call>{CALL}</tool_call><tool_call> no", False),
        (f"<<tool_call>{CALL}</tool_call>", True),
        ("<think><tool_call> maybe</think> well", True),
        (" \n<think><tool_call>", True),
        (f"<think>a</think><tool_call>{CALL}</tool_call>", True),
        ("<think>a</think><tool_call>no", False),
        ("well <think> <tool_call>no", False),
    ],
)
def test_calls_in_the_marks_of_models(text: str, is_legal: bool) -> None:
    assert takes(Form(call=json.dumps(WEATHER), thinking="maybe"), text) == is_legal


def test_nested_grammars_of_every_kind_come_after_thoughts() -> None:
    for body, text, wrong in (
        (("regex", "a+b"), "aab", "ba"),
        (("one_of", ("yes", "no")), "no", "maybe"),
        (("grammar", 'root ::= "(" root ")" | [ab]{1,3}'), "((ab))", "(("),
        (("grammar", 'start: NAME "=" NUM\nNAME: /[a-z]+/\nNUM: /[0-9]+/'), "x=15", "=5"),
        (("json_schema", json.dumps({"type": "array", "items": {"type": "integer"}})), "[1, 2]", "{}"),
    ):
        for thinking, before in (("maybe", "<think>a < b</think>"), ("maybe", ""), ("begun", "a < b\n</think>\n\n")):
            form = Form(body=body, thinking=thinking)  # type: ignore[arg-type]
            assert takes(form, before + text), (body, before)
            assert not takes(form, before + wrong), (body, before)
        assert not takes(Form(body=body, thinking="begun"), text), "thoughts are to be closed"
        assert not takes(Form(body=body), "<think>", is_whole=False)


def test_control_tokens_end_a_text_or_are_none() -> None:
    ends = compile_form(Form(call=ONE, end_ids=(1, 257)), Vocabulary(
        259, lambda token: bytes([token % 256]), frozenset({256, 257, 258}), (256,)
    ))  # fmt: skip
    constraint = fed(ends, b"ab")
    legal = constraint.mask()
    assert [bool(legal[token]) for token in (256, 257, 258)] == [True, True, False]
    assert constraint.advance(257)


@pytest.mark.parametrize("end", [b"<end>", b""])
def test_a_mark_that_is_a_control_token_is_that_token_and_not_its_text(end: bytes) -> None:
    table = [b"<<", b"<", b"1", b">", end, b"<<", b"["]
    given = Vocabulary(7, table.__getitem__, frozenset({4, 5, 6}), (4,))
    assert (given.control_id("<<"), given.control_id("<"), given.control_id("x")) == (5, None, None)
    free = fed(compile_form(Form(call=ONE, **MARKS), given), [0, 2, 5])
    assert by_trying(free, 7) == [2], "text goes on as it likes, and behind the token there is a call"
    assert by_trying(compile_form(Form(call=ONE, must_call=True, **MARKS), given).start(), 7) == [5]
    thinking = compile_form(Form(call=ONE, must_call=True, thinking="maybe", **MARKS), given)
    assert by_trying(thinking.start(), 7) == [5, 6]


def test_schemas_that_cannot_be_enforced_are_told() -> None:
    with pytest.raises(ParameterError, match="oneOf") as caught:
        compile_form(Form(call=json.dumps({"oneOf": [{"type": "string"}, {"maxLength": 3}]})), BYTES)
    assert caught.value.name == "tools"
