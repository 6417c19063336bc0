"""Every setting has its flag, its range and its default in the help; what is not built is refused by name."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any, get_args, get_type_hints

import pytest
from tests.cli.conftest import Invoke

from forerun import loading
from forerun.cli.options import Loading, Sampling, flag_names
from forerun.cli.report import as_flags
from forerun.errors import InputError
from forerun.sampling import NOT_BUILT, SamplingParams

NOT_FOR_USERS = {"policy", "max_sequences", "progress"}
"""Settings of `load` that are objects or concern servers."""

LOADED = inspect.signature(loading.load).parameters
MADE_WITHOUT_A_DEFAULT = {"target"}


def test_every_sampling_parameter_has_a_flag() -> None:
    assert {field.name for field in fields(SamplingParams)} == {field.name for field in fields(Sampling)}


def test_every_setting_of_load_has_a_flag() -> None:
    assert set(LOADED) - NOT_FOR_USERS == {field.name for field in fields(Loading)}


@pytest.mark.parametrize("group", [Loading, Sampling])
def test_unset_flags_are_not_passed_on(group: Any) -> None:
    required = {name: "x" for name in MADE_WITHOUT_A_DEFAULT if name in {field.name for field in fields(group)}}
    assert group(**required).given() == required


def help_of(group: Any, name: str) -> str:
    return str(get_args(get_type_hints(group, include_extras=True)[name])[1].help)


@pytest.mark.parametrize("field", fields(SamplingParams), ids=lambda field: field.name)
def test_help_repeats_the_default_of_a_sampling_parameter(field: Any) -> None:
    """Ranges are in the help where there is a value to give; the default is repeated word for word."""
    text = help_of(Sampling, field.name)
    if isinstance(field.default, (int, float)) and not isinstance(field.default, bool):
        assert f"(default: {field.default})" in text
    if field.default is not False:
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


@pytest.mark.parametrize("name", sorted(NOT_BUILT))
@pytest.mark.parametrize("form", ["--{} 1", "--{}=1", "--{}"])
def test_what_is_not_built_is_refused_by_name(invoke: Invoke, name: str, form: str) -> None:
    flag = name.replace("_", "-")
    result = invoke("generate", "x", "--target", "toy", *form.format(flag).split())
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: --{flag}: not built yet")
    assert result.stdout == ""


@pytest.mark.parametrize("command", [("generate", "x"), ("chat",)])
def test_adaptive_k_is_refused_by_name(invoke: Invoke, command: tuple[str, ...]) -> None:
    result = invoke(*command, "--target", "toy", "--drafter", "lookup", "--k", "auto")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--k: 'auto' is not built yet" in result.stderr


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
    params = {"max_tokens": 2, "temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "seed": 7}
    args = [part for name, value in params.items() for part in (flag_names()[name], str(value))]
    more = ("--stop-token-id", "5", "--stop-token-id", "6", "--include-stop-token", "--ignore-eos")
    assert invoke("generate", "x", "--target", "toy", *args, *more).exit_code == 0
    expected = {**params, "stop_token_ids": [5, 6], "include_stop_token": True, "ignore_eos": True}
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
    ],
)
def test_remedies_are_spelled_as_flags(text: str, expected: str) -> None:
    assert as_flags(text) == expected
