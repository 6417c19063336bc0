"""The texts of one request as they are committed: choices, and the stream a caller iterates."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from forerun.engine import Sequence as EngineSequence
from forerun.engine.statistics import Statistics
from forerun.models.reader import TextReader
from forerun.result import Piece, Result, Usage
from forerun.types import Delta, FinishReason, Origin, TokenLogprob

if TYPE_CHECKING:
    from forerun.llm import LLM


class Choice:
    """One text of a request, in the order its deltas are taken. Its reader is fed by the engine as tokens are
    committed, which may be ahead of what was taken."""

    def __init__(self, sequence: EngineSequence, reader: TextReader, started: float) -> None:
        self.sequence, self.reader, self._started = sequence, reader, started
        self.reason: FinishReason | None = None
        self.error: Exception | None = None
        self._tokens: list[int] = []
        self._origins: list[Origin] = []
        self._logprobs: list[TokenLogprob] = []
        self._rest = ""
        self._first_s = self._last_s = 0.0
        self._num_first = 0

    def take(self, delta: Delta, when: float) -> list[Piece]:
        """The pieces of one delta, which was committed at `when` (`perf_counter`)."""
        self._last_s = when - self._started
        if delta.tokens and not self._tokens:
            self._first_s, self._num_first = self._last_s, len(delta.tokens)
        pieces = []
        logprobs: Sequence[TokenLogprob | None] = delta.logprobs or [None] * len(delta.tokens)
        for token, origin, logprob in zip(delta.tokens, delta.origins, logprobs, strict=True):
            text = self.reader.texts[len(self._tokens)]
            self._tokens.append(token)
            self._origins.append(origin)
            if logprob is not None:
                self._logprobs.append(logprob)
            pieces.append(Piece(text, token, origin, None, logprob, self.sequence.choice))
        if delta.finish_reason is not None:
            self.error = delta.error
            pieces.append(self.end(delta.finish_reason))
        return pieces

    def end(self, reason: FinishReason) -> Piece:
        """The last piece. Text is only held back for what was taken: what a cancelled request committed beyond that is
        dropped."""
        self.reason = reason
        if len(self._tokens) == len(self.reader.texts):
            self._rest = self.reader.finish()
        return Piece(self._rest, None, None, reason, None, self.sequence.choice)

    def result(self, prompt_logprobs: Sequence[TokenLogprob | None] | None, others: tuple[Result, ...] = ()) -> Result:
        """The text so far; final once it has ended."""
        num, sequence = len(self._tokens), self.sequence
        elapsed = self._last_s - self._first_s
        rate = (num - self._num_first) / elapsed if num > self._num_first and elapsed > 0 else None
        stop_reason = self.reader.stop_string if self.reader.stop_string is not None else sequence.stop_token
        return Result(
            "".join([*self.reader.texts[:num], self._rest]),
            tuple(self._tokens),
            tuple(self._origins),
            self.reason or "cancelled",
            Usage(sequence.prompt_length, num, rate, self._first_s if num else None),
            sequence.statistics,
            None if sequence.params.logprobs is None else tuple(self._logprobs),
            None if prompt_logprobs is None else tuple(prompt_logprobs),
            stop_reason if self.reason == "stop" else None,
            sequence.choice,
            self.mean_logprob,
            others,
        )

    @property
    def mean_logprob(self) -> float | None:
        """What choices are ranked by; None where they are not, or where nothing was written."""
        if not self.sequence.params.ranks_choices or not self.sequence.num_output:
            return None
        return self.sequence.sum_logprob / self.sequence.num_output

    @property
    def rank_score(self) -> float:
        """The same, with what never began behind everything else."""
        return -math.inf if self.mean_logprob is None else self.mean_logprob


class Stream(Iterator[Piece]):
    """The tokens of one request as they are committed: iterate, then read `result` (also after an early `close`)."""

    def __init__(self, llm: LLM, choices: list[Choice]) -> None:
        self._llm, self._choices = llm, choices
        self._by_id = {choice.sequence.sequence_id: choice for choice in choices}
        self._pieces: deque[Piece] = deque()
        self._lock = threading.Lock()  # `close` may come from another thread than the one that iterates

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Piece:
        while not self._pieces:
            open_ids = [key for key, choice in self._by_id.items() if choice.reason is None]
            if not open_ids:
                for choice in self._choices:
                    if choice.error is not None:
                        raise choice.error
                raise StopIteration
            self._take(*self._llm._next_delta(open_ids))
        return self._pieces.popleft()

    def ready(self) -> list[Piece]:
        """The pieces that there are, without stepping the engine (`LLM.pump` does). An error of a choice ends its text
        with the reason "error" and is in `error`. For one thread at a time; it waits while another one steps."""
        open_ids = [key for key, choice in self._by_id.items() if choice.reason is None]
        for delta, when in self._llm._ready(open_ids):
            self._take(delta, when)
        with self._lock:  # `close` may add the last piece meanwhile
            found = list(self._pieces)
            self._pieces.clear()
        return found

    @property
    def is_done(self) -> bool:
        """Whether every text has ended; its last pieces may still be there to be taken. Any thread may ask."""
        return all(choice.reason is not None for choice in self._choices)

    @property
    def has_begun(self) -> bool:
        """Whether any of its texts has had a place."""
        return any(choice.sequence.is_begun or choice.sequence.num_output for choice in self._choices)

    @property
    def num_shared(self) -> int:
        """Tokens of the prompt that had been read for another text, and were not read again for the first of these."""
        return self._choices[0].sequence.num_shared

    @property
    def statistics(self) -> list[tuple[int, Statistics]]:
        """(choice, what speculation did for it so far). Counts that the stepping thread goes on changing: other threads
        read them once the stream `is_done`."""
        return [(choice.sequence.choice, choice.sequence.statistics) for choice in self._choices]

    @property
    def error(self) -> Exception | None:
        """What a text of the request failed with."""
        return next((choice.error for choice in self._choices if choice.error is not None), None)

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
        for key, choice in self._by_id.items():
            self._llm._end(key)
            with self._lock:
                if choice.reason is None:
                    self._pieces.append(choice.end("cancelled"))

    def __del__(self) -> None:
        # Left by `break` and forgotten. Only noted here: this may run in the middle of a step, in any thread.
        self._llm._dropped.extend(self._by_id)

    @property
    def result(self) -> Result:
        """The request so far; final once the stream has ended."""
        params = self._choices[0].sequence.params
        scores = self._choices[0].sequence.prompt_logprobs
        kept = self._choices
        if params.ranks_choices:
            kept = sorted(kept, key=lambda choice: -choice.rank_score)[: params.n]
        return kept[0].result(scores, tuple(choice.result(scores) for choice in kept[1:]))

    def _take(self, delta: Delta, when: float) -> None:
        choice = self._by_id[delta.sequence_id]
        with self._lock:
            if choice.reason is not None:
                return
            self._pieces.extend(choice.take(delta, when))
        if delta.finish_reason is not None:
            self._llm._end(delta.sequence_id)
