"""The Python API: an LLM is an engine with a tokenizer in front."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeGuard, overload

from forerun.control.policy import Policy
from forerun.drafting.base import Drafter
from forerun.engine import Engine
from forerun.engine import Sequence as EngineSequence
from forerun.errors import ForerunError, PromptError
from forerun.result import Piece, Result, Usage
from forerun.runtime.base import Model
from forerun.sampling import SamplingParams
from forerun.types import Delta, Origin

if TYPE_CHECKING:
    from forerun.models.detokenizer import Detokenizer
    from forerun.models.tokenizer import Tokenizer

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | Sequence[Message]
"""Text (completed as it stands), token ids, or chat messages (rendered by the model's own template)."""


class LLM:
    """Generates text. `forerun.load` builds one from model names; tests and tools build one from parts.

    Safe to use from several threads: requests share the engine's batch, and whoever waits steps it.
    """

    def __init__(
        self,
        target: Model,
        tokenizer: Tokenizer | None = None,
        drafter: Drafter | None = None,
        policy: Policy | None = None,
        **engine_settings: Any,
    ) -> None:
        if tokenizer is not None:
            engine_settings.setdefault("vocabulary_size", tokenizer.vocabulary_size)
            engine_settings.setdefault("eos_ids", tokenizer.eos_ids)
        self.tokenizer = tokenizer
        self.engine = Engine(target, drafter, policy, **engine_settings)
        self._lock = threading.RLock()
        self._outbox: dict[int, deque[tuple[Delta, float]]] = {}  # open streams: what was committed, and when
        self._dropped: deque[int] = deque()  # streams that nobody holds any more
        self._is_closed = False

    # -- generation -------------------------------------------------------------------------------------------------

    @overload
    def generate(self, prompt: str | Sequence[int] | Sequence[Message], **params: Any) -> Result: ...
    @overload
    def generate(self, prompt: Sequence[str] | Sequence[Sequence[int]], **params: Any) -> list[Result]: ...
    def generate(self, prompt: Any, **params: Any) -> Any:
        """Complete one prompt (text, token ids, or chat messages) or a list of them; a list runs as one batch.

        `params` are the fields of `SamplingParams`. If a prompt of a batch fails, the others are finished first and
        the error carries them as `results` (None in the failed places).
        """
        sampling = SamplingParams.from_keywords(params)
        if not _is_batch(prompt):
            return self._stream(prompt, sampling).drain()
        streams: list[Stream] = []
        try:
            streams.extend(self._stream(one, sampling) for one in prompt)
            return _finish_all(streams)
        finally:
            for stream in streams:
                stream.close()

    def stream(self, prompt: Prompt, **params: Any) -> Stream:
        """Complete one prompt, token by token as committed. Closing the stream cancels the rest."""
        return self._stream(prompt, SamplingParams.from_keywords(params))

    def encode(self, prompt: Prompt) -> list[int]:
        """The token ids a prompt stands for."""
        if isinstance(prompt, str):
            return list(self._need_tokenizer().encode(prompt))
        if not isinstance(prompt, Sequence) or isinstance(prompt, (bytes, bytearray)) or len(prompt) == 0:
            raise PromptError(
                f"a prompt is text, token ids or chat messages, not {_shown(prompt)}",
                "",
                'for example "def add(a, b):" or [{"role": "user", "content": "Hello"}]',
            )
        if _is_chat(prompt):
            return list(self._need_tokenizer().encode_chat(prompt))
        if all(hasattr(part, "__index__") and not isinstance(part, bool) for part in prompt):
            return [int(part) for part in prompt]  # type: ignore[arg-type]
        raise PromptError(f"a prompt's parts are all token ids or all chat messages, not {_shown(prompt)}")

    def close(self) -> None:
        """Cancel what is running and let go of the models (`engine` is gone). Further calls are refused."""
        with self._lock:
            if self._is_closed:
                return
            for sequence in [*self.engine.scheduler.running, *self.engine.scheduler.waiting]:
                self.engine.cancel(sequence.sequence_id)
            self._is_closed = True
            self._outbox.clear()
            del self.engine

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- plumbing ---------------------------------------------------------------------------------------------------

    def _stream(self, prompt: Prompt, params: SamplingParams) -> Stream:
        self._check_open()
        started = perf_counter()
        tokens = self.encode(prompt)
        detokenizer = None
        if self.tokenizer is not None:
            # A completion goes on from its prompt, so its first space counts; a chat answer begins a text of its own.
            detokenizer = self.tokenizer.detokenizer(continues=not _is_chat(prompt))
        with self._lock:
            self._check_open()
            sequence = self.engine.add(tokens, params)
            self._outbox[sequence.sequence_id] = deque()
            return Stream(self, sequence, detokenizer, started)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ForerunError("this LLM was closed", "", "load it again")

    def _need_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise PromptError("this model has no tokenizer", "text cannot be encoded", "give token ids")
        return self.tokenizer

    def _next_delta(self, sequence_id: int) -> tuple[Delta, float]:
        """The next delta of a sequence and when it was committed (`perf_counter`), stepping the engine (for
        everybody) while there is none. "cancelled" once another thread has closed the stream or the LLM."""
        while True:
            with self._lock:
                while self._dropped:
                    self._end(self._dropped.popleft())
                box = self._outbox.get(sequence_id)
                if box:
                    return box.popleft()
                if box is None or self.engine.is_idle:
                    return Delta(sequence_id, (), (), "cancelled"), perf_counter()
                deltas, now = self.engine.step(), perf_counter()
                for delta in deltas:
                    if delta.sequence_id in self._outbox:
                        self._outbox[delta.sequence_id].append((delta, now))

    def _end(self, sequence_id: int) -> None:
        with self._lock:
            if not self._is_closed:
                self.engine.cancel(sequence_id)
            self._outbox.pop(sequence_id, None)


class Stream(Iterator[Piece]):
    """The tokens of one request as they are committed: iterate, then read `result` (also after an early `close`)."""

    def __init__(self, llm: LLM, sequence: EngineSequence, detokenizer: Detokenizer | None, started: float) -> None:
        self._llm, self._sequence, self._started = llm, sequence, started
        self._detokenizer = detokenizer
        self._pieces: deque[Piece] = deque()
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self._origins: list[Origin] = []
        self._first_s = self._last_s = 0.0
        self._num_first = 0
        self._reason: Any = None
        self._error: Exception | None = None
        self._lock = threading.Lock()  # `close` may come from another thread than the one that iterates

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Piece:
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self._reason is not None:
                raise StopIteration
            self._take(*self._llm._next_delta(self._sequence.sequence_id))
        return self._pieces.popleft()

    def drain(self) -> Result:
        """Run to the end and return the result; an interruption cancels the request."""
        try:
            for _ in self:
                pass
        finally:
            self.close()
        return self.result

    def close(self) -> None:
        """Cancel what is left; `result` keeps what there is. Any thread may call it."""
        self._llm._end(self._sequence.sequence_id)
        with self._lock:
            if self._reason is None:
                self._close_text("cancelled")

    def __del__(self) -> None:
        # Left by `break` and forgotten. Only noted here: this may run in the middle of a step, in any thread.
        self._llm._dropped.append(self._sequence.sequence_id)

    @property
    def result(self) -> Result:
        """The request so far; final once the stream has ended."""
        num = len(self._tokens)
        elapsed = self._last_s - self._first_s
        rate = (num - self._num_first) / elapsed if num > self._num_first and elapsed > 0 else None
        return Result(
            "".join(self._texts),
            tuple(self._tokens),
            tuple(self._origins),
            self._reason or "cancelled",
            Usage(self._sequence.prompt_length, num, rate, self._first_s if num else None),
            self._sequence.statistics,
        )

    def _take(self, delta: Delta, when: float) -> None:
        with self._lock:
            if self._reason is not None:
                return
            self._last_s = when - self._started
            if delta.tokens and not self._tokens:
                self._first_s, self._num_first = self._last_s, len(delta.tokens)
            for token, origin in zip(delta.tokens, delta.origins, strict=True):
                text = self._detokenizer.add(token) if self._detokenizer is not None else ""
                self._tokens.append(token)
                self._origins.append(origin)
                self._texts.append(text)
                self._pieces.append(Piece(text, token, origin))
            if delta.finish_reason is None:
                return
            self._error = delta.error
            self._close_text(delta.finish_reason)
        self._llm._end(self._sequence.sequence_id)

    def _close_text(self, reason: Any) -> None:
        self._reason = reason
        rest = self._detokenizer.finish() if self._detokenizer is not None else ""
        self._texts.append(rest)
        self._pieces.append(Piece(rest, None, None, reason))


def _is_batch(prompt: Any) -> bool:
    """Whether `prompt` is a list of prompts: its parts are texts or themselves sequences."""
    if isinstance(prompt, str) or not isinstance(prompt, Sequence) or len(prompt) == 0:
        return False
    return any(isinstance(part, (str, Sequence)) for part in prompt)


def _is_chat(prompt: Any) -> TypeGuard[Sequence[Message]]:
    """Whether `prompt` is a list of chat messages."""
    return not isinstance(prompt, str) and len(prompt) > 0 and all(isinstance(part, Mapping) for part in prompt)


def _finish_all(streams: list[Stream]) -> list[Result]:
    results: list[Result | None] = []
    first: ForerunError | None = None
    for number, stream in enumerate(streams):
        try:
            results.append(stream.drain())
        except ForerunError as error:
            results.append(None)
            error.args = (f"prompt {number}: {error.args[0]}",)
            first = first or error
    if first is not None:
        first.results = results  # type: ignore[attr-defined]
        raise first
    return [result for result in results if result is not None]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
