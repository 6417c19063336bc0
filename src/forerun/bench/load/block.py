"""N clients against one server for a while, each asking again as soon as it is answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

from forerun.bench.load.client import Answer, Client
from forerun.bench.load.mix import Ask
from forerun.bench.load.servers import Server

WARM_SHARE, WARM_MOST_S = 0.2, 60.0
"""What goes before a block and no figure counts: clients that begin together all have their prompts read at once, which
is no usual load."""
SAMPLE_S = 1.0
AFTER_ERROR_S = 0.5
"""A client that was refused waits before it asks again."""


class Turns:
    """Whose request is next: all of them in order, then again. Clients of any thread take from it."""

    def __init__(self, num_asks: int) -> None:
        self._num_asks, self._next, self._lock = num_asks, 0, threading.Lock()

    def take(self) -> int:
        """The number of the next request."""
        with self._lock:
            found = self._next
            self._next += 1
        return found % self._num_asks


@dataclass(slots=True)
class Block:
    """What was measured of one server for a while. `start` and `end` (perf_counter seconds) bound what is counted;
    `memory` are (seconds since the start, MB). `cpu`: processor seconds of the server and of the clients from start to
    end."""

    start: float
    end: float
    answers: list[Answer] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)
    cpu: tuple[float | None, float] = (None, 0.0)
    interrupted: bool = False

    @property
    def seconds(self) -> float:
        return self.end - self.start


def run_block(server: Server, asks: Sequence[Ask], turns: Turns, num_clients: int, seconds: float) -> Block:
    """Load `server` for its warm-up and `seconds` more, and until something was answered. What runs at the end is cut;
    Ctrl-C ends it sooner. Comes back when the server has nothing left to do."""
    over = threading.Event()
    clients = [Client(server.url, server.model) for _ in range(num_clients)]
    answers: list[list[Answer]] = [[] for _ in clients]

    def work(place: int) -> None:
        while not over.is_set():
            index = turns.take()
            answer = clients[place].ask(index, asks[index])
            answers[place].append(answer)
            if answer.end == "failed":
                over.wait(AFTER_ERROR_S)
        clients[place].close()

    began = perf_counter()
    start = began + min(WARM_SHARE * seconds, WARM_MOST_S)
    block = Block(start, start + seconds)
    threads = [threading.Thread(target=work, args=(place,), daemon=True) for place in range(num_clients)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(max(0.0, start - perf_counter()))
        before = server.cpu_s(), time.process_time()
        while ((left := block.end - perf_counter()) > 0 or not any(answers)) and server.is_alive:
            _note_memory(block, server)
            time.sleep(min(SAMPLE_S, max(left, 0.01)))
        _note_memory(block, server)
        block.cpu = _since(before, server)
    except KeyboardInterrupt:
        block.interrupted = True
    block.end = perf_counter()
    over.set()
    for client in clients:
        client.cut()
    for thread in threads:
        thread.join()
    block.answers = sorted((one for of_client in answers for one in of_client), key=lambda one: one.sent)
    server.settle()
    return block


def _note_memory(block: Block, server: Server) -> None:
    found = server.rss_mb()
    if found is not None:
        block.memory.append((perf_counter() - block.start, found))


def _since(before: tuple[float | None, float], server: Server) -> tuple[float | None, float]:
    now = server.cpu_s()
    own = None if now is None or before[0] is None else now - before[0]
    return own, time.process_time() - before[1]
