"""What stands between HTTP and the worker: names, prompts, tickets, and what is measured."""

from __future__ import annotations

import asyncio
import hashlib
import os
import resource
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from time import time
from typing import Any

from forerun.errors import DeadlineError
from forerun.llm import LLM, Prompt
from forerun.result import Result
from forerun.server.config import ServerConfig
from forerun.server.errors import ApiError
from forerun.server.metrics import MeteredPolicy, Metrics
from forerun.server.reasoning import OPEN as THINK
from forerun.server.requests import ChatRequest, CompletionRequest, TokenizeRequest
from forerun.server.sampling import Asked
from forerun.server.tools import ToolWish
from forerun.server.worker import Job, Said, Worker
from forerun.version import __version__

INFILLING = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<|fim▁begin|>", "<|fim▁hole|>", "<|fim▁end|>"),
)
"""Control tokens of models that fill in the middle: what comes before the prefix, the suffix and the middle."""


@dataclass
class Ticket:
    """A request that was taken: one job for each of its prompts."""

    worker: Worker
    jobs: list[Job]
    prompt_tokens: list[list[int]]
    is_closed: bool = False

    @property
    def num_prompt(self) -> int:
        return sum(map(len, self.prompt_tokens))

    @property
    def num_written(self) -> int:
        return sum(job.num_tokens for job in self.jobs)

    async def events(self) -> AsyncIterator[tuple[int, Said | Result]]:
        """(prompt, what was said or its result) until all have ended. Raises what one of them failed with."""
        queues = [job.events for job in self.jobs]
        waiting = {asyncio.ensure_future(one.get()): number for number, one in enumerate(queues)}
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    number, event = waiting.pop(task), task.result()
                    if isinstance(event, BaseException):
                        raise event
                    yield number, event
                    if not isinstance(event, Result):
                        waiting[asyncio.ensure_future(queues[number].get())] = number
            self.is_closed = True
        finally:
            for task in waiting:
                task.cancel()

    def close(self) -> None:
        """Cancel what has not ended."""
        if not self.is_closed:
            self.is_closed = True
            for job in self.jobs:
                self.worker.cancel(job)


