"""The playground: one page that needs nothing but the server it came from."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files


@cache
def playground() -> tuple[str, dict[str, str]]:
    """The page and the headers it is sent with. Those allow its own script and style and nothing else, so that whatever
    a model writes can neither run nor call anybody, even if the page showed it as markup."""
    text = (files(__name__) / "index.html").read_text(encoding="utf-8")
    rules = {
        "default-src": "'none'",
        "script-src": _allowed(text, "script"),
        "style-src": _allowed(text, "style"),
        "img-src": "data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    headers = {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in rules.items()),
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }
    return text, headers


def _allowed(text: str, element: str) -> str:
    """The hashes by which a browser knows the elements of this kind."""
    found = re.findall(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)
    digests = (hashlib.sha256(part.encode()).digest() for part in found)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
