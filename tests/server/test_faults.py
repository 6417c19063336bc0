"""Clients that vanish, stand still, or send too much: the server stays up, others' texts are their own, nothing leaks.

At full size (10,000 clients that go away, bodies of 100 MB): `python -m tests.server.faults_run`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.server.asking import COMPLETIONS, refused
from tests.server.faults import Client, cancel_many
from tests.server.serving import Serving, gated_llm, scripted_llm, slow_llm, text_of, wait_for

from forerun.llm import LLM
from forerun.loading import load
from forerun.server.bodies import MOST_VALUES

MIB = 2**20


@pytest.fixture(scope="module")
def crowd(models: tuple[Path, Path]) -> Iterator[Serving]:
    """Speculation, prompts that are shared, and few places."""
    llm = load(models[0], draft=models[1], k=3, drafter="stack")
    with Serving(llm, max_running=4, max_requests=32, receive_s=0.5) as serving:
        yield serving
        serving.wait_until_idle()


def open_connections(one: Serving) -> int:
    return len(one.server.server_state.connections)


def test_rapid_cancels_leave_nothing_and_harm_nobody(crowd: Serving, plain: LLM) -> None:
    asked = {"temperature": 1, "seed": 3, "max_tokens": 40}
    expected = plain.generate("into the long way", **asked).text
    cancel_many(crowd.url, 48)  # pools grow to their size
    crowd.wait_until_idle()
    threads = {one.name for one in threading.enumerate()}
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(cancel_many, crowd.url, 240)
        num = 0
        while not done.done() or num == 0:
            response = crowd.client.post(COMPLETIONS, json={"prompt": "into the long way", **asked})
            if response.status_code == 429:  # the queue was full of those that go away
                continue
            assert response.json()["choices"][0]["text"] == expected
            num += 1
        done.result()
    crowd.wait_until_idle()
    wait_for(lambda: open_connections(crowd) <= 1, "all connections but ours are closed")
    assert not crowd.server.server_state.tasks
    engine = crowd.llm.engine
    assert not engine.sequence_ids
    assert not engine._deadlines
    assert not engine._ending
    assert engine.scheduler.num_cached == 0
    assert engine.kept is not None
    assert engine.kept.num_tokens <= crowd.server.service.config.max_kept
    new = {one.name for one in threading.enumerate()} - threads
    assert not [name for name in new if not name.startswith(("forerun-reading", "forerun-compiling", "ThreadPool"))]


@pytest.mark.parametrize("leave", ["close", "reset", "half"])
@pytest.mark.parametrize("stream", [True, False])
def test_whoever_goes_away_is_let_go_of_with_the_next_step(leave: str, stream: bool) -> None:
    """Passes go on only when told to, so that the step after the end of a connection can be counted."""
    llm, gate = gated_llm()
    with Serving(llm) as one:
        client = Client(one.url)
        client.ask(prompt="abc", max_tokens=3000, stream=stream, temperature=0)
        gate.release(6)
        wait_for(lambda: any(job.num_tokens >= 5 for job in list(one.worker._jobs)))
        (job,) = list(one.worker._jobs)
        {"close": client.socket.close, "reset": client.reset, "half": lambda: client.socket.shutdown(1)}[leave]()
        wait_for(lambda: job.is_cancelled)
        gate.release()  # the pass that was under way
        one.wait_until_idle()
        assert job.num_tokens <= 7
        assert len(one.llm.engine.sequence_ids) == 0
        client.socket.close()
        gate.release(10)
        assert one.completion("abc", max_tokens=2, temperature=0)["usage"]["completion_tokens"] == 2


def test_who_waits_in_the_queue_and_goes_takes_nobody_with_him() -> None:
    """The cancelled one is the queued one, never the one that runs."""
    with Serving(slow_llm(0.002), max_running=1) as one, ThreadPoolExecutor(1) as pool:
        expected = one.completion("abc", max_tokens=150, temperature=0)["choices"][0]["text"]
        running = pool.submit(one.stream, COMPLETIONS, prompt="abc", max_tokens=150, temperature=0)
        wait_for(lambda: one.worker.num_held == 1)
        for number in range(20):
            with Client(one.url) as client:
                client.ask(prompt="queued", max_tokens=3000, stream=number % 2 == 0)
                if not running.done():
                    wait_for(lambda: one.worker.num_held == 2 or running.done())
        assert text_of(running.result()) == expected
        one.wait_until_idle()


def test_requests_that_are_sent_ahead_are_answered_in_order() -> None:
    with Serving(scripted_llm("hello")) as one, Client(one.url) as client:
        body = json.dumps({"prompt": "<a>", "max_tokens": 9, "temperature": 0}).encode()
        head = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        client.socket.sendall((b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n" + head + body) * 3)
        client.socket.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        found = client.rest()
        assert found.count(b"200 OK") == 4
        assert found.count(b'"text":"hello"') == 3


# -- clients that stand still ------------------------------------------------------------------------------------------


def test_connections_without_a_request_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.server.gate.HEAD_S", 0.3)
    with Serving(scripted_llm("hi")) as one:
        idle = [Client(one.url) for _ in range(40)]
        for number, client in enumerate(idle):
            client.send([b"", b"P", b"POST /v1/completions HTTP/1.1\r\nX: "][number % 3 : number % 3 + 1])
        assert one.completion("<a>", max_tokens=2, temperature=0)["choices"][0]["text"] == "hi"
        assert [client.rest() for client in idle] == [b""] * 40
        wait_for(lambda: open_connections(one) <= 1)
        for client in idle:
            client.socket.close()


def test_a_head_that_never_ends_is_not_kept() -> None:
    with Serving(scripted_llm("hi")) as one, Client(one.url) as client:
        num = client.send([b"POST /v1/completions HTTP/1.1\r\nX: ", *[b"a" * 65536] * 200])
        assert num < 200 * 65536
        client.socket.close()
        wait_for(lambda: open_connections(one) <= 1)
        assert one.client.get("/health").status_code == 200


def test_too_many_connections_are_told_when_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.server.gate.most_connections", lambda config: 5)
    with Serving(scripted_llm("hi")) as one:
        idle = [Client(one.url) for _ in range(6)]
        wait_for(lambda: open_connections(one) >= 6)
        response = one.client.post(COMPLETIONS, json={"prompt": "<a>"})
        assert response.status_code == 429
        assert response.json()["error"]["code"] == "too_many_connections"
        assert int(response.headers["retry-after"]) >= 1
        for client in idle:
            client.socket.close()
        wait_for(lambda: open_connections(one) <= 1)
        assert one.completion("<a>", max_tokens=2, temperature=0)["choices"][0]["text"] == "hi"


def test_many_that_do_not_read_hold_up_nobody() -> None:
    with Serving(slow_llm(0.001), send_s=0.5, max_running=8) as one:
        expected = one.completion("abc", max_tokens=30, temperature=0)["choices"][0]["text"]
        still = [Client(one.url, buffer=4096) for _ in range(3)]
        for client in still:
            client.ask(prompt="abc", max_tokens=300, stream=True, logprobs=20)
        wait_for(lambda: one.worker.num_held == 3)
        assert text_of(one.stream(COMPLETIONS, prompt="abc", max_tokens=30, temperature=0)) == expected
        for job in list(one.worker._jobs):
            one.worker.cancel(job)  # they need not write to the end for this
        one.wait_until_idle()
        for client in still:
            client.socket.close()
        wait_for(lambda: open_connections(one) <= 1)


# -- bodies ------------------------------------------------------------------------------------------------------------


def chunked(num: int) -> Iterator[bytes]:
    part = b" " * MIB
    for _ in range(num):
        yield b"%x\r\n%b\r\n" % (len(part), part)
    yield b"0\r\n\r\n"


WAYS: dict[str, tuple[str, Callable[[], Iterator[bytes]], bytes]] = {
    "with its length": (f"Content-Length: {24 * MIB}", lambda: iter([b" " * MIB] * 24), b"413"),
    "in chunks": ("Transfer-Encoding: chunked", lambda: chunked(24), b"4"),
    "longer than any": ("Content-Length: " + "9" * 30, lambda: iter([b" " * MIB] * 24), b"4"),
    "longer than it says": ("Content-Length: 2", lambda: iter([b"{}" + b" " * MIB] * 24), b"4"),
    "of negative length": ("Content-Length: -5", lambda: iter([b"{}"]), b"400"),
    "of two lengths": ("Content-Length: 5\r\nContent-Length: 6", lambda: iter([b"{}   "]), b"400"),
    "in chunks of no size": ("Transfer-Encoding: chunked", lambda: iter([b"zz\r\nab\r\n"]), b"4"),
    "too late": (f"Content-Length: {MIB}", lambda: iter([b" "]), b"408"),
}


@pytest.mark.parametrize("way", WAYS)
def test_bodies_that_are_too_much_are_refused_while_others_go_on(crowd: Serving, plain: LLM, way: str) -> None:
    line, parts, status = WAYS[way]
    expected = plain.generate("the water", temperature=0, max_tokens=40).text
    with ThreadPoolExecutor(1) as pool, Client(crowd.url) as client:
        other = pool.submit(crowd.stream, COMPLETIONS, prompt="the water", temperature=0, max_tokens=40)
        client.head(line, "Connection: close")
        client.send(parts())
        answer = client.rest()
        if answer:  # a reset may overtake it
            assert answer.split(b" ")[1].startswith(status), answer[:300]
        assert text_of(other.result()) == expected
    wait_for(lambda: open_connections(crowd) <= 1)
    crowd.wait_until_idle()


def test_a_body_that_goes_on_after_its_refusal_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.server.gate.HEAD_S", 0.3)
    with Serving(scripted_llm("hi")) as one, Client(one.url) as client:
        client.head("Content-Length: 999999999999")
        drip = threading.Event()

        def drops() -> Iterator[bytes]:
            while True:
                drip.wait(0.02)
                yield b" "

        client.send(drops())  # until the server hangs up
        wait_for(lambda: open_connections(one) == 0 or open_connections(one) == 1)
        assert one.client.get("/health").status_code == 200


def test_large_bodies_of_strangers_are_not_read() -> None:
    with Serving(scripted_llm("hi"), api_keys=("key",)) as one, Client(one.url) as client:
        client.head(f"Content-Length: {MIB}", "Connection: close")
        assert b" 401 " in client.rest()


def test_values_are_bounded_and_text_is_not_counted_as_such(served: Serving) -> None:
    one = served
    for body in (
        b'{"prompt": [' + b"1," * MOST_VALUES + b"1]}",
        b'{"prompt": [' + b"[1]," * (MOST_VALUES // 2) + b"[1]]}",
        b'{"prompt": "a", "x": ' + b'{"a":' * MOST_VALUES + b"1" + b"}" * MOST_VALUES + b"}",
    ):
        response = one.client.post(COMPLETIONS, content=body, headers={"content-type": "application/json"})
        assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")
    commas = ',[{\\",' * (MOST_VALUES // 2)
    response = one.client.post(
        COMPLETIONS, content=f'{{"prompt": "{commas}"}}'.encode(), headers={"content-type": "application/json"}
    )
    assert response.json()["error"]["code"] == "context_length_exceeded"
    cut = b'{"prompt": "' + b'\\",' * MOST_VALUES
    response = one.client.post(COMPLETIONS, content=cut, headers={"content-type": "application/json"})
    assert response.json()["error"]["code"] == "invalid_json"


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt": [*[1] * 200_000, "a"]}, {"prompt": ["a", *[1] * 200_000]}, {"prompt": [[1], *[1] * 200_000]},
        {"prompt": [[1, *["a"] * 200_000]]}, {"stop": [1] * 200_000}, {"bad_words": [1] * 200_000},
        {"allowed_token_ids": ["a"] * 200_000}, {"logit_bias": {str(i): "x" for i in range(100_000)}},
        {"guided_choice": [1] * 200_000},
    ],
    ids=lambda value: next(iter(value)),
)  # fmt: skip
def test_of_long_lists_the_first_that_is_wrong_is_told(served: Serving, wrong: dict[str, Any]) -> None:
    error = refused(served, **{"prompt": "a", **wrong})
    (name,) = wrong
    assert error["param"].startswith(name)
    assert len(error["message"]) < 500
