"""What the event loop and the worker hand each other: jobs one way, what was said the other."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter

from forerun.engine import Service
from forerun.result import Piece, Result
from forerun.sampling import SamplingParams
from forerun.stream import Stream
from forerun.types import TokenLogprob


@dataclass(frozen=True, slots=True)
class Opened:
    """The engine has taken the prompt: nothing is wrong with the request itself."""


@dataclass(frozen=True, slots=True)
class Said:
    """What came of a step for one prompt: pieces of its texts; for requests that asked, (choice, proposed, accepted) of
    the rounds they are from; and with the first pieces the prompt's own log probabilities, if they were wanted."""

    pieces: list[Piece]
    rounds: tuple[tuple[int, int, int], ...] = ()
    scores: Sequence[TokenLogprob | None] | None = None


Event = Opened | Said | Result | BaseException
"""A Result or an exception is the last one of its job."""


class Bell:
    """Wakes the event loop for all mailboxes: of what a step says to many, only the first has to ring. Each ring is a
    system call in the thread that computes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._is_rung = False
        self._filled: deque[asyncio.Event] = deque()

    def ring(self, has_come: asyncio.Event) -> None:
        """Set an event of the loop's, from any thread."""
        self._filled.append(has_come)
        if not self._is_rung:
            self._is_rung = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self.loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._is_rung = False  # first: what is added from now on rings again, and what was added before is found below
        while self._filled:
            self._filled.popleft().set()


class Mailbox:
    """What the worker says about the prompts of one request, in order. Any thread may put, the event loop reads."""

    def __init__(self, bell: Bell) -> None:
        self._bell, self._loop, self._has_come = bell, bell.loop, asyncio.Event()
        self._letters: deque[tuple[int, Event]] = deque()
        self._deadline: float | None = None  # until when somebody waits
        self._timer: asyncio.TimerHandle | None = None

    def put(self, number: int, event: Event) -> None:
        """Say something about prompt `number`."""
        self._letters.append((number, event))
        self._bell.ring(self._has_come)

    async def get(self, patience_s: float | None = None) -> tuple[int, Event] | None:
        """The next; None if nothing comes for so long."""
        # Not asyncio.wait_for: up to Python 3.11 it loses a cancellation that meets what it waits for.
        deadline = self._deadline = None if patience_s is None else self._loop.time() + patience_s
        if deadline is not None and self._timer is None:
            self._timer = self._loop.call_at(deadline, self._look)
        try:
            while not self._letters:
                if deadline is not None and self._loop.time() >= deadline:
                    return None
                self._has_come.clear()
                if not self._letters:
                    await self._has_come.wait()
            return self._letters.popleft()
        finally:
            self._deadline = None

    def close(self) -> None:
        """Nobody reads any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """One timer for all letters: it goes off where one was waited for too long, else it is set again."""
        self._timer = None
        if self._deadline is None:
            return
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._look)
        else:
            self._has_come.set()


@dataclass(eq=False)
class Job:
    """One prompt of a request, as token ids; `number` says which."""

    prompt: list[int]
    params: SamplingParams
    service: Service
    mailbox: Mailbox
    number: int = 0
    is_chat: bool = False  # a text of its own, whatever the prompt is given as
    shown: frozenset[int] = frozenset()  # control tokens whose text is wanted
    explains: bool = False
    came: float = field(default_factory=perf_counter)
    stream: Stream | None = None
    began_at: float | None = None  # the pass that began to read it
    first_at: float | None = None
    error: BaseException | None = None  # what ended it from outside
    num_tokens: int = 0
    is_cancelled: bool = False
    seen: dict[int, Counter[tuple[int, int]]] = field(default_factory=dict)  # rounds of each choice that were told

    def send(self, event: Event) -> None:
        """From the worker's thread to the event loop."""
        self.mailbox.put(self.number, event)


class Ticket:
    """A request that was taken: one job for each of its prompts."""

    def __init__(self, jobs: Sequence[Job], mailbox: Mailbox, cancel: Callable[[Job], None]) -> None:
        self.jobs, self._mailbox, self._cancel = jobs, mailbox, cancel
        self._open = {job.number for job in jobs}
        self._early: deque[tuple[int, Said | Result]] = deque()

    @property
    def num_prompt(self) -> int:
        """Tokens of all prompts."""
        return sum(len(job.prompt) for job in self.jobs)

    @property
    def num_shared(self) -> int:
        """Of these, the ones that had been read for others."""
        return sum(job.stream.num_shared for job in self.jobs if job.stream is not None)

    @property
    def num_written(self) -> int:
        """Tokens of all texts so far."""
        return sum(job.num_tokens for job in self.jobs)

    async def opened(self) -> None:
        """Wait until the engine has taken every prompt; raises what it refuses one with."""
        missing = set(self._open)
        while missing:
            letter = await self._mailbox.get()
            if letter is None:
                continue
            number, event = letter
            missing.discard(number)
            if isinstance(event, BaseException):
                self._open.discard(number)
                raise event
            if not isinstance(event, Opened):
                self._early.append((number, event))

    async def events(self, patience_s: float | None = None) -> AsyncIterator[tuple[int, Said | Result] | None]:
        """(prompt, what was said or its result) until all have ended; None whenever nothing came for so long. Raises
        what one of them failed with."""
        while self._open:
            letter = self._early.popleft() if self._early else await self._mailbox.get(patience_s)
            if letter is None:
                yield None
                continue
            number, event = letter
            if isinstance(event, (Result, BaseException)):
                self._open.discard(number)
            if isinstance(event, BaseException):
                raise event
            if not isinstance(event, Opened):
                yield number, event

    def close(self) -> None:
        """Cancel what has not ended."""
        for job in self.jobs:
            if job.number in self._open:
                self._cancel(job)
        self._open.clear()
        self._mailbox.close()