class Service:
    """An LLM that is served: its worker is running until `stop`."""

    def __init__(self, llm: LLM, config: ServerConfig, name: str) -> None:
        self.llm, self.config = llm, config
        self.name = config.model_name or name
        self.names = [self.name, *config.aliases]
        self.metrics = Metrics(self.name)
        llm.engine.policy = MeteredPolicy(llm.engine.policy, self.metrics)
        self.worker = Worker(llm, config.max_requests, self._note_end)
        self._created = int(time())
        self.context_length = llm.engine.target.capabilities.context_length
        about = f"{__version__} {self.name} {llm.engine.drafter!r} {llm.engine.policy!r}"
        self.fingerprint = f"fp_{hashlib.sha256(about.encode()).hexdigest()[:12]}"

    def start(self) -> None:
        self.worker.start()

    def stop(self) -> None:
        """Let what runs finish, as long as it may take, then end it."""
        self.worker.stop(self.config.drain_s)

    # -- what is asked -------------------------------------------------------------------------------------------------

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

    def name_for(self, given: str | None) -> str:
        return given or self.name

    def prompts_of(self, request: CompletionRequest) -> list[Prompt]:
        """Each prompt of a completion."""
        given = request.prompt
        prompts: list[Prompt]
        if isinstance(given, str):
            prompts = [given]
        elif given and all(isinstance(part, int) for part in given):
            prompts = [list(given)]  # type: ignore[arg-type]
        else:
            prompts = list(given)  # type: ignore[arg-type]
        if not prompts:
            raise ApiError(400, "prompt: there is none", param="prompt")
        if request.suffix is not None:
            return [self._infilling(prompt, request.suffix) for prompt in prompts]
        return prompts

    def _infilling(self, prompt: Prompt, suffix: str) -> list[int]:
        """The tokens of a text with a hole in it, in the way its model was trained on."""
        if not isinstance(prompt, str):
            raise ApiError(400, "suffix: needs prompts of text", param="suffix")
        tokenizer = self.llm.tokenizer
        if tokenizer is not None:
            known = set(tokenizer.tokens)
            for before, hole, after in INFILLING:
                if {before, hole, after} <= known:
                    parts = ((before, True), (prompt, False), (hole, True), (suffix, False), (after, True))
                    return [
                        token
                        for text, is_special in parts
                        for token in tokenizer.encode(text, add_special=False, parse_special=is_special)
                    ]
        raise ApiError(400, f"suffix: {self.name} has no tokens for filling in the middle", param="suffix")

    def template_of(self, request: ChatRequest, wish: ToolWish) -> dict[str, Any]:
        """What the chat template is given beside the messages."""
        found = dict(request.chat_template_kwargs or {})
        if wish.tools:
            found["tools"] = [tool.model_dump(exclude_none=True) for tool in wish.tools]
        if request.reasoning_effort is not None:
            found["reasoning_effort"] = request.reasoning_effort
        return found

    def begins_inside(self, messages: Sequence[Mapping[str, Any]], template: Mapping[str, Any]) -> bool:
        """Whether the prompt leaves the model in the middle of its reasoning."""
        tokenizer = self.llm.tokenizer
        return tokenizer is not None and tokenizer.render_chat(messages, **template).rstrip().endswith(THINK)

    async def open(
        self, prompts: Sequence[Prompt], asked: Asked, template: Mapping[str, Any] | None = None
    ) -> Ticket:
        """Take a request: ApiError 400 for what is too large, 429 where there is no room."""
        num_choices = asked.params.num_choices * len(prompts)
        if num_choices > self.config.max_choices:
            raise ApiError(
                400, f"n: {num_choices} texts of one request are too many. At most {self.config.max_choices}", param="n"
            )
        tokens = await asyncio.to_thread(lambda: [self.llm.encode(prompt, template) for prompt in prompts])
        longest, most = max(map(len, tokens)), self.config.max_prompt
        if most is not None and longest > most:
            raise ApiError(
                400, f"the prompt has {longest} tokens. At most {most} are taken here", code="context_length_exceeded"
            )
        loop = asyncio.get_running_loop()
        # Token ids go to the engine, with messages' own beginning: what is said of the prompt is known here already.
        jobs = [Job(ids, asked.params, asked.service, loop, template is not None, explains=asked.explains) for ids in tokens]
        self.worker.submit(*jobs)
        self.metrics.note_prompt(sum(map(len, tokens)))
        return Ticket(self.worker, jobs, tokens)

    def tokens_of(self, request: TokenizeRequest) -> list[int]:
        if request.messages is not None:
            return self.llm.encode(request.messages)
        tokenizer = self._tokenizer()
        return list(tokenizer.encode(request.prompt or "", add_special=request.add_special_tokens))

    def text_of(self, tokens: Sequence[int]) -> str:
        unknown = next((token for token in tokens if not 0 <= token < self.llm.engine.vocabulary_size), None)
        if unknown is not None:
            raise ApiError(400, f"tokens: {unknown} is no token id", param="tokens")
        return str(self._tokenizer().decode(tokens, skip_special=False, continues=True))

    def spelled(self, token: int) -> str:
        """The text of one token."""
        if self.llm.tokenizer is None:
            return str(token)
        return self.llm.tokenizer.token_bytes(token).decode(errors="replace")

    def _tokenizer(self) -> Any:
        if self.llm.tokenizer is None:
            raise ApiError(400, "this model has no tokenizer; give token ids")
        return self.llm.tokenizer

    # -- what is told --------------------------------------------------------------------------------------------------

    def model_card(self, name: str) -> dict[str, Any]:
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
        self.metrics.cached.set(scheduler.num_cached)
        self.metrics.kept.set(0 if kept is None else kept.num_tokens)
        self.metrics.memory.set(_resident_bytes())

    def _note_end(self, job: Job, now: float) -> None:
        stream, first_s = job.stream, None if job.first_at is None else job.first_at - job.came
        if stream is None:
            self.metrics.note_end("error", now - job.came)
            return
        result, error = stream.result, job.error or stream.error
        outcome = result.finish_reason if error is None else "deadline" if isinstance(error, DeadlineError) else "error"
        if job.began_at is not None:
            self.metrics.note_begin(job.began_at - job.came, stream.num_shared)
        self.metrics.note_end(outcome, now - job.came, first_s, result)


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # another system: the most it ever was
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


