"""One request, from the first pass to the last token or Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FrameType, TracebackType
from typing import Any

from forerun.errors import ForerunError
from forerun.llm import LLM, Prompt
from forerun.result import Piece, Result
from forerun.sampling import SamplingParams
from forerun.stream import Stream


class Interrupts:
    """Ctrl-C while an answer runs: the round at hand is finished and what it committed is shown.

    A second Ctrl-C, or one before the first token (a long prompt can take minutes), interrupts at once. Interrupting
    a pass is safe: caches are derived from the tokens and dropped with the request. Where SIGINT is ignored (nohup)
    or this is not the main thread, nothing changes.
    """

    def __init__(self) -> None:
        self.requested = False
        self.can_wait = False
        self._previous: Any = None

    def __enter__(self) -> Interrupts:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None):
            self._previous = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested or not self.can_wait:
            raise KeyboardInterrupt
        self.requested = True


@dataclass(frozen=True)
class Played:
    """What came of a request: everything committed, whether Ctrl-C ended it, and the error that did."""

    result: Result
    interrupted: bool = False
    error: ForerunError | None = None


def play(llm: LLM, prompt: Prompt, params: dict[str, Any], show: Callable[[Piece], None]) -> Played:
    """Stream one request through `show`. Refusals raise; errors after the start are returned with what there is.

    With `best_of` the pieces of all texts come, also of those that `result` then drops.
    """
    sampling = SamplingParams.from_keywords(params)
    # `stream` refuses what cannot be shown as it comes; here its pieces are counted, and Ctrl-C keeps what there is.
    stream = llm.open(prompt, sampling) if sampling.ranks_choices else llm.stream(prompt, **params)
    interrupted, failure = False, None
    with Interrupts() as interrupts:
        try:
            for piece in stream:
                show(piece)
                interrupts.can_wait = True
                if interrupts.requested:
                    stream.close()  # the iteration then ends after what is already committed
        except KeyboardInterrupt:
            interrupted = True
            stream.close()
            failure = _show_rest(stream, show)
        except ForerunError as error:
            failure = error
        finally:
            stream.close()
    result = stream.result if failure is None else _failed(stream.result)
    return Played(result, interrupted or interrupts.requested, failure)


def _show_rest(stream: Stream, show: Callable[[Piece], None]) -> ForerunError | None:
    """What was committed before an interruption; the error that one of the texts had met, if any."""
    try:
        for piece in stream:
            show(piece)
    except ForerunError as error:
        return error
    return None


def _failed(result: Result) -> Result:
    """With every text that an error cut short marked so."""
    others = tuple(_failed(one) for one in result.others)
    reason = "error" if result.finish_reason == "cancelled" else result.finish_reason
    return replace(result, finish_reason=reason, others=others)
