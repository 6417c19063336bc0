"""`forerun chat` with a pipe for a person: each line is one message, the history is what the template gets."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cli.conftest import Invoke
from tests.cli.toys import ByteTokenizer

GREEDY = ("chat", "--target", "toy", "--temperature", "0", "--max-tokens", "6")


@pytest.fixture
def conversations(monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, Any]]]:
    """Every list of messages that was rendered for an answer (the first, a probe, is dropped)."""
    seen: list[list[dict[str, Any]]] = []
    real = ByteTokenizer.encode_chat

    def encode_chat(self: ByteTokenizer, messages: Any) -> list[int]:
        seen.append([dict(message) for message in messages])
        return real(self, messages)

    monkeypatch.setattr(ByteTokenizer, "encode_chat", encode_chat)
    return seen


def test_every_line_is_a_message(invoke: Invoke, conversations: list[list[dict[str, Any]]]) -> None:
    result = invoke(*GREEDY, input="one\r\n\n  \ntwo")
    assert result.exit_code == 0
    first, second = result.stdout.rstrip("\n").split("\n")
    assert (len(first), len(second)) == (6, 6)
    assert conversations[1:] == [
        [{"role": "user", "content": "one"}],
        [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": first},
            {"role": "user", "content": "two"},
        ],
    ]


def test_a_stop_string_cuts_the_answer_and_the_history(
    invoke: Invoke, conversations: list[list[dict[str, Any]]]
) -> None:
    whole = invoke(*GREEDY, input="one\n").stdout.rstrip("\n")
    result = invoke(*GREEDY, "--drafter", "lookup", "--stop", whole[2:4], input="one\ntwo\n")
    assert result.stdout.splitlines()[0] == whole[: whole.index(whole[2:4])]
    assert conversations[-1][1] == {"role": "assistant", "content": result.stdout.splitlines()[0]}


def test_reset_forgets_all_but_the_system_message(invoke: Invoke, conversations: list[list[dict[str, Any]]]) -> None:
    result = invoke(*GREEDY, "--system", "be brief", input="one\n/reset\ntwo\n/exit\nnever\n")
    assert result.exit_code == 0
    system = {"role": "system", "content": "be brief"}
    assert conversations[1:] == [[system, {"role": "user", "content": word}] for word in ("one", "two")]


def test_a_full_context_ends_neither_the_session_nor_the_history(
    invoke: Invoke, conversations: list[list[dict[str, Any]]]
) -> None:
    result = invoke("chat", "--target", "toy-small", "--max-tokens", "2", input="hi\n" + "x" * 40 + "\nyo\n")
    assert result.exit_code == 2, "a script should see that a message went unanswered"
    assert result.stderr.count("context_length_exceeded: the prompt has") == 1
    assert "/reset begins a new one" in result.stderr
    assert [message["content"] for message in conversations[-1] if message["role"] == "user"] == ["hi", "yo"]


def test_bad_bytes_cost_one_message(invoke: Invoke, conversations: list[list[dict[str, Any]]]) -> None:
    result = invoke(*GREEDY, input=b"one\n\xff\xfe\ntwo\n")
    assert result.exit_code == 2
    assert "the message is not valid UTF-8" in result.stderr
    assert conversations[-1][-1]["content"] == "two"


@pytest.mark.parametrize(
    "line, hint", [("/stat", "perhaps you meant /stats"), ("/usr/bin", "begin the line with a space")]
)
def test_an_unknown_command_is_not_sent(
    invoke: Invoke, conversations: list[list[dict[str, Any]]], line: str, hint: str
) -> None:
    result = invoke(*GREEDY, input=f"{line}\n {line}\n")
    assert hint in result.stderr
    assert [messages[-1]["content"] for messages in conversations[1:]] == [f" {line}"]


def test_stats(invoke: Invoke) -> None:
    result = invoke(*GREEDY, "--drafter", "lookup", "--show-drafts", input="/stats\none\ntwo\n/stats\n/help\n")
    assert result.exit_code == 0
    assert "nothing was answered yet" in result.stderr
    assert "answers  2 (12 tokens)" in result.stderr
    assert "of 4096 tokens" in result.stderr
    assert "token origin" in result.stderr
    assert "/exit ends" in result.stderr


def test_an_error_keeps_the_session(invoke: Invoke) -> None:
    result = invoke("chat", "--target", "toy-nan", input="one\ntwo\n")
    assert result.exit_code == 4
    assert result.stderr.count("error: a row of logits has nan") == 2


@pytest.mark.parametrize(
    "flags, code, fact",
    [
        (("--target", "toy-raw"), 2, "no chat template"),
        (("--target", "toy", "--top-p", "0"), 2, "--top-p"),
        (("--target", "toy", "--system", "\udcff"), 2, "the system message is not valid UTF-8"),
        (("--target", "nothing"), 3, "no model is called 'nothing'"),
    ],
)
def test_what_cannot_work_is_refused_at_once(invoke: Invoke, flags: tuple[str, ...], code: int, fact: str) -> None:
    result = invoke("chat", *flags, input="never read\n")
    assert (result.exit_code, result.stdout) == (code, "")
    assert fact in result.stderr
