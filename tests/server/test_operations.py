"""Queues, clients that go away, failures, and the end: nothing hangs, nothing is left over."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from tests.helpers import in_threads
from tests.server.serving import PATIENCE_S, Serving, scripted_llm, slow_llm, text_of, wait_for

COMPLETIONS = "/v1/completions"


def ask(one: Serving, **body: Any) -> httpx.Response:
    return httpx.post(one.url + COMPLETIONS, json={"prompt": "abc", "temperature": 0, **body}, timeout=PATIENCE_S)


def test_many_at_once_get_their_own_texts(served: Serving, plain: Any) -> None:
    words = ("water", "people", "time", "words", "way", "down", "over", "than", "first", "made", "find", "use")
    prompts = [f"the {word} is" for word in words]
    expected = {prompt: plain.generate(prompt, seed=1, max_tokens=20).text for prompt in prompts}

    def check(prompt: str, stream: bool) -> None:
        asked = {"seed": 1, "max_tokens": 20}
        if stream:
            assert text_of(served.stream(COMPLETIONS, prompt=prompt, **asked)) == expected[prompt]
        else:
            assert served.completion(prompt, **asked)["choices"][0]["text"] == expected[prompt]

    in_threads([lambda p=prompt, s=stream: check(p, s) for prompt in prompts for stream in (False, True)])  # type: ignore[misc]
    served.wait_until_idle()


def test_a_full_queue_says_when_to_come_back() -> None:
    gate = threading.Event()
    with Serving(slow_llm(0, gate), max_running=1, max_requests=2) as one, ThreadPoolExecutor(2) as pool:
        running = [pool.submit(ask, one, max_tokens=3) for _ in range(2)]
        wait_for(lambda: one.worker.num_held == 2)
        refused = ask(one, max_tokens=3)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "queue_full"
        assert int(refused.headers["retry-after"]) >= 1
        assert ask(one, prompt=["a", "b", "c"]).status_code == 429
        gate.set()
        assert [done.result().status_code for done in running] == [200, 200]
        assert ask(one, max_tokens=3).status_code == 200
        one.wait_until_idle()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after", ["first token", "at once"])
def test_clients_that_go_away_free_everything(stream: bool, after: str) -> None:
    """Nothing but the end of the connection ends them: no time runs out. One that is overlooked writes to its end, in
    seconds, and is found out."""
    with Serving(slow_llm(0.002), max_running=1, send_s=0, ping_s=0, deadline_s=0) as one:
        asked = {"prompt": "abc", "max_tokens": 1000, "stream": stream, "temperature": 0}
        for _ in range(8):  # one runs, others wait
            body = httpx.Request("POST", one.url + COMPLETIONS, json=asked)
            connections = [_send_raw(one.url, body.read()) for _ in range(3)]
            wait_for(lambda: len(one.worker._jobs) == 3)
            if after == "first token":
                wait_for(lambda: any(job.first_at for job in list(one.worker._jobs)))
            jobs = list(one.worker._jobs)
            for connection in connections:
                connection.close()
            one.wait_until_idle()
            assert all(job.is_cancelled and job.num_tokens < 1000 for job in jobs)
        assert len(one.llm.engine.sequence_ids) == 0
        assert ask(one, max_tokens=2).status_code == 200


def test_neighbours_of_a_client_that_goes_away_are_unaffected() -> None:
    with Serving(slow_llm(0.002), send_s=0, ping_s=0, deadline_s=0) as one, ThreadPoolExecutor(1) as pool:
        expected = ask(one, max_tokens=60).json()["choices"][0]["text"]
        neighbour = pool.submit(ask, one, max_tokens=60)
        jobs = {}
        for _ in range(10):
            connection = _send_raw(one.url, b'{"prompt": "xyz", "max_tokens": 300, "stream": true}')
            connection.close()
            jobs.update(dict.fromkeys(list(one.worker._jobs)))
        assert neighbour.result().json()["choices"][0]["text"] == expected
        one.wait_until_idle()
        assert all(job.num_tokens < 300 for job in jobs)


def _send_raw(url: str, body: bytes) -> socket.socket:
    """A request on a connection of its own, whose answer nobody reads."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(PATIENCE_S)
    connection.connect((host, int(port)))
    head = (
        "POST /v1/completions HTTP/1.1",
        "Host: a",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    connection.sendall("\r\n".join([*head, "", ""]).encode() + body)
    return connection


def test_clients_that_do_not_read_are_ended() -> None:
    with Serving(slow_llm(0), send_s=0.3) as one:
        body = b'{"prompt": "abc", "max_tokens": 3000, "stream": true, "logprobs": 20, "n": 30}'
        connection = _send_raw(one.url, body)
        wait_for(lambda: one.worker.num_held == 1)
        one.wait_until_idle()
        wait_for(lambda: not one.server.server_state.connections - {None}, "its connection is closed")
        connection.close()


def test_silence_is_filled_with_comments() -> None:
    gate = threading.Event()
    with Serving(slow_llm(0, gate), ping_s=0.05) as one:
        body = {"prompt": "abc", "max_tokens": 2, "stream": True, "temperature": 0}
        with one.client.stream("POST", COMPLETIONS, json=body) as response:
            assert response.status_code == 200  # before any token
            lines = response.iter_lines()
            assert next(lines) == ": still here"
            gate.set()
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"


def test_a_deadline_ends_a_request() -> None:
    with Serving(slow_llm(0.01)) as one:
        late = ask(one, max_tokens=3000, timeout=0.2)
        assert late.status_code == 504
        assert late.json()["error"]["code"] == "deadline_exceeded"
        chunks = one.stream(COMPLETIONS, prompt="abc", max_tokens=3000, timeout=0.2)
        assert chunks[-1]["error"]["code"] == "deadline_exceeded"
        one.wait_until_idle()
    with Serving(slow_llm(0.01), deadline_s=0.2) as one:
        assert ask(one, max_tokens=3000, timeout=100).status_code == 504


def test_steps_that_fail_now_and_then_are_done_again() -> None:
    left = [2]

    def fail() -> None:
        if left[0]:
            left[0] -= 1
            raise MemoryError("not now")

    with Serving(slow_llm(0)) as one:
        expected = ask(one, max_tokens=5).json()["choices"][0]["text"]
    with Serving(slow_llm(0, fail=fail)) as one:
        assert ask(one, max_tokens=5).json()["choices"][0]["text"] == expected
        assert left == [0]


def test_steps_that_always_fail_end_their_requests_and_no_others() -> None:
    broken = [True]

    def fail() -> None:
        if broken[0]:
            raise RuntimeError("secret of somebody else")

    with Serving(slow_llm(0, fail=fail)) as one:
        response = ask(one, max_tokens=5)
        assert response.status_code == 500
        assert response.json()["error"]["type"] == "server_error"
        assert "secret" not in response.text
        chunks = one.stream(COMPLETIONS, prompt="abc", max_tokens=5)
        assert chunks[-1]["error"]["type"] == "server_error"
        broken[0] = False
        assert ask(one, max_tokens=5).status_code == 200
        assert one.client.get("/health").status_code == 200
        one.wait_until_idle()


class _Fatal(BaseException):
    pass


def test_a_worker_that_has_ended_is_told_of() -> None:
    def fail() -> None:
        raise _Fatal

    with Serving(slow_llm(0, fail=fail)) as one:
        first = ask(one, max_tokens=5)
        assert first.status_code == 503
        assert first.json()["error"]["code"] == "worker_failed"
        later = ask(one, max_tokens=5)
        assert (later.status_code, later.json()["error"]["code"]) == (503, "worker_failed")
        health = one.client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "the worker has failed")
        assert one.client.get("/ready").status_code == 503
        assert one.worker.num_held == 0


