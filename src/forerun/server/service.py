"""What stands between HTTP and the worker: names, tickets, and what is measured."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any, TypeVar

from forerun.constraints.marks import THOUGHTS
from forerun.errors import DeadlineError, PromptError
from forerun.llm import LLM, Prompt
from forerun.sampling import SamplingParams
from forerun.server.config import ServerConfig
from forerun.server.errors import ApiError, no_such_model
from forerun.server.forms import mark_ids, marks_of, ready_chat
from forerun.server.jobs import Bell, Job, Mailbox, Ticket
from forerun.server.metrics import MeteredPolicy, Metrics
from forerun.server.prompts import conversation, prompts_of
from forerun.server.requests import ChatRequest, CompletionRequest
from forerun.server.sampling import Asked
from forerun.server.spelling import Spelling
from forerun.server.tools import ToolWish
from forerun.server.worker import Worker
from forerun.version import __version__

if TYPE_CHECKING:
    from forerun.constraints.forms import Thinking

T = TypeVar("T")


class Service:
    """An LLM that is served: its worker runs from `start` until `stop`."""

    def __init__(self, llm: LLM, config: ServerConfig, name: str) -> None:
        self.llm, self.config = llm, config
        self.name = config.model_name or name
        self.names = [self.name, *config.aliases]
        self.metrics = Metrics(self.name)
        llm.engine.policy = MeteredPolicy(llm.engine.policy, self.metrics)
        self.worker = Worker(llm, config.max_requests, self._note_end)
        self.spelling = Spelling(llm.tokenizer)
        self.call_marks = marks_of(llm)
        self._thought_ids = mark_ids(llm.tokenizer, THOUGHTS)
        self._call_ids = mark_ids(llm.tokenizer, self.call_marks.texts)
        self._created = int(time())
        self._bell: Bell | None = None
        self.context_length = llm.engine.target.capabilities.context_length
        # Texts are read in one pool and grammars compiled in another, so that a grammar of seconds holds up no prompt.
        self._reading = ThreadPoolExecutor(4, "forerun-reading")
        self._compiling = ThreadPoolExecutor(4, "forerun-compiling")
        about = f"{__version__} {self.name} {llm.engine.drafter!r} {llm.engine.policy!r}"
        self.fingerprint = f"fp_{hashlib.sha256(about.encode()).hexdigest()[:12]}"

    def start(self) -> None:
        """Take requests from now on."""
        self.worker.start()

    def stop(self) -> None:
        """Let what runs finish for `drain_s` seconds, then end it. Blocks until that is done."""
        self.worker.stop(self.config.drain_s)
        self._reading.shutdown(wait=False)
        self._compiling.shutdown(wait=False)

    @property
    def sources(self) -> frozenset[str]:
        """Names of the sources that drafts come from here."""
        drafter = self.llm.engine.drafter
        named = getattr(drafter, "sources", None)
        if isinstance(named, dict):
            names = set(named)
            return frozenset(names | {f"{one}+model" for one in names - {"model"} if "model" in names})
        own = getattr(drafter, "source", None)
        return frozenset({own} if own else ())

    async def read(self, work: Callable[[], T]) -> T:
        """Do something with texts that may take a while, beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._reading, work)

    # -- requests ------------------------------------------------------------------------------------------------------

    async def open_completion(self, request: CompletionRequest, asked: Asked) -> Ticket:
        """Take a completion: a job for each of its prompts."""
        self.worker.require_room(1)  # refused now, what would be refused after its text was read
        prompts = prompts_of(self.llm, request)
        self._check_choices(asked.params.num_choices * len(prompts))
        ids = await self.read(lambda: self._encoded(prompts))
        return await self._open(ids, asked, False, partial(self.llm.ready, asked.params))

    async def open_chat(self, request: ChatRequest, asked: Asked, wish: ToolWish) -> tuple[Ticket, bool]:
        """(the ticket of a chat, whether its answer begins in the middle of the model's reasoning)."""
        self.worker.require_room(1)  # refused now, what would be refused after its text was read
        self._check_choices(asked.params.num_choices)
        found = await self.read(lambda: conversation(self.llm, request, wish))
        # A request that wants no thoughts gets its form at once, also where the template has opened them.
        is_inside = found.is_thinking and (found.may_think or asked.params.structure is None)
        thinking: Thinking = "begun" if is_inside else "maybe" if found.may_think else "never"
        ready = partial(ready_chat, self.llm, asked.params, wish, thinking, asked.warnings)
        shown = self._thought_ids | self._call_ids if wish.may_call else self._thought_ids
        return await self._open([found.ids], asked, True, ready, wish.may_call, shown), is_inside

    def require_model(self, name: str | None) -> None:
        """Raise ApiError 404 where a request names a model that is not served."""
        if name is not None and name not in self.names:
            raise no_such_model(name, self.names)

    def _check_choices(self, num_choices: int) -> None:
        if num_choices > self.config.max_choices:
            raise ApiError(
                400, f"n: {num_choices} texts of one request are too many. At most {self.config.max_choices}", param="n"
            )

    def _encoded(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        return [self.llm.encode(prompt) for prompt in prompts]

    async def _open(
        self,
        prompts: list[list[int]],
        asked: Asked,
        is_chat: bool,
        ready: Callable[[], SamplingParams],
        may_call: bool = False,
        shown: frozenset[int] = frozenset(),
    ) -> Ticket:
        if not all(prompts):
            raise PromptError("the prompt is empty", "a model needs at least one token to start from", "give some text")
        longest, most = max(map(len, prompts)), self.config.max_prompt
        if most is not None and longest > most:
            raise ApiError(
                400, f"the prompt has {longest} tokens. At most {most} are taken here", code="context_length_exceeded"
            )
        loop = asyncio.get_running_loop()
        params = asked.params
        if params.is_structured or params.bad_words or may_call:
            params = await loop.run_in_executor(self._compiling, ready)
        if self._bell is None or self._bell.loop is not loop:
            self._bell = Bell(loop)
        mailbox = Mailbox(self._bell)
        jobs = [
            Job(ids, params, asked.service, mailbox, number, is_chat, shown, asked.explains)
            for number, ids in enumerate(prompts)
        ]
        self.worker.submit(*jobs)
        ticket = Ticket(jobs, mailbox, self.worker.cancel)
        try:
            await ticket.opened()
        except BaseException:
            ticket.close()
            raise
        self.metrics.note_prompt(ticket.num_prompt)
        return ticket

    # -- what is told --------------------------------------------------------------------------------------------------

    def model_card(self, name: str) -> dict[str, Any]:
        """The model's entry in lists of models."""
        return {
            "id": name, "object": "model", "created": self._created, "owned_by": "forerun", "root": self.name,
            "max_model_len": self.context_length,
        }  # fmt: skip

    def refresh_metrics(self) -> None:
        """Read what is only looked at when somebody asks."""
        scheduler, kept = self.llm.engine.scheduler, self.llm.engine.kept
        self.metrics.places.set(scheduler.max_sequences)
        self.metrics.held.set(self.worker.num_held)
        self.metrics.held_limit.set(self.config.max_requests)
        self.metrics.running.set(len(scheduler.running))
        self.metrics.waiting.set(len(scheduler.waiting))
        self.metrics.note_preempted(scheduler.num_preempted)
        self.metrics.cached.set(scheduler.num_cached)
        self.metrics.kept.set(0 if kept is None else kept.num_tokens)
        self.metrics.memory.set(_resident_bytes())

    def _note_end(self, job: Job, now: float) -> None:
        stream, first_s = job.stream, None if job.first_at is None else job.first_at - job.came
        if stream is None:
            self.metrics.note_end("cancelled" if job.is_cancelled else "error", now - job.came)
            return
        result, error = stream.result, job.error or stream.error
        outcome = result.finish_reason if error is None else "deadline" if isinstance(error, DeadlineError) else "error"
        if job.began_at is not None:
            self.metrics.note_begin(job.began_at - job.came, stream.num_shared)
        self.metrics.note_end(outcome, now - job.came, first_s, result)


def _resident_bytes() -> int:
    """Resident memory of this process; where the system does not say, the most it ever was; else 0."""
    try:
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        try:
            import resource
        except ImportError:  # Windows
            return 0
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
