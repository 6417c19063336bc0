"""`forerun generate` on the toy models: what is on standard output, what is on standard error, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.conftest import Invoke
from tests.cli.toys import PHRASE

from forerun.cli.prompt import read_prompt
from forerun.errors import PromptError

GREEDY = ("--target", "toy", "--temperature", "0")
DRAFTED = (*GREEDY, "--draft", "toy-draft", "--k", "3")
MANY_DOCUMENTS = "x" * 64


def text_of(invoke: Invoke, *args: str) -> str:
    result = invoke("generate", *args)
    assert result.exit_code == 0, result.stderr
    return str(result.stdout)


def test_standard_output_holds_exactly_the_text(invoke: Invoke) -> None:
    result = invoke("generate", "x", "--target", "toy-phrase", "--max-tokens", str(len(PHRASE)))
    assert result.stdout == PHRASE.decode()
    for row in ("tokens/s", "time to first token", "tokens per pass", "draft 0.", "target 0.", "verify 0.", "host 0."):
        assert row in result.stderr
    assert "acceptance" not in result.stderr, "nothing was drafted"


def test_a_cut_character_ends_as_plain_decoding_would_end_it(invoke: Invoke) -> None:
    cut = PHRASE.index(b"\xf0") + 2
    expected = PHRASE[:cut].decode(errors="replace")
    assert text_of(invoke, "x", "--target", "toy-phrase", "--max-tokens", str(cut)) == expected


@pytest.mark.parametrize(
    "flags",
    [
        DRAFTED, (*GREEDY, "--drafter", "lookup"), (*DRAFTED, "--show-drafts"), (*GREEDY, "--drafter", "suffix"),
        (*DRAFTED, "--drafter", "stack"),
    ],
)  # fmt: skip
def test_drafts_do_not_change_the_text(invoke: Invoke, flags: tuple[str, ...]) -> None:
    plain = text_of(invoke, "hello", *GREEDY, "--max-tokens", "50")
    assert text_of(invoke, "hello", *flags, "--max-tokens", "50") == plain
    assert len(plain) == 50


def test_seeded_text_is_the_same_with_and_without_a_draft(invoke: Invoke) -> None:
    flags = ("--target", "toy", "--seed", "11", "--max-tokens", "40")
    assert text_of(invoke, "hello", *flags) == text_of(invoke, "hello", *flags, "--draft", "toy-draft")
    assert text_of(invoke, "hello", *flags) != text_of(invoke, "hello", *flags[:2], "--seed", "12", *flags[4:])


def test_the_table_tells_how_drafting_went(invoke: Invoke) -> None:
    result = invoke("generate", "hello", *DRAFTED, "--max-tokens", "50", "--show-drafts")
    document = json.loads(invoke("generate", "hello", *DRAFTED, "--max-tokens", "50", "--show-drafts", "--json").stdout)
    speculation, origins = document["speculation"], document["origins"]
    assert f"{100 * speculation['acceptance_rate']:.0f} %" in result.stderr
    assert f"{speculation['tokens_per_pass']:.2f} ({speculation['num_rounds']} rounds)" in result.stderr
    first = speculation["acceptance_by_depth"][0]
    assert f"1: {100 * first:.0f} %" in result.stderr
    for origin in ("drafted", "recovered", "bonus", "decoded"):
        assert f"{origin} {origins.count(origin)}" in result.stderr


def test_json_prints_one_document_and_nothing_else(invoke: Invoke) -> None:
    result = invoke("generate", "hello", *DRAFTED, "--max-tokens", "20", "--json")
    document = json.loads(result.stdout)
    assert len(result.stdout.splitlines()) == 1
    assert set(document) == {"text", "tokens", "finish_reason", "stop_reason", "usage", "speculation"}
    assert set(document["usage"]) == {"prompt_tokens", "completion_tokens", "tokens_per_s", "time_to_first_token_s"}
    assert set(document["speculation"]) == {
        "tokens_per_pass", "acceptance_rate", "acceptance_by_depth", "histogram", "num_rounds",
        "draft_s", "target_s", "verify_s", "host_s",
    }  # fmt: skip
    assert bytes(document["tokens"]).decode() == document["text"]
    assert (document["usage"]["prompt_tokens"], document["usage"]["completion_tokens"]) == (5, 20)
    assert document["finish_reason"] == "length"


def test_stop_tokens_end_the_text(invoke: Invoke) -> None:
    text = text_of(invoke, "hello", *GREEDY, "--max-tokens", "40")
    stop = text[10]
    cut = text[: text.index(stop)]
    flags = ("--stop-token-id", str(ord(stop)), "--max-tokens", "40")
    assert text_of(invoke, "hello", *DRAFTED, *flags) == cut
    assert text_of(invoke, "hello", *DRAFTED, *flags, "--include-stop-token") == cut + stop
    result = invoke("generate", "hello", *DRAFTED, *flags)
    assert f"{len(cut)} (stop at token id {ord(stop)}), prompt 5" in result.stderr


# -- the prompt ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [("-",), ()])
def test_the_prompt_comes_from_standard_input(invoke: Invoke, args: tuple[str, ...]) -> None:
    flags = (*GREEDY, "--max-tokens", "9", "--json")
    typed = json.loads(invoke("generate", "h\u00e9 \U0001f642\r\n", *flags).stdout)
    piped = json.loads(invoke("generate", *args, *flags, input="h\u00e9 \U0001f642\r\n".encode()).stdout)
    assert piped["tokens"] == typed["tokens"]
    assert piped["usage"]["prompt_tokens"] == len("h\u00e9 \U0001f642\r\n".encode()), "not one byte is changed"


def test_token_ids_instead_of_text(invoke: Invoke) -> None:
    assert text_of(invoke, "--prompt-ids", "104, 105", *GREEDY, "--max-tokens", "9") == text_of(
        invoke, "hi", *GREEDY, "--max-tokens", "9"
    )


def test_chat_uses_the_template(invoke: Invoke) -> None:
    assert text_of(invoke, "hi", "--chat", *GREEDY, "--max-tokens", "9") == text_of(
        invoke, "<u>hi<a>", *GREEDY, "--max-tokens", "9"
    )


@pytest.mark.parametrize(
    "args, input, fact",
    [
        (("",), None, "the prompt is empty"),
        (("-",), b"", "the prompt is empty"),
        (("-",), b"ab\xff", "standard input is not valid UTF-8. byte 0xff at offset 2"),
        (("a\udcff",), None, "the prompt is not valid UTF-8"),
        (("--prompt-ids", " , "), None, "the prompt is empty"),
        (("--prompt-ids", "1,b"), None, "'b' is not a token id"),
        (("--prompt-ids", "1,--2"), None, "'--2' is not a token id"),
        (("--prompt-ids", "1,300"), None, "prompt token id 300 is outside 0..256"),
        (("--prompt-ids", "-1"), None, "prompt token id -1 is outside 0..256"),
        (("x", "--prompt-ids", "1"), None, "--prompt-ids: was given together with a PROMPT"),
        (("--chat", "--prompt-ids", "1"), None, "--prompt-ids: was given together with a PROMPT or --chat"),
    ],
)
def test_a_bad_prompt_is_refused(invoke: Invoke, args: tuple[str, ...], input: bytes | None, fact: str) -> None:
    result = invoke("generate", *args, "--target", "toy", input=input)
    assert (result.exit_code, result.stdout) == (2, "")
    assert fact in result.stderr


@given(st.lists(st.integers(0, 10**9), min_size=1), st.sampled_from([",", ", ", " ", "\n"]))
def test_token_ids_are_read_as_written(ids: list[int], separator: str) -> None:
    assert read_prompt(None, separator.join(map(str, ids)), False) == ids


@given(st.text(st.characters(exclude_categories=()), max_size=30))
def test_text_is_taken_as_it_stands_or_refused(text: str) -> None:
    """Lone surrogates stand for bytes that were no UTF-8; everything else passes through unchanged."""
    if text == "-":
        return
    if not text or any(0xD800 <= ord(character) < 0xE000 for character in text):
        with pytest.raises(PromptError):
            read_prompt(text, None, False)
    else:
        assert read_prompt(text, None, False) == text


# -- errors and exit codes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags, code, fact",
    [
        (("--target", "toy-small"), 2, "context_length_exceeded: the prompt has 64 tokens and the context holds 24"),
        (("--target", "toy", "--compare"), 2, "--compare: there is nothing to compare"),
        (("--target", "toy", "--draft", "toy-draft", "--drafter", "none"), 2, "would leave the draft model"),
        (("--target", "toy", "--drafter", "model"), 2, "give --draft NAME"),
        (("--target", "toy", "--drafter", "stack"), 2, "give --draft NAME, or --drafter suffix"),
        (("--target", "toy", "--draft", "toy-draft", "--drafter", "suffix"), 2, "would leave the draft model"),
        (("--target", "toy", "--drafter", "suffix", "--draft-ctx", "9"), 2, "needs a draft model"),
        (("--target", "smolm2-135m"), 3, "did you mean smollm2-135m"),
        (("--target", "smollm2-135m"), 3, "is not in the cache"),
        (("--target", "./nothing.gguf"), 3, "no file or directory"),
        (("--target", "toy-new"), 3, "the architecture 'mamba' is not served"),
        (("--target", "toy", "--draft", "toy-odd"), 3, "disagree about token 7"),
        (("--target", "toy-nan"), 4, "--dtype float32"),
        (("--target", "toy-contract"), 5, "broke its protocol"),
        (("--target", "toy-torchless"), 6, "pip install torch"),
        (("--target", "toy-crash"), 1, "unexpected RuntimeError: boom in two lines. set FORERUN_DEBUG=1"),
        (("--target", "toy-raw", "--chat"), 2, "no chat template"),
    ],
)
@pytest.mark.parametrize("json_flag", [(), ("--json",)])
def test_each_error_has_its_exit_code(
    invoke: Invoke, flags: tuple[str, ...], code: int, fact: str, json_flag: tuple[str, ...]
) -> None:
    result = invoke("generate", MANY_DOCUMENTS, *flags, *json_flag)
    assert result.exit_code == code
    assert result.stderr.splitlines()[-1].startswith("error: ")
    assert fact in result.stderr
    assert "Traceback" not in result.stderr


def test_a_foreign_file_is_refused(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04 not a model")
    result = invoke("generate", "x", "--target", str(path))
    assert (result.exit_code, result.stdout) == (3, "")
    assert "is not a GGUF file" in result.stderr


def test_what_came_before_an_error_is_kept(invoke: Invoke) -> None:
    plain = invoke("generate", "abcd", "--target", "toy-nan", "--seed", "1")
    assert (plain.exit_code, len(plain.stdout)) == (4, 4)
    document = json.loads(invoke("generate", "abcd", "--target", "toy-nan", "--seed", "1", "--json").stdout)
    assert (document["text"], document["finish_reason"]) == (plain.stdout, "error")


def test_debug_shows_the_traceback(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_DEBUG", "1")
    result = invoke("generate", MANY_DOCUMENTS, "--target", "toy-crash")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "in logits_of" in result.stderr


def test_a_setting_without_effect_is_noted(invoke: Invoke) -> None:
    result = invoke("generate", "x", "--target", "toy", "--k", "3", "--max-tokens", "1")
    assert result.exit_code == 0
    assert "note: --k has no effect" in result.stderr
    assert "note:" not in invoke("generate", "x", *DRAFTED, "--max-tokens", "1").stderr