def test_what_runs_may_finish_when_the_server_is_stopped() -> None:
    one = Serving(slow_llm(0.02), drain_s=600)
    with one, ThreadPoolExecutor(2) as pool:
        expected = ask(one, max_tokens=20).json()["choices"][0]["text"]
        whole = pool.submit(ask, one, max_tokens=40)
        streamed = pool.submit(one.stream, COMPLETIONS, prompt="abc", temperature=0, max_tokens=40)
        wait_for(lambda: one.worker.num_held == 2)
        one.stop()
        wait_for(lambda: not one.worker.is_ready)
        text = whole.result().json()["choices"][0]["text"]
        assert text.startswith(expected)
        assert len(text) == 40
        assert text_of(streamed.result()) == text


def test_what_does_not_finish_in_time_fails_cleanly() -> None:
    one = Serving(slow_llm(0.01), drain_s=0.3)
    with one, ThreadPoolExecutor(2) as pool:
        whole = pool.submit(ask, one, max_tokens=4000)
        streamed = pool.submit(one.stream, COMPLETIONS, prompt="abc", temperature=0, max_tokens=4000)
        wait_for(lambda: one.worker.num_held == 2)
        one.stop()
        response = whole.result()
        assert (response.status_code, response.json()["error"]["code"]) == (503, "shutting_down")
        chunks = streamed.result()
        assert chunks[-1]["error"]["code"] == "shutting_down"
        assert text_of(chunks[:-1])
    assert not one.worker.is_alive


