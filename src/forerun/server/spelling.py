"""How single tokens are written in answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forerun.models.tokenizer import Tokenizer


class Spelling:
    """The text and the bytes of token ids; of a model without a tokenizer, the numbers themselves."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer

    def bytes(self, token: int) -> bytes:
        """What the token adds to a text; nothing for ids that the vocabulary leaves out."""
        if self._tokenizer is None:
            return str(token).encode()
        return self._tokenizer.token_bytes(token)

    def text(self, token: int) -> str:
        r"""The same as text, and "bytes:\xe2\x82" where it is no whole characters, as in the OpenAI API: different
        tokens stay different."""
        found = self.bytes(token)
        try:
            return found.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in found)
