"""`--n` and `--best-of`: what is on standard output, what heads it, what JSON says, and what chat says to it."""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

import pytest
from tests.cli.conftest import PATIENCE_S, Invoke, Terminal, start
from tests.cli.toys import toy_llm

SEEDED = ("hello", "--target", "toy", "--seed", "3", "--max-tokens", "12")
DRAFTED = ("--draft", "toy-draft", "--k", "3")


def choices(num: int, **params: Any) -> list[Any]:
    with toy_llm() as llm:
        return list(llm.generate("hello", **{"seed": 3, "max_tokens": 12, "n": num, **params}).choices)


@pytest.mark.parametrize("drafter", [(), DRAFTED])
def test_redirected_every_text_ends_with_a_line_end(invoke: Invoke, drafter: tuple[str, ...]) -> None:
    result = invoke("generate", *SEEDED, *drafter, "--n", "3")
    assert result.exit_code == 0
    texts = [choice.text for choice in choices(3)]
    assert len(set(texts)) == 3
    assert result.stdout == "".join(f"{text}\n" for text in texts)
    heads = [line for line in result.stderr.splitlines() if line.startswith("--")]
    assert heads == [f"-- text {i} of 3: 12 tokens (length)" for i in (1, 2, 3)]
    assert "36 in 3 texts, prompt 5" in result.stderr
    assert "tokens/s a text" in result.stderr


def test_one_text_is_streamed_as_ever(invoke: Invoke) -> None:
    result = invoke("generate", *SEEDED, "--n", "1")
    assert result.stdout == choices(1)[0].text
    assert "--" not in result.stderr
    assert "12 (length), prompt 5" in result.stderr


