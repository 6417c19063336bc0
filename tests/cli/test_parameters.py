"""Every sampling flag does what the Python parameter does, with and without drafts, and is refused by its own name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.conftest import Invoke
from tests.cli.toys import EOS, plain_text

from forerun.cli.options import flag_names
from forerun.cli.values import ESCAPES, biases, unescaped

GREEDY = ("hello", "--target", "toy", "--temperature", "0", "--max-tokens", "40")
DRAFTERS = [
    (), ("--draft", "toy-draft", "--k", "3"), ("--drafter", "lookup", "--k", "5"),
    ("--draft", "toy-draft", "--drafter", "stack", "--k", "5"),
]  # fmt: skip
PLAIN = "nnkevbjryxn iuzo jbcphuewnrnpzmwsrud  jb"
"""What `toy` writes after "hello", greedily."""

NUMBER_SCHEMA = '{"type": "integer", "minimum": 10, "maximum": 999}'


def text_of(invoke: Invoke, *args: str) -> str:
    result = invoke("generate", *args)
    assert result.exit_code == 0, result.stderr
    return str(result.stdout)


def test_the_toy_writes_what_these_tests_rely_on() -> None:
    assert plain_text() == PLAIN


CHANGES = [
    (("--repetition-penalty", "1.5"), {"repetition_penalty": 1.5}),
    (("--frequency-penalty", "1.5"), {"frequency_penalty": 1.5}),
    (("--frequency-penalty", "-2"), {"frequency_penalty": -2}),
    (("--presence-penalty", "2"), {"presence_penalty": 2}),
    (("--logit-bias", "110=-100", "--logit-bias", "97=2.5"), {"logit_bias": {110: -100, 97: 2.5}}),
    (("--bad-word", "kev", "--bad-word", "n"), {"bad_words": ["kev", "n"]}),
    (("--allowed-token-ids", "97, 98 99"), {"allowed_token_ids": [97, 98, 99]}),
    (("--stop", "jry", "--stop", "xn i"), {"stop": ["jry", "xn i"]}),
    (("--stop", "kev", "--include-stop-string"), {"stop": "kev", "include_stop_string": True}),
    (("--stop", "kev", "--min-tokens", "9"), {"stop": "kev", "min_tokens": 9}),
    (("--stop", "y", "--min-tokens", "5"), {"stop": "y", "min_tokens": 5}),
    (("--stop-token-id", "107", "--min-tokens", "9"), {"stop_token_ids": [107], "min_tokens": 9}),
    (("--regex", "[a-f]{5,30}"), {"regex": "[a-f]{5,30}"}),
    (("--json-schema", NUMBER_SCHEMA), {"json_schema": NUMBER_SCHEMA}),
    (("--grammar", 'root ::= "(" root ")" | [a-f]{5,30}'), {"grammar": 'root ::= "(" root ")" | [a-f]{5,30}'}),
    (("--one-of", "abc", "--one-of", r"d\ne"), {"one_of": ["abc", "d\ne"]}),
]


@pytest.mark.parametrize("drafter", DRAFTERS, ids=["plain", "model", "lookup", "stack"])
@pytest.mark.parametrize("flags, params", CHANGES, ids=[" ".join(flags) for flags, _ in CHANGES])
def test_a_flag_is_the_parameter(
    invoke: Invoke, flags: tuple[str, ...], params: dict[str, Any], drafter: tuple[str, ...]
) -> None:
    expected = plain_text(**params)
    assert text_of(invoke, *GREEDY, *flags, *drafter) == expected
    assert (expected != PLAIN) is (flags != ("--stop", "kev", "--min-tokens", "9"))


@pytest.mark.parametrize("flags, params", CHANGES, ids=[" ".join(flags) for flags, _ in CHANGES])
def test_compare_asks_the_same_of_both_runs(invoke: Invoke, flags: tuple[str, ...], params: dict[str, Any]) -> None:
    result = invoke("generate", *GREEDY, *flags, *DRAFTERS[1], "--compare", "--json")
    document = json.loads(result.stdout)
    assert document["text"] == document["comparison"]["plain"]["text"] == plain_text(**params)
    assert document["comparison"]["identical"] is True


def test_all_of_them_together(invoke: Invoke) -> None:
    flags = (
        "--repetition-penalty", "1.2", "--frequency-penalty", "0.5", "--presence-penalty", "0.5",
        "--logit-bias", "97=3", "--bad-word", "ab", "--min-tokens", "4", "--stop", "z", "--regex", "[a-z]{10,40}",
        "--logprobs", "1", "--temperature", "0.9", "--top-k", "20", "--top-p", "0.95", "--min-p", "0.01", "--seed", "5",
        "--max-tokens", "40",
    )  # fmt: skip
    texts = {text_of(invoke, "hello", "--target", "toy", *flags, *drafter) for drafter in DRAFTERS}
    assert len(texts) == 1
    assert "ab" not in texts.pop()


# -- stops -----------------------------------------------------------------------------------------------------------


def test_what_ended_the_text_is_said(invoke: Invoke) -> None:
    result = invoke("generate", *GREEDY, "--stop", "bjr")
    assert result.stdout == PLAIN[: PLAIN.index("bjr")]
    assert "8 (stop at 'bjr'), prompt 5" in result.stderr, "the tokens of the stop string are counted"
    document = json.loads(invoke("generate", *GREEDY, "--stop", "bjr", "--json").stdout)
    assert (document["finish_reason"], document["stop_reason"]) == ("stop", "bjr")
    assert (document["text"], len(document["tokens"])) == (result.stdout, 8)
    assert json.loads(invoke("generate", *GREEDY, "--json").stdout)["stop_reason"] is None


def test_escapes_in_stop_strings(invoke: Invoke) -> None:
    args = ("x", "--target", "toy-phrase", "--max-tokens", "30")
    text = text_of(invoke, *args)
    assert "\n" in text
    assert text_of(invoke, *args, "--stop", r"\n") == text[: text.index("\n")]
    assert text_of(invoke, *args, "--stop", r"\t", "--stop", r"\\n", "--stop", r"\r") == text
    assert text_of(invoke, *args, "--stop", "\n", "--include-stop-string") == text[: text.index("\n") + 1]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=12))
def test_every_text_can_be_written_with_escapes(text: str) -> None:
    written = text.replace("\\", r"\\")
    assert unescaped("stop", written) == text
    for letter, character in ESCAPES.items():
        written = written.replace(character, f"\\{letter}") if letter != "\\" else written
    assert unescaped("stop", written) == text


def test_a_schema_comes_from_a_file(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_bytes(b"\xef\xbb\xbf" + NUMBER_SCHEMA.encode() + b"\n")
    assert text_of(invoke, *GREEDY, "--json-schema", f"@{path}") == plain_text(json_schema=NUMBER_SCHEMA)


# -- refusals --------------------------------------------------------------------------------------------------------

REFUSED = [
    (("--repetition-penalty", "0"), "--repetition-penalty: 0.0 is not allowed"),
    (("--repetition-penalty", "inf"), "--repetition-penalty: inf is not allowed"),
    (("--frequency-penalty", "2.1"), "--frequency-penalty: 2.1 is not allowed"),
    (("--presence-penalty", "-3"), "--presence-penalty: -3.0 is not allowed"),
    (("--logit-bias", "5"), "--logit-bias: '5' is not ID=VALUE. for example --logit-bias 1234=-100"),
    (("--logit-bias", "5=much"), "--logit-bias: 'much' is not a number"),
    (("--logit-bias", "5=nan"), "--logit-bias: nan is not allowed"),
    (("--logit-bias", "5=101"), "the bias of token 5 must be from -100 to 100"),
    (("--logit-bias", "-1=1"), "--logit-bias: '-1' is not allowed"),
    (("--logit-bias", "007=1"), "--logit-bias: '007' is not allowed"),
    (("--logit-bias", "5=1", "--logit-bias", "5=2"), "--logit-bias: token 5 is given twice"),
    (("--bad-word", ""), "--bad-word: an empty word is no word"),
    (("--bad-word", r"\q"), r"--bad-word: \q is not an escape"),
    (("--bad-word", "\udcff"), "--bad-word: it is not valid UTF-8"),
    (("--allowed-token-ids", ""), "--allowed-token-ids: no token would be legal"),
    (("--allowed-token-ids", "1,b"), "--allowed-token-ids: 'b' is not a token id"),
    (("--allowed-token-ids", "1,-1"), "--allowed-token-ids: -1 is not allowed"),
    (("--min-tokens", "-1"), "--min-tokens: -1 is not allowed"),
    (("--min-tokens", "5", "--max-tokens", "4"), "--min-tokens: 5 is above --max-tokens, 4"),
    (("--stop", ""), "--stop: an empty string would be found at once"),
    (("--stop", "a", "--stop", ""), "--stop: an empty string would be found at once"),
    (("--stop", r"\end"), r"--stop: \e is not an escape. \n, \t, \r and \\ are"),
    (("--stop", "x\\"), "--stop: it ends with half an escape"),
    (("--stop", "\udcff"), "--stop: it is not valid UTF-8"),
    (("--seed", "-1"), "--seed: -1 is not allowed. a whole number from 0 to 2^64 - 1"),
    (("--n", "0"), "--n: 0 is not allowed"),
    (("--n", "3", "--best-of", "2"), "--best-of: 2 is not allowed. a whole number from n to 1000"),
    (("--n", "1001"), "--n: 1001 is not allowed. a whole number from 1 to 1000"),
    (
        ("--json-schema", "a.json"),
        "--json-schema: 'a.json' is no JSON. for the content of a file: --json-schema @a.json",
    ),
    (("--logprobs", "-1"), "--logprobs: -1 is not allowed"),
    (("--logprobs-kind", "cooked"), "--logprobs-kind: 'cooked' is not allowed. one of raw, processed"),
    (("--prompt-logprobs", "-1"), "--prompt-logprobs: -1 is not allowed"),
    (("--regex", "a(?=b)"), "--regex: look-arounds are not supported"),
    (("--regex", "a("), "--regex: unclosed group"),
    (("--regex", "\udcff"), "--regex: it is not valid UTF-8"),
    (("--json-schema", "{"), "--json-schema: it is not JSON"),
    (("--json-schema", '{"not": {}}'), "--json-schema: the keyword 'not' at $ is not supported"),
    (("--json-schema", "@no/such/file"), "--json-schema: no/such/file cannot be read: No such file or directory"),
    (("--grammar", "a.gbnf"), "--grammar: 'a.gbnf' is no grammar. for the content of a file: --grammar @a.gbnf"),
    (("--grammar", "root ::= x"), "--grammar: there is no rule x, which is used at line 1, column 10"),
    (("--grammar", "@no/such/file"), "--grammar: no/such/file cannot be read: No such file or directory"),
    (("--one-of", ""), "--one-of: '' is no text"),
    (("--one-of", "a", "--grammar", "b"), "--one-of: cannot be combined with grammar"),
    (("--json-schema", "{}", "--regex", "a"), "--json-schema: cannot be combined with regex"),
    (("--regex", "a", "--ignore-eos"), "--ignore-eos: cannot be combined with a grammar"),
]


@pytest.mark.parametrize("flags, fact", REFUSED)
@pytest.mark.parametrize("command", [("generate", "x"), ("chat",)])
def test_a_bad_value_is_refused_before_any_model_is_loaded(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], flags: tuple[str, ...], fact: str
) -> None:
    from forerun.models import pull

    monkeypatch.setattr(pull, "resolve", lambda *args, **settings: pytest.fail("a model was looked up"))
    result = invoke(*command, "--target", "toy", *flags, input="never read\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert fact in result.stderr
    assert "None" not in result.stderr, "no flag takes it"
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "flags, fact",
    [
        (("--logit-bias", f"{EOS + 1}=1"), "--logit-bias: token id 257 is outside the model's vocabulary, 0..256"),
        (("--allowed-token-ids", "257"), "--allowed-token-ids: token id 257 is outside"),
    ],
)
def test_what_only_the_model_can_tell_is_refused_by_name_too(invoke: Invoke, flags: tuple[str, ...], fact: str) -> None:
    result = invoke("generate", *GREEDY, *flags)
    assert (result.exit_code, result.stdout) == (2, "")
    assert fact in result.stderr


def test_no_legal_token_is_an_error_of_its_own(invoke: Invoke) -> None:
    result = invoke("generate", *GREEDY, "--allowed-token-ids", "110", "--bad-word", "nn")
    assert (result.exit_code, result.stdout) == (4, "n")
    assert "loosen --bad-word, --allowed-token-ids, --min-tokens" in result.stderr


@pytest.mark.parametrize(
    "flags, note",
    [
        (("--include-stop-string",), "--include-stop-string has no effect without --stop"),
        (("--logprobs-kind", "raw"), "--logprobs-kind has no effect without --logprobs or --best-of"),
    ],
)
def test_a_parameter_without_effect_is_noted(invoke: Invoke, flags: tuple[str, ...], note: str) -> None:
    result = invoke("generate", *GREEDY, *flags)
    assert (result.exit_code, result.stdout) == (0, PLAIN)
    assert result.stderr.startswith(f"note: {note}\n")


@given(st.dictionaries(st.integers(0, 10**6), st.floats(-100, 100), min_size=1))
def test_biases_are_read_as_written(given_biases: dict[int, float]) -> None:
    from forerun.sampling import SamplingParams

    read = SamplingParams(logit_bias=biases([f"{token}={value}" for token, value in given_biases.items()]))
    assert dict(read.biases) == given_biases


def test_names_with_a_flag_are_all_tested_here_or_in_their_own_file() -> None:
    tested = {name for flags, params in CHANGES for name in params}
    elsewhere = {"n", "best_of", "logprobs", "logprobs_kind", "prompt_logprobs"}  # test_several, test_logprobs
    old = {
        "temperature", "top_k", "top_p", "min_p", "seed", "max_tokens", "ignore_eos", "include_stop_token",
    }  # fmt: skip
    from forerun.cli.flags import options_of
    from forerun.cli.options import Sampling

    assert set(options_of(Sampling)) == tested | elsewhere | old
    assert set(options_of(Sampling)) <= set(flag_names())


@pytest.mark.parametrize("flag", ["--logprobs", "--top-p", "--regex"])
def test_a_flag_without_its_value_is_not_called_unknown(invoke: Invoke, flag: str) -> None:
    result = invoke("generate", "x", "--target", "toy", flag)
    assert (result.exit_code, result.stdout) == (2, "")
    assert flag in result.stderr
    assert "requires an argument" in result.stderr
    assert "did you mean" not in result.stderr
