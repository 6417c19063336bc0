"""Grammars and lists as parameters: what is understood, what is refused and where, and that one compiles once."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.constraints.vocabularies import json_bytes

from forerun.constraints.cache import GrammarCache
from forerun.constraints.grammar import COMPILERS, compile_grammar, compile_one_of
from forerun.errors import ParameterError

VOCABULARY = json_bytes()
JSON = r"""root ::= value  # the grammar that llama.cpp ships, written anew
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
value ::= object | array | string | number | ("true" | "false" | "null") ws
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""


def takes(grammar: Any, text: str) -> bool:
    constraint = grammar.start()
    return all(constraint.advance(byte) for byte in text.encode()) and constraint.advance(256)


@pytest.mark.parametrize(
    ("text", "is_json"),
    [
        ('{"a": [1, true, "x\\n日本", -1.5e10]}', True), ("[[[]], {}]", True), ('"\\u00e9"', True), ("0.5", True),
        ('{"a": 01}', False), ("[1,2", False), ('"\\u00g0"', False), ('"\n"', False), ("{,}", False), ("", False),
    ],
)  # fmt: skip
def test_json_as_a_grammar(text: str, is_json: bool) -> None:
    assert takes(compile_grammar(JSON, VOCABULARY), text) == is_json


def test_the_part_of_larks_notation_that_is_understood() -> None:
    text = '?start: a [b] "c"i -> name\n%import common.INT\n%ignore " "\n?a: INT~2..3\nb: "x".."z" // and\n  | /q+/i'
    grammar = compile_grammar(text, VOCABULARY)
    assert [takes(grammar, one) for one in ("12 3 c", "1 2 3 QqC", "1 2 yc")] == [True] * 3
    assert not any(takes(grammar, one) for one in ("12 c", "1 2", "1 2 w c", "1 2 3 4 c"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("root ::= x", "there is no rule x, which is used at line 1, column 10"),
        ('root ::= "a"\n  | root root "b"\nroot ::= "c"', "the rule root is defined twice, at line 3, column 1"),
        ('root ::= "a" root', "the rule root, at line 1, column 1, derives no finite text"),
        ('root ::= "a" | x\nx ::= "b" y\ny ::= x "c"', "the rule [xy], at line [23], column 1, derives no finite text"),
        ('root ::= "a', "a text without an end, at line 1, column 10"),
        ("root ::= [z-a]", "the range 'z' to 'a' is the wrong way round, at line 1, column 10"),
        ("root ::= [^\\x00-\\U0010FFFF]", "no character is in"),
        ('root ::= (("a")', "a group that begins here has no '\\)', at line 1, column 10"),
        ('root ::= "a" )', "a group that was never begun ends, at line 1, column 14"),
        ("root ::= <|eot|>", "a token in angle brackets is not supported"),
        ('x ::= "a"', "no rule is named root: it has x"),
        ('root ::= "\\q"', r"\\q is no escape, at line 1, column 11"),
        ('root ::= "\\ud800"', r"\\ud800 is no character"),
        ('root ::= "a"{3,2}', "the counts of \\{3,2} are the wrong way round"),
        ('root ::= "a"{1,100000}', "the count 100,000 is too large, at line 1, column 13"),
        ('root ::= * "a"', "'\\*' has nothing before it, at line 1, column 10"),
        ('root ::= "a"***', "a repetition of a repetition of a repetition"),
        ("root ::= " + "(" * 60 + '"a"' + ")" * 60, "brackets are nested too deeply, at line 1"),
        ('root ::= ""', "nothing but the empty text"),
        ('start: "a" b', "there is no rule b, which is used at line 1, column 12"),
        ('start: "a"\n  | %json {}', "%json is not supported .* at line 2, column 5"),
        ('start: "a"\n%llguidance {"no_forcing": false}', "%llguidance is not supported .* at line 2, column 1"),
        ('start: x\nx[max_tokens=3]: "a"', r"the attribute '\[max_tokens=3\]' of a rule is not supported, at line 2"),
        ("start: <eos>", "a token in angle brackets is not supported"),
        ('start: "x" start', "derives no finite text"),
        ("start: /a(?=b)/", "look-arounds are not supported: .* at line 1, column 8"),
        ("start: /(/", "unclosed group"),
        ('start: A\nA: A "b" | "c"', 'circular reference in token "A"'),
        ("start: 'a'", "a text stands between double quotes, at line 1, column 8"),
        ("", "no rule is named start: it has no rule"),
        ("foo", "a rule \\(NAME : ...\\) is needed, not"),
        ("root ::= \ud800", "not valid Unicode"),
        ("x" * 100_001, "100,001 characters"),
        ("\n".join(f'r{i} ::= "a"' for i in range(2001)) + "\nroot ::= r0", "2,002 rules"),
        (3, "a grammar is a string, not int"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_place(text: Any, said: str) -> None:
    with pytest.raises(ParameterError, match=said) as caught:
        compile_grammar(text, VOCABULARY)
    assert caught.value.name == "grammar"
    assert "\n" not in str(caught.value)


def test_a_list_is_its_texts_and_nothing_else() -> None:
    texts = ["yes", "no", "yes/no é日\n.*", "no"]
    grammar = compile_one_of(texts, VOCABULARY)
    assert all(takes(grammar, text) for text in texts)
    assert not any(takes(grammar, text) for text in ("ye", "yesno", "yes/no é日\n.", "", "NO"))


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([], "a list of texts is needed"), ("yes", "a list of texts is needed"), (None, "a list of texts is needed"),
        (["a", ""], "no text that can be written"), (["a", 3], "3 is no text"), (["\ud800"], "not valid Unicode"),
        (["a"] * 10_001, "10,001 texts"), (["a" * 100_001], "100,001 characters"),
    ],
)  # fmt: skip
def test_lists_that_are_none_are_refused(texts: Any, said: str) -> None:
    with pytest.raises(ParameterError, match=said) as caught:
        compile_one_of(texts, VOCABULARY)
    assert caught.value.name == "one_of"


def test_those_who_ask_at_once_share_one_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, cache, begin = list[str](), GrammarCache(lambda: VOCABULARY), threading.Barrier(8)
    compile_it = COMPILERS["grammar"]
    monkeypatch.setitem(COMPILERS, "grammar", lambda given, over: compiled.append(given) or compile_it(given, over))
    found = list[Any]()

    def ask() -> None:
        begin.wait()
        found.append(cache.get("grammar", JSON))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compiled) == 1
    assert len(found) == 8
    assert len({id(grammar) for grammar in found}) == 1
    assert cache.get("one_of", ["a", "b"]) is cache.get("one_of", ("a", "b"))
