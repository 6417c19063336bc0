"""The Python API: an LLM is an engine with a tokenizer in front."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeGuard, overload

from forerun.checks import shown
from forerun.constraints.cache import GrammarCache
from forerun.control.policy import Policy
from forerun.drafting.base import Drafter
from forerun.engine import Engine, Service
from forerun.engine.engine import NO_WISHES
from forerun.engine.request import needs_tokenizer
from forerun.errors import ForerunError, ParameterError, PromptError
from forerun.models.reader import TextReader
from forerun.result import Result
from forerun.runtime.base import Model
from forerun.sampling import SamplingParams
from forerun.stream import Choice, Stream
from forerun.types import Delta

if TYPE_CHECKING:
    from forerun.constraints import Grammar
    from forerun.constraints.vocabulary import Vocabulary
    from forerun.models.tokenizer import Tokenizer

Message = Mapping[str, Any]
__all__ = ["LLM", "Message", "Prompt", "Stream"]

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
        self._grammars = GrammarCache(self._vocabulary)
        self._lock = threading.RLock()
        self._outbox: dict[int, deque[tuple[Delta, float]]] = {}  # open streams: what was committed, and when
        self._dropped: deque[int] = deque()  # streams that nobody holds any more
        self._is_closed = False

    def __repr__(self) -> str:
        if self._is_closed:
            return "LLM(closed)"
        parts = {name: type(getattr(self.engine, name)).__name__ for name in ("target", "drafter")}
        return f"LLM({', '.join(f'{name}={value}' for name, value in parts.items())}, policy={self.engine.policy!r})"

    # -- generation -------------------------------------------------------------------------------------------------

    @overload
    def generate(
        self, prompt: str | Sequence[int] | Sequence[Message], sampling: SamplingParams | None = None, **params: Any
    ) -> Result: ...
    @overload
    def generate(
        self, prompt: Sequence[str] | Sequence[Sequence[int]], sampling: SamplingParams | None = None, **params: Any
    ) -> list[Result]: ...
    def generate(self, prompt: Any, sampling: SamplingParams | None = None, **params: Any) -> Any:
        """Complete one prompt (text, token ids, or chat messages) or a list of them; a list runs as one batch.

        `params` are the fields of `SamplingParams`; a ready `sampling` takes their place. If a prompt of a batch fails,
        the others are finished first and the error carries them as `results` (None in the failed places).
        """
        sampling = _sampling(sampling, params)
        if not _is_batch(prompt):
            return self.open(prompt, sampling).drain()
        streams: list[Stream] = []
        try:
            streams.extend(self.open(one, sampling) for one in prompt)
            return _finish_all(streams)
        finally:
            for stream in streams:
                stream.close()

    def stream(self, prompt: Prompt, sampling: SamplingParams | None = None, **params: Any) -> Stream:
        """Complete one prompt, token by token as committed; with `n` above 1 the pieces of all choices, interleaved.
        Closing the stream cancels the rest."""
        sampling = _sampling(sampling, params)
        if sampling.ranks_choices:
            raise ParameterError(
                "best_of",
                "the best texts are known only when all have ended, so they cannot be streamed",
                "use n alone",
            )
        return self.open(prompt, sampling)

    def open(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        service: Service = NO_WISHES,
        is_chat: bool | None = None,
        shown: frozenset[int] = frozenset(),
    ) -> Stream:
        """What `generate` and `stream` are made of: queue a request and return its stream. With `best_of` the pieces of
        all texts come, and `result` has the best of them. `is_chat`: whether token ids are those of messages, so that
        the answer is a text of its own. `shown` are control tokens that are part of its text."""
        self._check_open()
        started = perf_counter()
        tokens = self.encode(prompt)
        params, grammar = self._prepare(params)
        with self._lock:
            self._check_open()
            choices: list[Choice] = []
            try:
                for index in range(params.num_choices):
                    continues = not (_is_chat(prompt) if is_chat is None else is_chat)
                    reader = self._reader(params, continues, shown)
                    sequence = self.engine.add(
                        tokens,
                        params,
                        choice=index,
                        leader=choices[0].sequence if choices else None,
                        watch=reader.add,
                        constraints=() if grammar is None else [grammar.start()],
                        service=service,
                    )
                    choices.append(Choice(sequence, reader, started))
                self._outbox.update({choice.sequence.sequence_id: deque() for choice in choices})
                return Stream(self, choices)
            except BaseException:
                for choice in choices:
                    self._end(choice.sequence.sequence_id)
                raise

    def encode(self, prompt: Prompt, template: Mapping[str, Any] | None = None) -> list[int]:
        """The token ids a prompt stands for; `template` goes to the chat template of messages."""
        if isinstance(prompt, str):
            return list(self._need_tokenizer().encode(prompt))
        if not isinstance(prompt, Sequence) or isinstance(prompt, (bytes, bytearray)) or len(prompt) == 0:
            raise PromptError(
                f"a prompt is text, token ids or chat messages, not {shown(prompt)}",
                "",
                'for example "def add(a, b):" or [{"role": "user", "content": "Hello"}]',
            )
        if _is_chat(prompt):
            return list(self._need_tokenizer().encode_chat(prompt, **(template or {})))
        if all(hasattr(part, "__index__") and not isinstance(part, bool) for part in prompt):
            return [int(part) for part in prompt]  # type: ignore[arg-type]
        raise PromptError(f"a prompt's parts are all token ids or all chat messages, not {shown(prompt)}")

    def ready(self, params: SamplingParams) -> SamplingParams:
        """The same request with its words as token ids and its grammar compiled, which may take seconds: nothing slow
        is left for `open` to do. Any thread may do it, while others go on."""
        params, grammar = self._prepare(params)
        if grammar is None:
            return params
        return replace(params, regex=None, json_schema=None, grammar=None, one_of=None, constraint=grammar)

    def grammar(self, kind: str, given: Any) -> Grammar:
        """The compiled grammar of what was given for the parameter `kind` (json_schema, ...), or of a `Form` (kind
        "form"): for `constraint`. May take seconds; any thread may do it."""
        self._need_tokenizer()
        return self._grammars.get(kind, given)

    def close(self) -> None:
        """Cancel what is running and let go of the models (`engine` is gone). Further calls are refused."""
        with self._lock:
            if self._is_closed:
                return
            self.engine.cancel_all()
            self._is_closed = True
            self._outbox.clear()
            close = getattr(self.engine.policy, "close", None)
            if close is not None:
                close()
            del self.engine

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- plumbing ---------------------------------------------------------------------------------------------------

    def _reader(self, params: SamplingParams, continues: bool, shown: frozenset[int]) -> TextReader:
        # A completion goes on from its prompt, so its first space counts; a chat answer begins a text of its own.
        detokenizer = None if self.tokenizer is None else self.tokenizer.detokenizer(continues=continues, shown=shown)
        return TextReader(
            detokenizer, params.stops, min_tokens=params.min_tokens, include_stop=params.include_stop_string
        )

    def _prepare(self, params: SamplingParams) -> tuple[SamplingParams, Grammar | None]:
        """What only a tokenizer can do: words to token ids, and a grammar over the vocabulary."""
        if self.tokenizer is None:
            if params.stops:
                raise needs_tokenizer("stop", "use stop_token_ids")
            return params, None
        if any(isinstance(word, str) for word in params.bad_words or ()):
            params = replace(params, bad_words=self._words(params.bad_words or ()))
        structure = params.structure
        return params, None if structure is None else self._grammars.get(*structure)

    def _vocabulary(self) -> Vocabulary:
        from forerun.constraints.vocabulary import Vocabulary

        return Vocabulary.of(self._need_tokenizer(), self.engine.vocabulary_size)

    def _words(self, words: Sequence[str | tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
        """Words as token ids: as they stand and after a space, which are different tokens to most vocabularies."""
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            spellings = [word] if isinstance(word, tuple) else [
                tuple(self._need_tokenizer().encode(space + word.lstrip(" "), add_special=False, parse_special=False))
                for space in ("", " ")
            ]  # fmt: skip
            found.update(dict.fromkeys(spelling for spelling in spellings if spelling))
        return tuple(found)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ForerunError("this LLM was closed", "", "load it again")

    def _need_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise PromptError("this model has no tokenizer", "text cannot be encoded", "give token ids")
        return self.tokenizer

    def _next_delta(self, sequence_ids: Sequence[int]) -> tuple[Delta, float]:
        """The next delta of any of these sequences and when it was committed (`perf_counter`), stepping the engine
        (for everybody) while there is none. "cancelled" once another thread has closed the stream or the LLM."""
        while True:
            with self._lock:
                while self._dropped:  # taken off last: an interrupt in between must not lose it
                    self._end(self._dropped[0])
                    self._dropped.popleft()
                boxes = [self._outbox.get(key) for key in sequence_ids]
                filled = [box for box in boxes if box]
                if filled:
                    return min(filled, key=lambda box: box[0][1]).popleft()
                for key, box in zip(sequence_ids, boxes, strict=True):
                    if box is None or self.engine.is_idle:
                        return Delta(key, (), (), "cancelled"), perf_counter()
                self._step()

    def pump(self) -> bool:
        """Step the engine once for everybody; False if there was nothing to do. For servers, whose one thread steps and
        then hands out what each stream has (`Stream.ready`). What was committed before a step failed is not lost: the
        next one, which does the failed round again, hands it out.

        Any thread may call this, `open`, `close` and what a stream offers, but one step at a time is done, and whoever
        else asks waits for it: an event loop had better leave all of it to the thread that pumps. `encode` waits for
        nobody.
        """
        with self._lock:
            while self._dropped:
                self._end(self._dropped[0])
                self._dropped.popleft()
            if self._is_closed or self.engine.is_idle:
                return False
            self._step()
            return True

    def _step(self) -> None:
        self._drop_orphans()
        deltas, now = self.engine.step(), perf_counter()
        for delta in deltas:
            if delta.sequence_id in self._outbox:
                self._outbox[delta.sequence_id].append((delta, now))

    def _ready(self, sequence_ids: Sequence[int]) -> list[tuple[Delta, float]]:
        """What was committed for these sequences and not taken yet, in the order of time."""
        with self._lock:
            found: list[tuple[Delta, float]] = []
            for key in sequence_ids:
                box = self._outbox.get(key)
                if box is None:
                    found.append((Delta(key, (), (), "cancelled"), perf_counter()))
                else:
                    found.extend(box)
                    box.clear()
            return sorted(found, key=lambda one: one[1])

    def _drop_orphans(self) -> None:
        """End what the engine runs and nobody reads: requests that an interrupt caught between the two."""
        for sequence_id in self.engine.sequence_ids - self._outbox.keys():
            self.engine.cancel(sequence_id)

    def _end(self, sequence_id: int) -> None:
        with self._lock:
            if not self._is_closed:
                self.engine.cancel(sequence_id)
            self._outbox.pop(sequence_id, None)


def _sampling(sampling: SamplingParams | None, params: Mapping[str, Any]) -> SamplingParams:
    """The parameters of a request, given as an object or by name."""
    if sampling is None:
        return SamplingParams.from_keywords(params)
    if not isinstance(sampling, SamplingParams):
        raise ParameterError(
            "sampling", f"SamplingParams are needed, not {shown(sampling)}", "or give parameters by name: seed=1"
        )
    if params:
        raise ParameterError(next(iter(params)), "given beside ready SamplingParams", "put it into them")
    return sampling


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
