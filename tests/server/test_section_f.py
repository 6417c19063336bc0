"""Section F of shared/cases.md over HTTP, streamed and not: silence (C34) and shapes (C35). Disconnects (C33) are in
test_faults.py and test_operations.py, templates (C37) in test_section_f_templates.py, other sections in
test_section_f_requests.py."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from tests.server.asking import CHATS, COMPLETIONS, ERROR, both, refused
from tests.server.faults import Client
from tests.server.serving import PATIENCE_S, Serving, gated_llm, reasons_of, scripted_llm, slow_llm, text_of, wait_for

from forerun.llm import LLM

USER = {"role": "user", "content": "Hello, what is the water?"}
CALL = {"id": "1", "type": "function", "function": {"name": "clock", "arguments": '{"at": 1}'}}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}

# -- C34: long silence -------------------------------------------------------------------------------------------------


def frames_of(raw: bytes) -> list[str]:
    """The frames of a stream, from the bytes of its chunks."""
    _, _, rest = raw.partition(b"\r\n\r\n")
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return [frame for frame in body.decode().split("\n\n") if frame]


def test_c34_silence_is_filled_and_comments_stand_between_frames_only() -> None:
    llm, gate = gated_llm()
    with Serving(llm, ping_s=0.03) as one, Client(one.url) as client:
        client.ask(prompt="abc", max_tokens=3, stream=True, temperature=0)
        raw = b""
        for num_tokens in range(3):  # headers and comments come before any token, and between them
            comments = raw.count(b": still here")
            while raw.count(b": still here") < comments + 2:
                raw += client.socket.recv(65536)
            assert raw.startswith(b"HTTP/1.1 200")
            assert raw.count(b"data: {") == num_tokens
            gate.release()
            while raw.count(b"data: {") == num_tokens:
                raw += client.socket.recv(65536)
        while not raw.endswith(b"0\r\n\r\n"):
            raw += client.socket.recv(65536)
    frames = frames_of(raw)
    assert frames[-1] == "data: [DONE]"
    assert all(frame == ": still here" or frame.startswith("data: ") for frame in frames)
    documents = [json.loads(frame[6:]) for frame in frames[:-1] if frame.startswith("data: ")]
    assert len(text_of(documents)) == 3


def test_c34_calls_that_are_held_back_are_no_silence_and_whole_answers_have_no_comments() -> None:
    words = "x" * 300
    text = f'<tool_call>\n{{"name": "clock", "arguments": {{"at": "{words}"}}}}\n</tool_call>'
    with Serving(scripted_llm(text), ping_s=0.001) as one:
        asked = {"messages": [USER], "tools": [CLOCK], "temperature": 0, "max_tokens": 600}
        whole = one.client.post(CHATS, json=asked)
        assert b": still here" not in whole.content
        (call,) = whole.json()["choices"][0]["message"]["tool_calls"]
        chunks = one.stream(CHATS, **asked)
        deltas = [part for chunk in chunks for part in chunk["choices"][0]["delta"].get("tool_calls", ())]
        assert "".join(part["function"]["arguments"] for part in deltas) == call["function"]["arguments"]
        assert len(deltas) > 100  # as they are written, not at the end


def test_c34_comments_can_be_turned_off_and_the_openai_client_skips_them() -> None:
    body = {"prompt": "a", "max_tokens": 5, "stream": True}
    with Serving(slow_llm(0.02), ping_s=0) as one, one.client.stream("POST", COMPLETIONS, json=body) as response:
        assert not [line for line in response.iter_lines() if line.startswith(":")]
    with Serving(slow_llm(0.05), ping_s=0.01) as one:
        client = openai.OpenAI(base_url=one.url + "/v1", api_key="none", timeout=PATIENCE_S)
        asked: Any = {"model": "tiny", "prompt": "a", "max_tokens": 5, "temperature": 0}
        parts = list(client.completions.create(**asked, stream=True))
        assert "".join(part.choices[0].text for part in parts) == client.completions.create(**asked).choices[0].text


def test_c34_what_fails_while_a_prompt_is_read_is_an_event_and_what_is_wrong_with_it_a_status(served: Serving) -> None:
    def fail() -> None:
        raise RuntimeError("never told")

    with Serving(slow_llm(0, fail=fail)) as one:
        chunks = one.stream(COMPLETIONS, prompt="abc", max_tokens=5)
        assert [set(chunk) for chunk in chunks] == [{"error"}]
        assert set(chunks[0]["error"]) == ERROR
        assert one.post(COMPLETIONS, 500, prompt="abc")["error"] == chunks[0]["error"]
    for body in ({"prompt": [9999]}, {"prompt": [5] * 600}, {"prompt": "a", "regex": "("}, {"prompt": "a", "n": 999}):
        refused(served, **body)


# -- C35: shapes of requests and answers -------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_c35_contents_in_parts_are_joined_for_every_role(served: Serving, role: str) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    for given, same in ((parts, "ab"), ([], ""), (None, ""), ("", "")):
        turns = [{"role": role, "content": given}, USER]
        found = both(served, CHATS, messages=turns, temperature=0, max_tokens=5)
        plainly = served.chat([{"role": role, "content": same}, USER], temperature=0, max_tokens=5)
        assert found["choices"] == plainly["choices"]
        assert found["usage"]["prompt_tokens"] == plainly["usage"]["prompt_tokens"]


def test_c35_conversations_of_every_shape_are_answered(served: Serving, plain: LLM) -> None:
    for turns in (
        [USER, {"role": "assistant", "content": "It is"}],
        [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "content": "12"}],
        [USER, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "1", "content": "12"}],
        [USER, USER, USER],
        [{"role": "wobble", "content": "a"}, USER],
        [{"role": "user", "content": "a", "name": "me", "unknown": {"deep": [1]}}],
    ):
        found = both(served, CHATS, messages=turns, temperature=0, max_tokens=5)
        assert found["choices"][0]["message"]["content"]
        assert served.post("/tokenize", messages=turns)["count"] == found["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [None]}, "messages.0"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": {"text": "a"}}]}, "messages.0.content"),
        ({"messages": [{"role": "", "content": "a"}]}, "messages.0.role"),
        ({"messages": [{"role": 5, "content": "a"}]}, "messages.0.role"),
        ({"messages": [{"role": "assistant", "tool_calls": "x"}]}, "messages.0.tool_calls"),
        ({"messages": [USER], "max_tokens": -1}, "max_tokens"),
        ({"messages": [USER], "response_format": "json"}, "response_format"),
        ({"messages": [USER], "tools": [{"type": "function"}]}, "tools.0.function"),
        ({"messages": [USER], "tools": "x"}, "tools"),
    ],
    ids=str,
)  # fmt: skip
def test_c35_what_is_wrong_with_a_conversation_is_named(served: Serving, body: Any, param: str) -> None:
    error = refused(served, CHATS, **body)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", [COMPLETIONS, CHATS])
def test_c35_several_texts_of_a_stream(served: Serving, path: str) -> None:
    """A finish chunk for each index, then one chunk with the usage of all and no choice."""
    given: dict[str, Any] = {"messages": [USER]} if path == CHATS else {"prompt": "the water"}
    asked = {**given, "n": 3, "seed": 2, "max_tokens": 9, "temperature": 4}
    whole = both(served, path, **asked)
    assert len({json.dumps(choice.get("message", choice.get("text"))) for choice in whole["choices"]}) == 3
    chunks = served.stream(path, **asked, stream_options={"include_usage": True})
    assert sorted(reasons_of(chunks)) == [0, 1, 2]
    assert [chunk["choices"] for chunk in chunks].count([]) == 1
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] > 9
    without = served.stream(path, **asked)
    assert all(chunk["choices"] and not chunk.get("usage") for chunk in without)
    assert refused_unstreamed(served, path, **given, stream_options={"include_usage": True}) == "stream_options"


def refused_unstreamed(one: Serving, path: str, **body: Any) -> Any:
    return one.post(path, 400, **body)["error"]["param"]


def test_c35_both_budgets_the_newer_counts_and_unknown_fields_are_told(served: Serving) -> None:
    asked = {"messages": [USER], "temperature": 0, "max_tokens": 9, "max_completion_tokens": 4, "wobble": [1]}
    found = both(served, CHATS, **asked)
    assert found["usage"]["completion_tokens"] == 4
    assert len(found["warnings"]) == 2


SURROGATES = (rb'"\ud83d"', rb'"a\udc00b"', rb'"\udc00\ud800"')


@pytest.mark.parametrize("half", SURROGATES)
@pytest.mark.parametrize("path", [COMPLETIONS, CHATS, "/tokenize"])
def test_c35_half_a_pair_of_surrogates_is_never_a_500(served: Serving, half: bytes, path: str) -> None:
    bodies = [b'{"prompt": %b}' % half, b'{"prompt": "a", "stop": %b}' % half, b'{"prompt": "a", %b: 1}' % half]
    if path == CHATS:
        bodies = [b'{"messages": [{"role": "user", "content": %b}]}' % half, b'{"messages": [{"role": %b}]}' % half]
    for body in bodies:
        response = served.client.post(path, content=body, headers={"content-type": "application/json"})
        assert response.status_code == 400
        assert set(response.json()["error"]) == ERROR
        assert response.json()["error"]["code"] == "invalid_json"


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"[]", b"\x00", b"\xff\xfe{\x00}\x00", "{}".encode("utf-16"), "{}".encode("utf-32"),
        b"\xef\xbb\xbf{}", b'{"prompt": "\xc3\x28"}', b'{"prompt": "\xed\xa0\x80"}', b'{"prompt": "a\x00b"}', b"<xml/>",
        b"{'prompt': 'a'}", b'{"prompt": "a",}', b'{"prompt": "a"}{"prompt": "b"}', b'{"prompt": Infinity}',
        b'{"prompt": "a", "temperature": -Infinity}', b'{"prompt": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
        b'{"prompt": "a", "temperature": ' + b"1" * 20_000 + b"}",
    ],
    ids=lambda body: repr(body[:24]),
)  # fmt: skip
@pytest.mark.parametrize("path", [COMPLETIONS, CHATS, "/tokenize", "/detokenize"])
def test_c35_bodies_that_are_no_json_are_a_400_everywhere(served: Serving, body: bytes, path: str) -> None:
    response = served.client.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    assert set(response.json()["error"]) == ERROR
    assert len(response.text) < 1000
    wait_for(lambda: served.worker.num_held == 0)
