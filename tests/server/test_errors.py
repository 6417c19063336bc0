"""Bodies that are none, paths that are not there, keys, origins, sizes: every refusal is an OpenAI error."""

from __future__ import annotations

import socket
from typing import Any

import httpx
import pytest
from tests.server.serving import PATIENCE_S, Serving, scripted_llm

from forerun.server.bodies import read_json
from forerun.server.errors import ApiError

JSON = {"content-type": "application/json"}
COMPLETIONS = "/v1/completions"


def error_of(response: httpx.Response, status: int) -> Any:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert response.headers["x-request-id"]
    return error


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "body"),
        (b"{", "not JSON"),
        (b"[1]", "body"),
        (b'"a"', "body"),
        (b'{"prompt": NaN}', "NaN is no number"),
        (b'{"prompt": "a\xff"}', "not UTF-8"),
        ('{"prompt": "a"}'.encode("utf-16"), "not UTF-8"),
        (rb'{"prompt": "\ud83d"}', "surrogate"),
        (rb'{"prompt": "a", "x": {"\udc00": 1}}', "surrogate"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"max_tokens": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"prompt": "a", "max_tokens": "5"}', "max_tokens"),
        (b'{"prompt": "a", "max_tokens": 5.5}', "max_tokens"),
        (b'{"prompt": "a", "stream": 1}', "stream"),
        (b'{"prompt": {"a": 1}}', "prompt"),
        (b'{"prompt": ["a", 1]}', "prompt"),
        (b'{"prompt": [true]}', "prompt"),
        (b'{"prompt": []}', "prompt"),
        (b'{"prompt": ""}', "prompt is empty"),
        (b'{"prompt": "a", "seed": 1e400}', "seed"),
        (b'{"prompt": "a", "temperature": 1e400}', "temperature"),
        (b'{"prompt": "a", "logit_bias": {"5": -1e400}}', "logit_bias"),
        (b'{"prompt": "a", "logit_bias": {"x": 1}}', "logit_bias"),
        (b'{"prompt": "a", "stop": ["a", null]}', "stop"),
    ],
)
def test_bodies_that_are_wrong(served: Serving, body: bytes, words: str) -> None:
    error = error_of(served.client.post(COMPLETIONS, content=body, headers=JSON), 400)
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"


def test_numbers_of_json_may_have_a_point(served: Serving) -> None:
    body = b'{"prompt": "the", "max_tokens": 2.0, "temperature": 0, "seed": -1, "top_p": 1}'
    assert served.client.post(COMPLETIONS, content=body, headers=JSON).status_code == 200


def test_pairs_of_surrogates_are_characters() -> None:
    assert read_json(rb'{"a": "\ud83d\ude42"}') == {"a": "\U0001f642"}
    with pytest.raises(ApiError, match="half of a surrogate"):
        read_json(rb'["\ude42\ud83d"]')


def test_only_json_is_read(served: Serving) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        error = error_of(served.client.post(COMPLETIONS, content=b"{}", headers={"content-type": kind}), 415)
        assert kind.partition(";")[0] in error["message"]
    assert "no named type" in error_of(served.client.post(COMPLETIONS, content=b"{}"), 415)["message"]


def test_paths_and_methods_that_are_not_there(served: Serving) -> None:
    assert "/nothing" in error_of(served.client.get("/nothing"), 404)["message"]
    response = served.client.get(COMPLETIONS)
    assert error_of(response, 405)["code"] == "method_not_allowed"
    assert response.headers["allow"] == "POST"
    for path, instead in (("/v1/embeddings", "embeds"), ("/v1/responses", "/v1/chat/completions")):
        error = error_of(served.client.post(path, json={"input": "a"}), 404)
        assert error["code"] == "not_served"
        assert instead in error["message"]


