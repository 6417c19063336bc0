"""Models that think aloud: what stands between <think> and </think> is reasoning, not answer."""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"


class ReasoningReader:
    """Splits an answer that arrives in pieces into (reasoning, content). `begins_inside`: the prompt ended in <think>."""

    def __init__(self, begins_inside: bool = False) -> None:
        self._state = "inside" if begins_inside else "before"
        self._held = ""

    def add(self, text: str) -> tuple[str, str]:
        """(reasoning, content) that are certain now."""
        self._held += text
        reasoning = ""
        if self._state == "before":
            bare = self._held.lstrip()
            if bare.startswith(OPEN):
                self._state, self._held = "inside", bare[len(OPEN) :]
            elif OPEN.startswith(bare):
                return "", ""  # it may become the tag yet
            else:
                self._state = "behind"
        if self._state == "inside":
            at = self._held.find(CLOSE)
            if at < 0:
                keep = next(
                    (n for n in range(min(len(CLOSE) - 1, len(self._held)), 0, -1) if CLOSE.startswith(self._held[-n:])), 0
                )
                reasoning, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
                return reasoning, ""
            reasoning, self._held = self._held[:at], self._held[at + len(CLOSE) :].lstrip("\n")
            self._state = "behind"
        content, self._held = self._held, ""
        return reasoning, content

    def finish(self) -> tuple[str, str]:
        """What was held back."""
        rest, self._held = self._held, ""
        return (rest, "") if self._state == "inside" else ("", rest)
