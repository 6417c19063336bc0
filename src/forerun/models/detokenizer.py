"""From token ids to text, a token at a time: characters are never split, and time is linear.

A token is a run of bytes, and a character may be spread over several tokens. Bytes go through an incremental UTF-8
decoder, which holds back at most the three bytes of an unfinished character and turns bytes that can never become
one into U+FFFD. Decoding never looks back, so what was handed out is never taken back or repeated.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Container, Iterable


class Detokenizer:
    """`add` each id and join what it returns, then `finish`: together the text of all the ids.

    `token_bytes` gives a token's bytes, `skip` holds ids that have no text. With `strip_space` one space at the very
    beginning is dropped: SentencePiece vocabularies put one before the first word.
    """

    def __init__(
        self, token_bytes: Callable[[int], bytes], skip: Container[int] = (), strip_space: bool = False
    ) -> None:
        self._token_bytes, self._skip, self._strip_space = token_bytes, skip, strip_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        """The text that is certain once `token` is known; often empty inside an emoji or a CJK character."""
        if token in self._skip:
            return ""
        piece = self._token_bytes(token)
        if self._strip_space and piece:
            self._strip_space = False
            piece = piece.removeprefix(b" ")
        return self._decoder.decode(piece)

    def finish(self) -> str:
        """What is left: U+FFFD if the tokens end inside a character, else nothing. `add` may not follow."""
        return self._decoder.decode(b"", final=True)

    def decode(self, tokens: Iterable[int]) -> str:
        """All of `tokens`, and the rest."""
        return "".join([*map(self.add, tokens), self.finish()])
