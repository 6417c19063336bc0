"""Every setting has its flag, its range and its default in the help; what is not built is refused by name."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import Any

import pytest
import typer
from rich.text import Text
from tests.cli.conftest import Invoke

from forerun import loading
from forerun.cli import app
from forerun.cli.flags import options_of
from forerun.cli.options import PYTHON_ONLY, Loading, Sampling, flag_names
from forerun.cli.report import as_flags
from forerun.errors import InputError
from forerun.sampling.params import ELSEWHERE, NOT_BUILT, SamplingParams

NOT_FOR_USERS = {"policy", "max_sequences", "progress"}
"""Settings of `load` that are objects or concern servers."""

LOADED = inspect.signature(loading.load).parameters
MADE_WITHOUT_A_DEFAULT = {"target"}


def test_every_sampling_parameter_has_a_flag() -> None:
    assert {field.name for field in fields(SamplingParams)} - set(PYTHON_ONLY) == set(options_of(Sampling))
    assert not set(PYTHON_ONLY) & set(options_of(Sampling))


def test_every_setting_of_load_has_a_flag() -> None:
    assert set(LOADED) - NOT_FOR_USERS == set(options_of(Loading))


@pytest.mark.parametrize("group", [Loading, Sampling])
def test_unset_flags_are_not_passed_on(group: Any) -> None:
    required = dict.fromkeys(MADE_WITHOUT_A_DEFAULT & set(options_of(group)), "x")
    assert group(**required).given() == required


def help_of(group: Any, name: str) -> str:
    return str(options_of(group)[name].help)


WITHOUT_A_RANGE = {"bad_words", "stop", "regex", "json_schema", "grammar", "one_of", "best_of", "logprobs_kind"}
"""Texts, and what is bounded by another flag or listed."""


@pytest.mark.parametrize(
    "field", [field for field in fields(SamplingParams) if field.name not in PYTHON_ONLY], ids=lambda field: field.name
)
def test_help_repeats_the_default_of_a_sampling_parameter(field: Any) -> None:
    """Ranges are in the help where there is a value to give; the default is repeated word for word."""
    text = help_of(Sampling, field.name)
    if isinstance(field.default, (int, float)) and not isinstance(field.default, bool):
        assert f"(default: {field.default})" in text
    if field.default is not False and field.name not in WITHOUT_A_RANGE:
        assert any(character.isdecimal() for character in text), "no range"


@pytest.mark.parametrize("name", ["k", "verifier", "draft_min_confidence", "device", "dtype"])
def test_help_repeats_the_default_of_a_setting_of_load(name: str) -> None:
    assert f"(default: {LOADED[name].default})" in help_of(Loading, name)


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_help_names_every_flag(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    result = invoke(command, "--help")
    assert result.exit_code == 0
    shared = {flag for name, flag in flag_names().items() if name not in ("prompt_ids", "compare")}
    assert all(f"{flag} " in result.stdout for flag in shared)


@pytest.mark.parametrize("command", sorted(typer.main.get_group(app).list_commands(None)))  # type: ignore[arg-type]
def test_help_is_shown_as_it_is_written(command: str) -> None:
    """Words in brackets would be taken for markup, and left out."""
    found = typer.main.get_group(app).get_command(None, command)  # type: ignore[arg-type]
    assert found is not None
    texts = [found.help, *(getattr(parameter, "help", None) for parameter in found.params)]
    for text in filter(None, texts):
        assert Text.from_markup(text).plain == text


PANELS = {
    "Sampling": {"temperature", "top_k", "top_p", "min_p", "seed"},
    "Penalties and biases": {"repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias"},
    "Allowed text": {"bad_words", "allowed_token_ids", "regex", "json_schema", "grammar", "one_of"},
    "Length and stops": {
        "max_tokens", "min_tokens", "stop", "include_stop_string", "stop_token_ids", "include_stop_token", "ignore_eos",
    },
    "Output": {"n", "best_of", "logprobs", "logprobs_kind", "prompt_logprobs"},
}  # fmt: skip


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_help_groups_the_sampling_flags(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    panels: dict[str, set[str]] = {}
    panel = ""
    for line in invoke(command, "--help").stdout.splitlines():
        head = re.match(r"\W*─ ([A-Z][\w ]*) ─", line)
        panel = head[1] if head else panel
        panels.setdefault(panel, set()).update(re.findall(r"^\W*(--[\w-]+)", line))
    names = flag_names()
    for name, parameters in PANELS.items():
        assert {names[parameter] for parameter in parameters} <= panels[name]
    assert set().union(*PANELS.values()) == set(options_of(Sampling))


@pytest.mark.parametrize("name", sorted(NOT_BUILT))
@pytest.mark.parametrize("form", ["--{} 1", "--{}=1", "--{}"])
def test_what_is_not_built_is_refused_by_name(invoke: Invoke, name: str, form: str) -> None:
    flag = name.replace("_", "-")
    result = invoke("generate", "x", "--target", "toy", *form.format(flag).split())
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: --{flag}: not built yet")
    assert result.stdout == ""


@pytest.mark.parametrize("name", sorted(PYTHON_ONLY))
@pytest.mark.parametrize("command", [("generate", "x"), ("chat",)])
def test_python_objects_are_refused_by_name(invoke: Invoke, command: tuple[str, ...], name: str) -> None:
    flag = "--" + name.replace("_", "-")
    result = invoke(*command, "--target", "toy", flag, "f")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"error: {flag}: takes Python objects, which no flag can hold. "
        f"give it in Python: llm.generate(PROMPT, {name}=...).\n"
    )


@pytest.mark.parametrize(
    "name, meant", [(name, meant) for name, meant in ELSEWHERE.items() if meant not in PYTHON_ONLY]
)
def test_other_engines_names_lead_to_ours(invoke: Invoke, name: str, meant: str) -> None:
    flag = "--" + name.replace("_", "-")
    result = invoke("generate", "x", "--target", "toy", flag, "1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"error: {flag}: unknown parameter. did you mean {flag_names()[meant]}.\n"


def test_a_python_name_leads_to_its_flag(invoke: Invoke) -> None:
    result = invoke("generate", "x", "--target", "toy", "--bad-words", "x")
    assert result.stderr == "error: --bad-words: unknown parameter. did you mean --bad-word.\n"


@pytest.mark.parametrize("command", [("generate", "x"), ("chat",)])
@pytest.mark.parametrize("k", ["many", "1.5", "-1", ""])
def test_k_is_a_number_or_auto(invoke: Invoke, command: tuple[str, ...], k: str) -> None:
    result = invoke(*command, "--target", "toy", "--drafter", "lookup", "--k", k)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--k:" in result.stderr
    assert "auto" in result.stderr


def test_an_unknown_option_gets_near_matches(invoke: Invoke) -> None:
    result = invoke("generate", "x", "--target", "toy", "--temprature", "1")
    assert result.exit_code == 2
    assert "--temprature" in result.stderr
    assert "--temperature" in result.stderr


OUT_OF_RANGE = [
    ("--temperature", "-0.1"),
    ("--temperature", "nan"),
    ("--temperature", "inf"),
    ("--top-p", "0"),
    ("--top-p", "1.01"),
    ("--min-p", "-0.1"),
    ("--min-p", "2"),
    ("--top-k", "-2"),
    ("--seed", "-1"),
    ("--seed", str(1 << 64)),
    ("--max-tokens", "-1"),
    ("--stop-token-id", "-1"),
    ("--k", "-1"),
    ("--k", "1.5"),
    ("--draft-ctx", "0"),
    ("--draft-vocabulary", "0"),
    ("--draft-min-confidence", "1.1"),
    ("--context-length", "1"),
    ("--verifier", "tree"),
    ("--drafter", "psychic"),
    ("--temperature", "hot"),
    ("--top-k", "1.5"),
]


@pytest.mark.parametrize("flag, value", OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused_before_any_model_is_loaded(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, flag: str, value: str
) -> None:
    from forerun.models import pull

    monkeypatch.setattr(pull, "resolve", lambda *args, **settings: pytest.fail("a model was looked up"))
    drafting = () if flag == "--drafter" else ("--draft", "toy-draft")
    result = invoke("generate", "x", "--target", "toy", *drafting, flag, value)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert flag in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_settings_reach_load_and_sampling_under_their_own_names(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: dict[str, Any] = {}

    def load(**settings: Any) -> Any:
        taken.update(settings)
        raise InputError("enough seen")

    monkeypatch.setattr(loading, "load", load)
    flags = {
        "target": "a", "draft": "b", "drafter": "model", "k": 3, "verifier": "chain", "draft_context": 9,
        "draft_vocabulary": 8, "draft_min_confidence": 0.5, "device": "cpu", "dtype": "float32", "context_length": 7,
    }  # fmt: skip
    names = flag_names()
    args = [part for name, value in flags.items() for part in (names[name], str(value))]
    assert invoke("generate", "x", *args, "--strict", "--no-mirror").stderr == "error: enough seen.\n"
    taken.pop("progress")
    assert taken == {**flags, "strict": True, "mirror": False}


def test_sampling_flags_reach_the_request(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    from forerun.llm import LLM

    seen: list[dict[str, Any]] = []
    real = LLM.stream
    monkeypatch.setattr(
        LLM, "stream", lambda self, prompt, **params: seen.append(params) or real(self, prompt, **params)
    )
    params = {
        "max_tokens": 2, "temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "seed": 7,
        "repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.3, "min_tokens": 1, "n": 1,
        "logprobs": 2, "logprobs_kind": "processed", "prompt_logprobs": 0, "regex": "[a-z]+",
    }  # fmt: skip
    args = [part for name, value in params.items() for part in (flag_names()[name], str(value))]
    more = (
        "--stop-token-id", "5", "--stop-token-id", "6", "--include-stop-token", "--stop", "a", "--stop", r"\n\t\\",
        "--include-stop-string", "--logit-bias", "5=1", "--logit-bias", "6=-2.5",
        "--bad-word", "no", "--bad-word", "x y", "--allowed-token-ids", "97, 98,99",
    )  # fmt: skip
    assert invoke("generate", "x", "--target", "toy", *args, *more).exit_code == 0
    expected = {
        **params, "stop_token_ids": [5, 6], "include_stop_token": True, "stop": ["a", "\n\t\\"],
        "include_stop_string": True, "logit_bias": [("5", 1.0), ("6", -2.5)], "bad_words": ["no", "x y"],
        "allowed_token_ids": [97, 98, 99],
    }  # fmt: skip
    assert seen == [expected]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("give draft=NAME", "give --draft NAME"),
        ("try dtype='float32'.", "try --dtype float32."),
        ("strict=True is slower", "--strict is slower"),
        ("set FORERUN_MIRROR=1", "set FORERUN_MIRROR=1"),
        ("unset x=1 and offline=True", "unset x=1 and offline=True"),
        ("draft_context=512", "--draft-ctx 512"),
        ("5 is above max_tokens, 4", "5 is above --max-tokens, 4"),
        ("loosen bad_words, the grammar or logits_processors", "loosen --bad-word, the grammar or logits_processors"),
        (
            "'max_tokens' is what was given, and max_tokens_2 too",
            "'max_tokens' is what was given, and max_tokens_2 too",
        ),
    ],
)
def test_remedies_are_spelled_as_flags(text: str, expected: str) -> None:
    assert as_flags(text) == expected


def test_a_fallback_to_torch_is_told_on_standard_error(invoke: Invoke) -> None:
    line = "toy-foreign: on the torch runtime, since tensors of type Q2_K are not served natively\n"
    flags = ("generate", "x", "--temperature", "0", "--max-tokens", "5")
    expected = invoke(*flags, "--target", "toy")
    assert (expected.exit_code, "runtime" in expected.stderr) == (0, False)
    told = invoke(*flags, "--target", "toy-foreign")
    assert (told.exit_code, told.stdout, told.stderr.count(line)) == (0, expected.stdout, 1)
    asked = invoke(*flags, "--target", "toy-foreign", "--runtime", "torch")
    assert (asked.exit_code, asked.stdout, asked.stderr.count(line)) == (0, expected.stdout, 0)
    refused = invoke(*flags, "--target", "toy-foreign", "--runtime", "native")
    assert (refused.exit_code, refused.stdout) == (3, "")
    both = invoke(*flags, "--target", "toy", "--draft", "toy-foreign", "--draft-runtime", "native")
    assert (both.exit_code, both.stdout) == (3, "")
    unknown = invoke(*flags, "--target", "toy", "--runtime", "fast")
    assert (unknown.exit_code, unknown.stderr) == (
        2, "error: --runtime: 'fast' is not allowed. one of auto, native, torch.\n",
    )  # fmt: skip