def test_models_and_what_they_are_called(served: Serving) -> None:
    (card,) = served.client.get("/v1/models").json()["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == ("tiny", "model", 512)
    assert served.client.get("/v1/models/tiny").json() == card
    assert error_of(served.client.get("/v1/models/other"), 404)["code"] == "model_not_found"
    error = error_of(served.client.post(COMPLETIONS, json={"model": "other", "prompt": "a"}), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "tiny" in error["message"]


def test_prompts_that_do_not_fit(served: Serving) -> None:
    error = error_of(served.client.post(COMPLETIONS, json={"prompt": [5] * 512}), 400)
    assert error["code"] == "context_length_exceeded"
    found = served.completion([5] * 510, max_tokens=50, temperature=0, ignore_eos=True)
    assert found["choices"][0]["finish_reason"] == "length"
    assert found["usage"]["completion_tokens"] == 2


def test_texts_are_tokens_and_back(served: Serving) -> None:
    text = "the water é \U0001f642"
    found = served.post("/tokenize", prompt=text, return_token_strs=True)
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert served.post("/detokenize", tokens=found["tokens"])["prompt"] == text
    chat = served.post("/tokenize", messages=[{"role": "user", "content": "hi"}])
    assert chat["count"] == served.chat("hi", max_tokens=1)["usage"]["prompt_tokens"]
    assert error_of(served.client.post("/detokenize", json={"tokens": [70_000]}), 400)["param"] == "tokens"
    for path, body in (("/tokenize", {"prompt": text}), ("/detokenize", {"tokens": found["tokens"]})):
        told = served.post(path, model="tiny", wobble=1, **body)
        assert told.pop("warnings") == ["wobble: unknown, and ignored"]
        assert told == served.post(path, **body)
        assert error_of(served.client.post(path, json={**body, "model": "other"}), 404)["param"] == "model"
    assert error_of(served.client.post("/tokenize", json={}), 400)["param"] == "prompt"


def test_a_server_says_how_it_is(served: Serving) -> None:
    assert served.client.get("/health").json() == {"status": "ok"}
    assert served.client.get("/ready").json() == {"ready": True}
    assert set(served.client.get("/version").json()) == {"version"}
    assert "vllm:spec_decode_num_drafts_total" in served.client.get("/metrics").text


def test_request_ids_come_back(served: Serving) -> None:
    assert served.client.get("/health", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    for bad in ("a" * 200, "\x01", "é".encode("latin-1")):
        found = served.client.get("/health", headers={"x-request-id": bad}).headers["x-request-id"]
        assert len(found) == 32


def test_keys_guard_everything_but_health() -> None:
    with Serving(scripted_llm("hi"), api_keys=("good", "other"), tenants=True) as one:
        for headers in (
            {},
            {"authorization": "Bearer bad"},
            {"authorization": "good"},
            {"authorization": "Basic good"},
        ):
            for path in ("/v1/models", "/metrics", "/openapi.json", "/nothing"):
                response = one.client.get(path, headers=headers)
                assert error_of(response, 401)["code"] == "invalid_api_key"
                assert response.headers["www-authenticate"] == "Bearer"
            assert error_of(one.client.post(COMPLETIONS, json={"prompt": "a"}, headers=headers), 401)
        for path in ("/health", "/ready", "/version"):
            assert one.client.get(path).status_code == 200
        for key in ("good", "other"):
            headers = {"authorization": f"Bearer {key}"}
            assert one.client.get("/v1/models", headers=headers).status_code == 200
            assert one.post(COMPLETIONS, headers=headers, prompt="a", max_tokens=3, temperature=0)["choices"]


def test_whoever_has_another_key_shares_no_beginning() -> None:
    """How fast an answer begins, and what it counts as cached, would tell what others have asked."""
    asked: Any = {"prompt": "a" * 200, "max_tokens": 2, "temperature": 0}
    for tenants in (True, False):
        with Serving(scripted_llm("hi"), api_keys=("one", "two"), tenants=tenants) as one:
            shared = []
            for key in ("one", "two", "one", "two"):
                found = one.post(COMPLETIONS, headers={"authorization": f"Bearer {key}"}, **asked)
                shared.append(found["usage"].get("prompt_tokens_details", {"cached_tokens": 0})["cached_tokens"] > 0)
                one.wait_until_idle()
            assert shared == [False, not tenants, True, True]


def test_keys_may_be_of_any_signs() -> None:
    with Serving(scripted_llm("hi"), api_keys=("schlüssel",)) as one:
        for key, status in (("schlüssel".encode(), 200), ("schlüssel".encode("latin-1"), 401), (b"\xff", 401)):
            assert one.client.get("/v1/models", headers={b"authorization": b"bearer " + key}).status_code == status


def test_origins_may_ask_and_read_refusals() -> None:
    origin = {"origin": "http://page.example"}
    with Serving(scripted_llm("hi"), cors_origins=("http://page.example",), api_keys=("key",)) as one:
        asked = {**origin, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
        preflight = one.client.options(COMPLETIONS, headers=asked)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "http://page.example"
        refused = one.client.post(COMPLETIONS, json={}, headers=origin)
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "http://page.example"
        strange = one.client.get("/health", headers={"origin": "http://other.example"})
        assert "access-control-allow-origin" not in strange.headers
    with Serving(scripted_llm("hi")) as one:
        assert "access-control-allow-origin" not in one.client.get("/health", headers=origin).headers


def test_bodies_are_bounded_whether_they_say_so_or_not() -> None:
    with Serving(scripted_llm("hi"), max_body=2000) as one:
        for content in (b"x" * 5_000_000, iter([b"x" * 1500] * 4)):
            error = error_of(one.client.post(COMPLETIONS, content=content, headers=JSON), 413)
            assert error["code"] == "request_too_large"
        assert one.completion("a" * 1500, max_tokens=1, temperature=0)


def test_requests_that_do_not_come_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.server.gate.HEAD_S", 0.2)
    with Serving(scripted_llm("hi"), receive_s=0.2) as one:
        port = int(one.url.rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as half_head:
            half_head.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n")
            assert _until_closed(half_head) == b""
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as half_body:
            half_body.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
                b"Content-Length: 9\r\n\r\n{"
            )
            assert b"408" in _until_closed(half_body).splitlines()[0]
        assert one.client.get("/health").status_code == 200


def _until_closed(connection: socket.socket) -> bytes:
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
    except ConnectionResetError:
        pass
    return found
