"""The one thread that steps the engine. Requests come in from the event loop, pieces go back to it."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

from forerun.engine import Service
from forerun.llm import LLM
from forerun.result import Piece, Result
from forerun.sampling import SamplingParams
from forerun.server.errors import stopping, too_many
from forerun.stream import Stream

log = logging.getLogger("forerun.server")

MAX_FAILURES = 3
"""Steps in a row that fail before all running requests are given up: a step heals itself, so that one which failed for
want of memory may succeed when it is done again."""

Told = Callable[["Job", float], None]


@dataclass(frozen=True, slots=True)
class Said:
    """What came of a step for one prompt: pieces of its texts and, for requests that asked, (choice, proposed, accepted)
    of the rounds they are from."""

    pieces: list[Piece]
    rounds: tuple[tuple[int, int, int], ...] = ()


@dataclass(eq=False)
class Job:
    """One prompt of a request, as token ids. `events` gets what was said, then the Result or an exception."""

    prompt: list[int]
    params: SamplingParams
    service: Service
    loop: asyncio.AbstractEventLoop
    is_chat: bool = False  # a text of its own, whatever the prompt is given as
    events: asyncio.Queue[Said | Result | BaseException] = field(default_factory=asyncio.Queue)
    came: float = field(default_factory=perf_counter)
    stream: Stream | None = None
    began_at: float | None = None  # the pass that began to read it
    first_at: float | None = None
    error: BaseException | None = None  # what ended it from outside
    num_tokens: int = 0
    explains: bool = False
    seen: dict[int, Counter[tuple[int, int]]] = field(default_factory=dict)  # rounds of each choice that were told

    def send(self, event: Said | Result | BaseException) -> None:
        """From the worker's thread to the event loop."""
        try:
            self.loop.call_soon_threadsafe(self.events.put_nowait, event)
        except RuntimeError:  # the loop is closed: nobody waits any more
            pass


class Worker:
    """Steps an LLM in a thread of its own while there is anything to do.

    `submit` and `cancel` may be called from any thread. At most `max_requests` jobs are held, waiting or running.
    `done` is told of each job that has ended, and when it ended.
    """

    def __init__(self, llm: LLM, max_requests: int, done: Told = lambda job, now: None) -> None:
        self.llm, self._max_requests, self._done = llm, max_requests, done
        self._inbox: queue.SimpleQueue[tuple[str, Job | None]] = queue.SimpleQueue()
        self._jobs: dict[Job, None] = {}  # in order of arrival
        self._num_held = 0
        self._lock = threading.Lock()
        self._is_stopping = self._gives_up = False
        self._thread = threading.Thread(target=self._run, name="forerun-worker", daemon=True)
        self.failure: BaseException | None = None

    # -- from other threads --------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    @property
    def is_ready(self) -> bool:
        """Whether requests are taken."""
        return self._thread.is_alive() and not self._is_stopping

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def num_held(self) -> int:
        """Requests that wait or run."""
        return self._num_held

    def submit(self, *jobs: Job) -> None:
        """Take all of these, or none. Raises ApiError 429 where there is no room, and 503 while the server stops."""
        with self._lock:
            if self._is_stopping or not self._thread.is_alive():
                raise stopping()
            if self._num_held + len(jobs) > self._max_requests:
                raise too_many(self._usual_wait())
            self._num_held += len(jobs)
        for job in jobs:
            self._inbox.put(("open", job))

    def cancel(self, job: Job) -> None:
        """End a job whose client has gone; one that has ended is left alone."""
        self._inbox.put(("cancel", job))

    def stop(self, drain_s: float) -> None:
        """Take nothing new, let what runs finish for `drain_s` seconds, then end it. Blocks until the thread is done."""
        with self._lock:
            self._is_stopping = True
        self._inbox.put(("wake", None))
        self._thread.join(drain_s)
        self._gives_up = True
        self._inbox.put(("wake", None))
        self._thread.join(30.0)

    def _usual_wait(self) -> int:
        """Seconds after which a place is likely to be free."""
        oldest = min((job.came for job in list(self._jobs)), default=perf_counter())
        return max(1, min(60, round((perf_counter() - oldest) / max(self._num_held, 1)) + 1))

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_over():
                self._take_commands()
                if self._jobs:
                    self._step()
        except BaseException as error:
            self.failure = error
            log.exception("the worker has failed")
        finally:
            self._end_all(self.failure or stopping())

    def _is_over(self) -> bool:
        return self._gives_up or (self._is_stopping and not self._jobs and self._inbox.empty())

    def _take_commands(self) -> None:
        """Do what was asked; sleep until something is, if there is nothing else to do."""
        waits = not self._jobs
        while True:
            try:
                what, job = self._inbox.get(block=waits)
            except queue.Empty:
                return
            waits = False
            if job is None:
                return
            if what == "open":
                self._open(job)
            elif job in self._jobs:
                if job.stream is not None:
                    job.stream.close()
                self._forget(job)

    def _open(self, job: Job) -> None:
        self._jobs[job] = None
        try:
            job.stream = self.llm.open(job.prompt, job.params, service=job.service, is_chat=job.is_chat)
        except Exception as error:
            self._forget(job)
            job.send(error)

    def _step(self) -> None:
        started = perf_counter()
        for failures in range(1, MAX_FAILURES + 1):
            try:
                self.llm.pump()
                break
            except Exception as error:
                log.exception("a step has failed (%d of %d)", failures, MAX_FAILURES)
                if failures == MAX_FAILURES:
                    self._end_all(error)
                    return
        for job in list(self._jobs):
            self._hand_out(job, started)

    def _hand_out(self, job: Job, started: float) -> None:
        """What is there for a job since the step that began at `started`, and its end."""
        stream = job.stream
        if stream is None:
            return
        if job.began_at is None and stream.has_begun:
            job.began_at = started
        pieces = stream.ready()
        if pieces:
            job.num_tokens += sum(1 for piece in pieces if piece.token is not None)
            job.first_at = job.first_at or perf_counter()
            job.send(Said(pieces, _new_rounds(job, stream) if job.explains else ()))
        if stream.is_done:
            self._forget(job)
            job.send(stream.error or stream.result)

    def _forget(self, job: Job) -> None:
        if self._jobs.pop(job, job) is None:
            with self._lock:
                self._num_held -= 1
            self._done(job, perf_counter())

    def _end_all(self, error: BaseException) -> None:
        for job in list(self._jobs):
            try:
                if job.stream is not None:
                    job.stream.close()
            except Exception:
                log.exception("a request could not be closed")
            job.error = None if self._is_stopping else error
            self._forget(job)
            job.send(error)
        while True:
            try:
                _, waiting = self._inbox.get_nowait()
            except queue.Empty:
                return
            if waiting is not None and waiting.stream is None:
                waiting.send(error)


def _new_rounds(job: Job, stream: Stream) -> tuple[tuple[int, int, int], ...]:
    """Rounds since the last time."""
    found: list[tuple[int, int, int]] = []
    for choice, statistics in stream.statistics:
        before = job.seen.get(choice, Counter())
        found += [(choice, *kind) for kind in (statistics.rounds - before).elements()]
        job.seen[choice] = Counter(statistics.rounds)
    return tuple(found)
