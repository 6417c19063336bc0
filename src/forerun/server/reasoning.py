"""Models that think aloud: what stands between <think> and </think> is reasoning, not answer."""

from __future__ import annotations

from forerun.constraints.marks import THOUGHTS

OPEN, CLOSE = THOUGHTS


def held_back(text: str, mark: str) -> int:
    """Signs at the end of `text` that may be the beginning of `mark`."""
    most = min(len(mark) - 1, len(text))
    return next((num for num in range(most, 0, -1) if mark.startswith(text[-num:])), 0)


class ReasoningReader:
    """Splits an answer that arrives in pieces into (reasoning, content), the same whatever the pieces are.
    `begins_inside`: the prompt ended in <think>."""

    def __init__(self, begins_inside: bool = False) -> None:
        self._state = "inside" if begins_inside else "before"
        self._held = ""

    @property
    def is_inside(self) -> bool:
        """Whether what comes now is reasoning."""
        return self._state == "inside"

    def add(self, text: str) -> tuple[str, str]:
        """(reasoning, content) that are certain now."""
        self._held += text
        if self._state == "before":
            bare = self._held.lstrip()
            if bare.startswith(OPEN):
                self._state, self._held = "inside", bare[len(OPEN) :]
            elif OPEN.startswith(bare):
                return "", ""  # it may become the tag yet
            else:
                self._state = "behind"
        reasoning = ""
        if self._state == "inside":
            at = self._held.find(CLOSE)
            if at < 0:
                num_shown = len(self._held) - held_back(self._held, CLOSE)
                reasoning, self._held = self._held[:num_shown], self._held[num_shown:]
                return reasoning, ""
            reasoning, self._held = self._held[:at], self._held[at + len(CLOSE) :]
            self._state = "between"
        if self._state == "between":  # line ends behind the tag belong to neither
            self._held = self._held.lstrip("\n")
            if self._held:
                self._state = "behind"
        content, self._held = self._held, ""
        return reasoning, content

    def finish(self) -> tuple[str, str]:
        """What was held back."""
        rest, self._held = self._held, ""
        return (rest, "") if self._state == "inside" else ("", rest)
