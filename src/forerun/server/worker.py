"""The one thread that steps the engine. Requests come in from the event loop, pieces go back to it."""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable
from time import perf_counter

from forerun.llm import LLM
from forerun.server.errors import ApiError, failed, stopping, too_many
from forerun.server.jobs import Job, Opened, Said
from forerun.stream import Stream

log = logging.getLogger("forerun.server")

MAX_FAILURES = 3
"""Steps in a row that fail before a request is given up: a step heals itself, so that one which failed for want of
memory may succeed when it is done again."""

PASS_S = 60.0
"""Seconds that a pass in progress gets to end when everything else was given up."""

Told = Callable[[Job, float], None]


class Worker:
    """Steps an LLM in a thread of its own while there is anything to do.

    `submit`, `cancel` and `stop` may be called from any thread. At most `max_requests` jobs are held, waiting or
    running. `done` is told of each job that has ended, and when it ended.
    """

    def __init__(self, llm: LLM, max_requests: int, done: Told = lambda job, now: None) -> None:
        self.llm, self._max_requests, self._done = llm, max_requests, done
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._cancelled: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._jobs: dict[Job, None] = {}  # that were opened, in order of arrival
        self._num_held = 0
        self._lock = threading.Lock()
        self._is_stopping = self._gives_up = self._has_ended = False
        self._thread = threading.Thread(target=self._run, name="forerun-worker", daemon=True)
        self.failure: BaseException | None = None

    # -- from other threads --------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    @property
    def is_ready(self) -> bool:
        """Whether requests are taken."""
        return self.is_alive and not self._is_stopping

    @property
    def is_alive(self) -> bool:
        """Whether it computes, or would."""
        return self._thread.is_alive() and not self._has_ended

    @property
    def num_held(self) -> int:
        """Jobs that wait or run."""
        return self._num_held

    def require_room(self, num_jobs: int) -> None:
        """Raise ApiError 429 where there is no room for so many more, and 503 where none are taken any more."""
        if self.failure is not None:
            raise failed()
        if self._is_stopping or self._has_ended:
            raise stopping()
        if self._num_held + num_jobs > self._max_requests:
            raise too_many(self._usual_wait())

    def submit(self, *jobs: Job) -> None:
        """Take all of these, or none, as `require_room` says."""
        with self._lock:  # whoever gets in before the end is answered by it
            self.require_room(len(jobs))
            self._num_held += len(jobs)
            for job in jobs:
                self._inbox.put(job)

    def cancel(self, job: Job) -> None:
        """End a job whose client has gone; one that has ended is left alone."""
        job.is_cancelled = True
        self._cancelled.put(job)
        self._inbox.put(None)

    def stop(self, drain_s: float) -> None:
        """Take nothing new, let what runs finish for `drain_s` seconds, then end it. Blocks until the thread is done,
        or is stuck in a pass."""
        with self._lock:
            self._is_stopping = True
        self._inbox.put(None)
        self._thread.join(drain_s)
        self.give_up()
        self._thread.join(PASS_S)

    def give_up(self) -> None:
        """End what runs with the next pass."""
        self._is_stopping = self._gives_up = True
        self._inbox.put(None)

    def _usual_wait(self) -> int:
        """Seconds after which a place is likely to be free."""
        now = perf_counter()
        oldest = min((job.came for job in list(self._jobs)), default=now)
        return max(1, min(60, round((now - oldest) / max(self._num_held, 1)) + 1))

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_over():
                self._take()
                if self._jobs:
                    self._step()
        except BaseException as error:
            self.failure = error
            log.exception("the worker has failed")
        self._end()

    def _is_over(self) -> bool:
        return self._gives_up or (self._is_stopping and not self._jobs and self._inbox.empty())

    def _take(self) -> None:
        """Open what has come and end what was cancelled; sleep until something is there, if nothing runs."""
        waits = not self._jobs
        while True:
            try:
                job = self._inbox.get(block=waits)
            except queue.Empty:
                break
            waits = False
            if job is not None:
                self._open(job)
        while True:
            try:
                job = self._cancelled.get_nowait()
            except queue.Empty:
                return
            if job in self._jobs:
                self._close(job)
                self._forget(job)

    def _open(self, job: Job) -> None:
        try:
            if not job.is_cancelled:
                job.stream = self.llm.open(
                    job.prompt, job.params, service=job.service, is_chat=job.is_chat, shown=job.shown
                )
        except Exception as error:
            job.error = error
        if job.stream is None:
            self._forget(job)
            job.send(job.error or stopping())
        else:
            self._jobs[job] = None
            job.send(Opened())

    def _step(self) -> None:
        """One step. If it goes on failing, who came last is given up, then who came before, until it succeeds: what
        came last is the likeliest cause, and memory that it frees may be what the others need."""
        started = perf_counter()
        failures = 0
        while self._jobs and not self._gives_up:
            try:
                self.llm.pump()
                break
            except Exception as error:
                failures += 1
                log.exception("a step has failed (%d)", failures)
                if failures >= MAX_FAILURES:
                    self._give_up_one(error)
        for job in list(self._jobs):
            self._hand_out(job, started)

    def _give_up_one(self, error: Exception) -> None:
        """End the last of those that run, the least urgent first."""
        running = [job for job in self._jobs if job.stream is not None and job.stream.has_begun]
        last = max(enumerate(running or self._jobs), key=lambda one: (one[1].service.priority, one[0]))[1]
        self._close(last)
        last.error = error
        self._forget(last)
        last.send(error)

    def _hand_out(self, job: Job, started: float) -> None:
        """What is there for a job since the step that began at `started`, and its end."""
        stream = job.stream
        if stream is None:
            return
        if job.began_at is None and stream.has_begun:
            job.began_at = started
        pieces = stream.ready()
        if pieces:
            scores = (
                stream.result.prompt_logprobs
                if job.first_at is None and job.params.prompt_logprobs is not None
                else None
            )
            job.num_tokens += sum(1 for piece in pieces if piece.token is not None)
            job.first_at = job.first_at or perf_counter()
            job.send(Said(pieces, _new_rounds(job, stream) if job.explains else (), scores))
        if stream.is_done:
            self._forget(job)
            job.send(stream.error or stream.result)

    def _close(self, job: Job) -> None:
        try:
            if job.stream is not None:
                job.stream.close()
        except Exception:
            log.exception("a request could not be closed")

    def _forget(self, job: Job) -> None:
        self._jobs.pop(job, None)
        with self._lock:
            self._num_held -= 1
        try:
            self._done(job, perf_counter())
        except Exception:
            log.exception("a request could not be counted")

    def _end_running(self, error: BaseException) -> None:
        """End all that runs, with an error."""
        for job in list(self._jobs):
            self._close(job)
            job.error = error
            self._forget(job)
            job.send(error)

    def _end(self) -> None:
        """The thread's last act: whoever waits is told, and nobody can come after that."""
        reason: ApiError = stopping() if self.failure is None else failed()
        with self._lock:
            self._is_stopping = self._has_ended = True
        self._end_running(reason)
        while True:
            try:
                job = self._inbox.get_nowait()
            except queue.Empty:
                return
            if job is not None:
                job.error = reason
                self._forget(job)
                job.send(reason)


def _new_rounds(job: Job, stream: Stream) -> tuple[tuple[int, int, int], ...]:
    """Rounds since the last time."""
    found: list[tuple[int, int, int]] = []
    for choice, statistics in stream.statistics:
        before = job.seen.get(choice, Counter())
        found += [(choice, *kind) for kind in (statistics.rounds - before).elements()]
        job.seen[choice] = Counter(statistics.rounds)
    return tuple(found)