def test_texts_ending_in_line_ends_keep_them(invoke: Invoke) -> None:
    result = invoke("generate", "x", "--target", "toy-phrase", "--temperature", "0", "--n", "2", "--stop", r"\n",
                    "--include-stop-string")  # fmt: skip
    one = result.stdout[: len(result.stdout) // 2]
    assert result.stdout == one * 2
    assert one.endswith("\n\n"), "its own, and ours"
    assert "(stop at '\\n')" in result.stderr


def test_json_has_every_text(invoke: Invoke) -> None:
    document = json.loads(invoke("generate", *SEEDED, *DRAFTED, "--n", "2", "--json", "--show-drafts").stdout)
    expected = choices(2)
    assert [entry["index"] for entry in document["choices"]] == [0, 1]
    assert [entry["text"] for entry in document["choices"]] == [one.text for one in expected]
    assert document["text"] == expected[0].text
    for entry in document["choices"]:
        assert set(entry) == {
            "index", "text", "tokens", "finish_reason", "stop_reason", "usage", "speculation", "origins",
        }  # fmt: skip
        assert len(entry["origins"]) == len(entry["tokens"]) == 12
    assert "choices" not in json.loads(invoke("generate", *SEEDED, "--json").stdout)


def test_the_likeliest_texts_are_kept(invoke: Invoke) -> None:
    flags = (*SEEDED, "--best-of", "5")
    expected = choices(2, best_of=5)
    result = invoke("generate", *flags, "--n", "2")
    assert result.stdout == "".join(f"{one.text}\n" for one in expected)
    scores = [one.mean_logprob for one in expected]
    assert scores == sorted(scores, reverse=True)
    assert f"-- text 1 of 2: 12 tokens (length), mean log probability {scores[0]:.3f}" in result.stderr
    document = json.loads(invoke("generate", *flags, *DRAFTED, "--n", "2", "--json").stdout)
    assert [entry["index"] for entry in document["choices"]] == [one.choice for one in expected]
    assert document["mean_logprob"] == pytest.approx(scores[0])


def test_the_best_alone_is_printed_as_one_text(invoke: Invoke) -> None:
    result = invoke("generate", *SEEDED, "--best-of", "4")
    assert result.stdout == choices(1, best_of=4)[0].text
    assert "--" not in result.stderr


def test_compare_looks_at_every_text(invoke: Invoke) -> None:
    result = invoke("generate", *SEEDED, *DRAFTED, "--n", "3", "--compare")
    assert "3 texts identical (36 tokens)" in result.stderr
    comparison = json.loads(invoke("generate", *SEEDED, *DRAFTED, "--n", "3", "--compare", "--json").stdout)[
        "comparison"
    ]
    assert [entry["text"] for entry in comparison["plain"]["choices"]] == [one.text for one in choices(3)]
    assert (comparison["identical"], comparison["first_difference"], comparison["different_text"]) == (True, None, None)


def test_one_failing_text_leaves_the_others(invoke: Invoke) -> None:
    """`toy-nan` fails once 8 tokens are cached, in every text alike: what came before is printed."""
    result = invoke("generate", "abcd", "--target", "toy-nan", "--seed", "1", "--n", "2")
    assert result.exit_code == 4
    assert [len(line) for line in result.stdout.splitlines()] == [4, 4]
    assert result.stderr.count("(error)") == 2
    assert result.stderr.splitlines()[-1].startswith("error: a row of logits has nan")
    document = json.loads(invoke("generate", "abcd", "--target", "toy-nan", "--seed", "1", "--n", "2", "--json").stdout)
    assert [entry["finish_reason"] for entry in document["choices"]] == ["error", "error"]


def test_more_texts_than_a_batch_holds(invoke: Invoke) -> None:
    result = invoke("generate", *SEEDED, "--n", "70")
    assert len(result.stdout.splitlines()) == 70
    assert result.stdout.splitlines()[:3] == [one.text for one in choices(3)]


@pytest.mark.parametrize("flags, name", [(("--n", "2"), "--n: 2"), (("--best-of", "3"), "--best-of: 3")])
def test_a_conversation_goes_on_from_one_answer(invoke: Invoke, flags: tuple[str, ...], name: str) -> None:
    result = invoke("chat", "--target", "toy", *flags, input="never read\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"error: {name} answers were asked for, and a conversation goes on from one. "
        "leave it out, or use forerun generate --chat.\n"
    )


def test_one_answer_may_be_asked_for_in_chat(invoke: Invoke) -> None:
    result = invoke("chat", "--target", "toy", "--n", "1", "--max-tokens", "3", input="hi\n")
    assert (result.exit_code, len(result.stdout)) == (0, 4)


# -- on a terminal, and interrupted ----------------------------------------------------------------------------------


def test_on_a_terminal_the_texts_are_counted_then_shown(terminal: type[Terminal]) -> None:
    one = terminal("generate", *SEEDED, *DRAFTED, "--n", "2", "--show-drafts")
    assert one.wait() == 0
    assert "\r2 texts: 24 tokens\n-- text 1 of 2: 12 tokens (length)\n" in one.seen
    for origin in ("\x1b[32m", "\x1b[36m"):
        assert origin in one.seen
    plain = one.seen.replace("\x1b[0m", "")
    for code in ("32", "33", "36"):
        plain = plain.replace(f"\x1b[{code}m", "")
    first, second = (choice.text for choice in choices(2))
    assert f"(length)\n{first}\n-- text 2 of 2: 12 tokens (length)\n{second}\n" in plain


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for another process")
@pytest.mark.parametrize("flags", [("--n", "2"), ("--n", "2", "--best-of", "3"), ("--n", "2", "--json")])
def test_ctrl_c_prints_what_there_is(flags: tuple[str, ...]) -> None:
    process = start("generate", "hello", "--target", "toy-slow", "--seed", "3", "--max-tokens", "2000", *flags)
    assert process.stderr is not None
    assert any(line == b"begun\n" for line in iter(process.stderr.readline, b""))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert err.endswith(b"interrupted\n")
    if "--json" in flags:
        texts = [entry["text"] for entry in json.loads(out)["choices"]]
    else:
        texts = out.decode().splitlines()
    assert len(texts) == 2
    full = [one.text for one in choices(3, max_tokens=60)]
    assert all(text and any(whole.startswith(text[:60]) for whole in full) for text in texts)
