"""The playground: one page that needs nothing but the server it came from. Its style and its script stand in files of
their own here and inside the page where it is sent."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files


@cache
def playground() -> tuple[str, dict[str, str]]:
    """The page and the headers it is sent with. Those allow its own script and style and nothing else, so that whatever
    a model writes can neither run nor call anybody, even if the page showed it as markup."""
    text, style, script = map(_read, ("index.html", "style.css", "playground.js"))
    text = text.replace("<style></style>", f"<style>{style}</style>").replace(
        "<script></script>", f"<script>{script}</script>"
    )
    rules = {
        "default-src": "'none'",
        "script-src": _allowed(script),
        "style-src": _allowed(style),
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


def _read(name: str) -> str:
    return (files(__name__) / name).read_text(encoding="utf-8").replace("\r\n", "\n")


def _allowed(part: str) -> str:
    """The hash by which a browser knows this part of the page."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()}'"
