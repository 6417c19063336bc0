"""From committed tokens to the text that may be shown: whole characters, up to the first stop string."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.errors import ContractError
from forerun.models.detokenizer import Detokenizer
from forerun.models.stop_strings import StopStrings


class TextReader:
    """`add` each committed token in order, then `finish`: `texts` and what `finish` returns join to the whole text,
    cut at its first stop string (behind it with `include_stop`), however tokens split the text.

    `texts[i]` is what can be shown once token i is known: text that may still become a stop string waits. A match
    counts once `min_tokens` tokens are known; those completed earlier are passed over. Without a detokenizer there is
    no text, so no stop string can be looked for (ContractError).
    """

    def __init__(
        self,
        detokenizer: Detokenizer | None,
        stops: Sequence[str] = (),
        *,
        min_tokens: int = 0,
        include_stop: bool = False,
    ) -> None:
        if detokenizer is None and stops:
            raise ContractError(
                "stop strings need a detokenizer", "a model without a tokenizer makes no text", "use stop_token_ids"
            )
        self.texts: list[str] = []
        self._detokenizer, self._matcher = detokenizer, StopStrings(stops)
        self._min_tokens, self._include_stop = min_tokens, include_stop
        self._rest: str | None = None

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text."""
        return self._matcher.matched

    @property
    def text(self) -> str:
        """Everything that can be shown so far, in time linear in its length."""
        return "".join([*self.texts, self._rest or ""])

    def add(self, token: int) -> bool:
        """Read one token; True if it completed a stop string, after which no token may follow (ContractError)."""
        if self.stop_string is not None or self._rest is not None:
            raise ContractError(
                f"token number {len(self.texts) + 1} was added behind the end of its text",
                "a stop string was complete" if self.stop_string is not None else "the text was finished",
                "add nothing once `add` returned True or `finish` was called",
            )
        self.texts.append("")  # counted as known before its text is looked at
        if self._detokenizer is not None:
            self.texts[-1] = self._read(self._detokenizer.add(token))
        return self.stop_string is not None

    def finish(self) -> str:
        """What was held back, and U+FFFD for an unfinished character; "" after a stop string. The same every time."""
        if self._rest is None:
            self._rest = ""
            if self._detokenizer is not None and self.stop_string is None:
                self._rest = self._read(self._detokenizer.finish()) + self._matcher.finish()
        return self._rest

    def _read(self, text: str) -> str:
        shown = self._matcher.add(text, len(self.texts) >= self._min_tokens)
        return shown + self.stop_string if self._include_stop and self.stop_string is not None else shown