def test_lines_have_the_requests_id(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "forerun.server"), Serving(scripted_llm("hi")) as one:
        one.post(COMPLETIONS, headers={"x-request-id": "mine"}, prompt="a", max_tokens=2)
        wait_for(lambda: [record for record in caplog.records if hasattr(record, "request_id")])
    (record,) = [record for record in caplog.records if getattr(record, "request_id", "") == "mine"]
    assert (record.path, record.status, record.prompt_tokens) == (COMPLETIONS, 200, 1)  # type: ignore[attr-defined]
    assert record.completion_tokens == 2  # type: ignore[attr-defined]


def test_many_short_lives() -> None:
    with Serving(slow_llm(0.001), max_requests=1000) as one:
        body = b'{"prompt": "abc", "max_tokens": 500, "stream": true}'
        for _ in range(200):
            _send_raw(one.url, body).close()
        one.wait_until_idle()
        before = _threads()
        for _ in range(50):
            _send_raw(one.url, body).close()
        one.wait_until_idle()
        time.sleep(0.05)
        assert _threads() - before == set()


def _threads() -> set[str]:
    """Names of all threads but those of pools, which grow to four each as they are needed."""
    return {
        one.name for one in threading.enumerate() if not one.name.startswith(("forerun-reading", "forerun-compiling"))
    }


def test_requests_have_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an SDK the API of OpenTelemetry does nothing, so that a tracer of ours tells what it was given."""
    trace = pytest.importorskip("opentelemetry.trace")
    seen: list[Any] = []

    class Span(trace.NonRecordingSpan):  # type: ignore[misc,name-defined]
        def set_attribute(self, key: str, value: Any) -> None:
            seen.append((key, value))

    class Tracer(trace.NoOpTracer):  # type: ignore[misc,name-defined]
        @contextmanager
        def start_as_current_span(self, name: str, context: Any = None, **settings: Any) -> Iterator[Span]:
            above = trace.get_current_span(context).get_span_context()
            seen.append((name, f"{above.trace_id:032x}"))
            yield Span(trace.INVALID_SPAN_CONTEXT)

    monkeypatch.setattr(trace, "get_tracer", lambda *_: Tracer())
    with Serving(scripted_llm("hi")) as one:
        above = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
        one.post(COMPLETIONS, headers=above, prompt="a", max_tokens=2)
        wait_for(lambda: len(seen) == 5)
    assert ("POST /v1/completions", "ab" * 16) in seen
    assert {("http.response.status_code", 200), ("gen_ai.usage.output_tokens", 2)} <= set(seen)
