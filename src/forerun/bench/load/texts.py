"""What plain decoding writes for every request: computed once in this process, and kept in a file of JSON lines."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from forerun import _native
from forerun.bench.load.mix import Ask
from forerun.llm import LLM

TOGETHER = 16
"""Texts written at once: plain decoding of many shares its passes, and each text is the same as alone."""


@dataclass(frozen=True, slots=True)
class Plain:
    """One text of plain decoding. `ends`: its length in characters after each of its tokens."""

    text: str
    finish_reason: str
    num_tokens: int
    ends: tuple[int, ...]

    def token_at(self, position: int) -> int:
        """The token (from 0) that the character at `position` came with."""
        return bisect_right(self.ends, position)


def write_plain(llm: LLM, asks: Iterable[Ask], done: Callable[[Ask, Plain], None]) -> None:
    """Generate each request without drafts; `done` is told of each as it ends."""
    llm.engine.scheduler.max_sequences = TOGETHER
    waiting = list(asks)
    for begin in range(0, len(waiting), 4 * TOGETHER):
        together = waiting[begin : begin + 4 * TOGETHER]
        streams = [llm.open(ask.prompt, ask.params) for ask in together]
        for ask, stream in zip(together, streams, strict=True):
            ends, length = [], 0
            for piece in stream:
                length += len(piece.text)
                if piece.token is not None:
                    ends.append(length)
            result = stream.result
            done(ask, Plain(result.text, result.finish_reason, result.usage.completion_tokens, tuple(ends)))


class TextFile:
    """Plain texts that are kept, of one model and one build of the native runtime: others in the file are left alone.
    `path` None keeps nothing."""

    def __init__(self, path: Path | None, model: str) -> None:
        self._path, self._model = path, model
        self._known: dict[str, Plain] = {}
        if path is not None and path.exists():
            self._read(path)

    def get(self, ask: Ask) -> Plain | None:
        """What was kept for this request."""
        return self._known.get(ask.key)

    def add(self, ask: Ask, plain: Plain) -> None:
        """Keep a text; a later one of the same request takes its place."""
        self._known[ask.key] = plain
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"model": self._model, "ask": ask.key, **asdict(plain)}) + "\n")

    def _read(self, path: Path) -> None:
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                found = json.loads(line)
                if found["model"] == self._model:
                    self._known[found["ask"]] = Plain(
                        found["text"], found["finish_reason"], found["num_tokens"], tuple(found["ends"])
                    )
            except (ValueError, KeyError, TypeError):
                continue  # a line that a stopped run did not finish, or something else


def identity(path: Path) -> str:
    """A name for the texts of a model's file under this build of the native runtime."""
    digest = hashlib.sha256()
    for one in (path, Path(str(_native.__file__))):
        with one.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    return digest.hexdigest()


def missing(asks: Iterable[Ask], kept: TextFile) -> list[Ask]:
    """Those whose text is not known yet, each once."""
    return list({ask.key: ask for ask in asks if kept.get(ask) is None}.values())


Known = Mapping[int, Plain]
"""Plain texts by the number of the request."""
