"""Signals under load, in processes of their own: a server that is told to stop, and clients that are killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.asking import COMPLETIONS
from tests.server.faults import Process
from tests.server.serving import PATIENCE_S, text_of, wait_for

from forerun.llm import LLM

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM")

NUM_STREAMS = 16
ASKED = {"prompt": "the water", "temperature": 1, "max_tokens": 200, "ignore_eos": True, "stream": True}


def events(server: Process, seed: int, begun: list[int]) -> list[Any]:
    """The documents of a stream, which must end as one does; `begun` grows with its first."""
    found: list[Any] = []
    lines: list[str] = []
    with httpx.stream("POST", server.url + COMPLETIONS, json={**ASKED, "seed": seed}, timeout=PATIENCE_S) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: {"):
                found.append(json.loads(line.removeprefix("data: ")))
                if len(found) == 1:
                    begun.append(seed)
            if line:
                lines.append(line)
    assert lines[-1] == "data: [DONE]"
    return found


@pytest.fixture
def loaded(models: tuple[Path, Path], request: pytest.FixtureRequest) -> Iterator[tuple[Process, list[Any]]]:
    """A server with 16 streams under way, and their futures."""
    target, draft = models
    settings = ("--draft", str(draft), "--k", "3", "--drain", request.param, "--log-format", "json")
    with Process(str(target), *settings) as server, ThreadPoolExecutor(NUM_STREAMS) as pool:
        begun: list[int] = []
        streams = [pool.submit(events, server, seed, begun) for seed in range(NUM_STREAMS)]
        wait_for(lambda: len(begun) == NUM_STREAMS or any(one.done() for one in streams))
        yield server, streams


@pytest.mark.parametrize("loaded", ["900"], indirect=True)
def test_sixteen_streams_are_finished_before_the_end(loaded: Any, plain: LLM) -> None:
    server, streams = loaded
    server.stop()
    for seed, done in enumerate(streams):
        expected = plain.generate("the water", temperature=1, seed=seed, max_tokens=200, ignore_eos=True).text
        assert text_of(done.result()) == expected
    assert server.ended() == 0
    assert not [line for line in server.lines if "Traceback" in line or '"level": "error"' in line]


@pytest.mark.parametrize("loaded", ["0"], indirect=True)
def test_sixteen_streams_that_get_no_time_fail_cleanly(loaded: Any, plain: LLM) -> None:
    server, streams = loaded
    server.stop()
    num_cut = 0
    for seed, done in enumerate(streams):
        chunks = done.result()
        expected = plain.generate("the water", temperature=1, seed=seed, max_tokens=200, ignore_eos=True).text
        if "error" in chunks[-1]:
            num_cut += 1
            assert chunks[-1]["error"]["code"] == "shutting_down"
            assert expected.startswith(text_of(chunks[:-1]).rstrip("\ufffd"))
        else:
            assert text_of(chunks) == expected
    assert num_cut
    assert server.ended() == 0
    assert not [line for line in server.lines if "Traceback" in line]


@pytest.mark.parametrize("loaded", ["900"], indirect=True)
def test_a_second_signal_does_not_wait(loaded: Any) -> None:
    server, streams = loaded
    server.stop(signal.SIGINT)
    wait_for(lambda: _is_refusing(server))
    server.stop(signal.SIGINT)
    code = server.ended()
    for done in streams:
        assert done.exception() is None or isinstance(done.exception(), (httpx.TransportError, AssertionError))
    assert code == 0


def _is_refusing(server: Process) -> bool:
    """No connection is taken any more."""
    try:
        httpx.get(server.url + "/ready", timeout=PATIENCE_S)
    except httpx.TransportError:
        return True
    return False


CLIENT = """
import json, socket, sys, time
port, body, all_of = int(sys.argv[1]), sys.argv[2].encode(), []
for _ in range(8):
    one = socket.create_connection(("127.0.0.1", port))
    one.sendall(b"POST /v1/completions HTTP/1.1\\r\\nHost: a\\r\\nContent-Type: application/json\\r\\n"
                b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body)
    one.recv(1)
    all_of.append(one)
print("streaming", flush=True)
time.sleep(3600)
"""


def test_clients_that_are_killed_are_let_go_of(models: tuple[Path, Path], plain: LLM) -> None:
    expected = plain.generate("the water", temperature=0, max_tokens=100, ignore_eos=True).text
    asked = {"prompt": "the water", "max_tokens": 100, "ignore_eos": True}
    body = json.dumps({**ASKED, "max_tokens": 500, "n": 2})
    with Process(str(models[0]), "--draft", str(models[1]), "--k", "3", "--max-requests", "16") as server:
        assert server.post(**asked).json()["choices"][0]["text"] == expected
        before = server.settle()
        port = server.url.rsplit(":", 1)[1]
        client = subprocess.Popen([sys.executable, "-c", CLIENT, port, body], stdout=subprocess.PIPE)
        assert client.stdout is not None
        assert client.stdout.readline() == b"streaming\n"
        with ThreadPoolExecutor(1) as pool:
            neighbour = pool.submit(server.post, **asked)
            client.kill()
            client.wait()
            client.stdout.close()
            assert neighbour.result().json()["choices"][0]["text"] == expected
        after = server.settle()
        assert after["requests_held"] == after["cached_tokens"] == after["sequences_waiting"] == 0
        wait_for(lambda: server.figures()["files"] <= before["files"] + 1)
        assert server.figures()["threads"] <= before["threads"] + 8  # pools, which grow to four each
        server.stop()
        assert server.ended() == 0
