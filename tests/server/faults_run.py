"""Faults at full size against a server of its own process: 10,000 rapid cancels, bodies of 100 MB, grammars that
explode.

    PYTHONPATH=src:. python -m tests.server.faults_run                     # a few minutes; a table of what it held
    PYTHONPATH=src:. python -m tests.server.faults_run --cancels 500 --megabytes 20

It fails if the server dies, if a neighbour's text differs from what it is alone, or if anything is left over: requests,
sequences, caches, threads, files, or memory that grows with the number of clients. The tests `test_faults*.py` do the
same in small.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from tests.models.tiny_gguf import write_tiny_gguf
from tests.server.faults import COMPLETIONS, EXPLODING, Client, Process, cancel_many
from tests.server.serving import PATIENCE_S

MIB = 2**20
SLACK_KIB = 24 * 1024
"""Memory that may come with any load: arenas of threads, buffers, caches that are full at some time."""


class Neighbour:
    """Somebody who asks the same again and again while others misbehave."""

    def __init__(self, server: Process) -> None:
        self._server, self._is_over = server, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.num_asked, self.num_refused, self.longest_s = 0, 0, 0.0
        self.wrong: list[str] = []
        self.expected = self._ask()

    def _ask(self) -> str:
        asked = {"prompt": "into the long way of people", "max_tokens": 60, "seed": 5, "temperature": 1}
        while True:
            response = self._server.post(**asked)
            if response.status_code == 200:
                return response.json()["choices"][0]["text"]
            assert response.status_code == 429, response.text  # full of those that go away: come again, as clients do
            self.num_refused += 1
            time.sleep(0.1)

    def _run(self) -> None:
        while not self._is_over.is_set():
            started = time.perf_counter()
            text = self._ask()
            self.longest_s = max(self.longest_s, time.perf_counter() - started)
            self.num_asked += 1
            if text != self.expected:
                self.wrong.append(text)

    def __enter__(self) -> Neighbour:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        assert not self.wrong, self.wrong[:2]


def show(what: str, figures: dict[str, int], more: str = "") -> None:
    """A line of the table."""
    print(f"{what:34}", *(f"{name}={value}" for name, value in figures.items()), more, flush=True)


def rapid_cancels(server: Process, num: int) -> None:
    """`num` clients that ask and go away at once."""
    cancel_many(server.url, min(num, 1000))  # pools, arenas and kept texts fill up
    before = server.settle()
    show("before the cancels", before)
    for part in range(4):
        started = time.perf_counter()
        with Neighbour(server) as neighbour:
            cancel_many(server.url, num // 4)
        seconds = time.perf_counter() - started
        after = server.settle()
        others = f"neighbour {neighbour.num_asked} right, {neighbour.num_refused} times 429"
        rate = f"{num // 4 / seconds:.0f} clients/s, {others}"
        show(f"after {(part + 1) * (num // 4)} cancels", after, rate)
    assert after["threads"] <= before["threads"], "threads are left over"
    assert after["files"] <= before["files"] + 4, "files are left over"
    assert after["memory_kib"] <= before["memory_kib"] + SLACK_KIB, "memory grows"


def large_bodies(server: Process, megabytes: int) -> None:
    """Bodies that are far too large, in every way that one can come."""
    part = b" " * MIB
    first = server.settle()
    show("before the bodies", first)

    def chunks() -> Iterator[bytes]:
        for _ in range(megabytes):
            yield b"%x\r\n%b\r\n" % (len(part), part)
        yield b"0\r\n\r\n"

    ways = {
        "with its length": (f"Content-Length: {megabytes * MIB}", (part for _ in range(megabytes))),
        "in chunks": ("Transfer-Encoding: chunked", chunks()),
        "longer than it says": ("Content-Length: 20", (part for _ in range(megabytes))),
    }
    for way, (line, parts) in ways.items():
        with Neighbour(server) as neighbour, Client(server.url) as client:
            started = time.perf_counter()
            client.head(line)
            num = client.send(parts)
            sent_s = time.perf_counter() - started
            status = client.rest().split(b"\r\n")[0].decode()
        figures = server.settle()
        show(f"a body {way}", figures, f"{status!r}, took {num / MIB:.0f} MiB in {sent_s:.2f} s")
        assert figures["peak_kib"] <= first["peak_kib"] + SLACK_KIB, "a refused body is kept in memory"
    with Neighbour(server) as neighbour, Client(server.url) as client:
        started = time.perf_counter()
        client.head(f"Content-Length: {megabytes * MIB}")
        num = client.send(_dripping())
        seconds = time.perf_counter() - started
    show("a body that drips", server.settle(), f"ended after {num} bytes, {seconds:.1f} s")
    assert neighbour.num_asked


def grammars(server: Process) -> None:
    """What a stream feels of grammars that explode: its longest silence, and how long each takes to be refused."""
    asked = {"prompt": "the water", "temperature": 0, "max_tokens": 480, "ignore_eos": True, "stream": True}
    print(f"longest silence of a stream: {1e3 * _longest_silence(server, asked, None):.0f} ms alone")
    for wish in EXPLODING:
        started = time.perf_counter()
        status: list[int] = []

        def compiled(wish: dict[str, Any] = wish, status: list[int] = status) -> None:
            status.append(server.post(prompt="a", max_tokens=3, **wish).status_code)

        silence = _longest_silence(server, asked, compiled)
        seconds = time.perf_counter() - started
        print(
            f"{str(wish)[:60]:60} {1e3 * silence:.0f} ms beside it; status {status[0]} after {seconds:.2f} s",
            flush=True,
        )


def _longest_silence(server: Process, asked: dict[str, Any], work: Callable[[], None] | None) -> float:
    """Seconds, over streams that are asked for one after the other until `work` is done, or over one of them."""
    thread = threading.Thread(target=work or (lambda: None))
    longest, texts = 0.0, set()
    is_first = True
    while is_first or thread.is_alive():
        parts: list[str] = []
        with httpx.stream("POST", server.url + COMPLETIONS, json=asked, timeout=PATIENCE_S) as response:
            last = None
            for line in response.iter_lines():
                now = time.perf_counter()
                if is_first:
                    thread.start()
                    is_first = False
                if line.startswith("data: {"):
                    longest, last = max(longest, now - (last or now)), now
                    parts.append(json.loads(line[6:])["choices"][0]["text"])
        texts.add("".join(parts))
    thread.join()
    assert len(texts) == 1, "a text has changed"
    return longest


def _dripping() -> Iterator[bytes]:
    """A byte a tenth of a second, without end."""
    while True:
        time.sleep(0.1)
        yield b" "


def main() -> None:
    """Run all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cancels", type=int, default=10_000)
    parser.add_argument("--megabytes", type=int, default=100)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        target = write_tiny_gguf(folder / "target.gguf", seed=1, context_length=512)
        draft = write_tiny_gguf(folder / "draft.gguf", seed=1, perturb=0.1, context_length=512)
        settings = folder / "server.toml"
        settings.write_text("[server]\nreceive_s = 5.0\nmax_requests = 256\n", encoding="utf-8")
        with Process(str(target), "--draft", str(draft), "--config", str(settings)) as server:
            rapid_cancels(server, args.cancels)
            large_bodies(server, args.megabytes)
            grammars(server)
            server.stop()
            code = server.ended()
            print("exit code", code)
            errors = [line for line in server.lines if "Traceback" in line or "Error" in line]
            assert code == 0, server.lines[-20:]
            assert not errors, errors[:5]


if __name__ == "__main__":
    main()
