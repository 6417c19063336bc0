"""How an optional part is installed. forerun is on no package index, so the line to type names where it came from."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

HERE = Path(__file__).resolve()


def install_line(extra: str) -> str:
    """The line that installs an extra of pyproject.toml: of the checkout that this runs from, else of what forerun was
    installed from (PEP 610), else of a checkout that the reader has to find."""
    checkout = HERE.parents[2]  # of CHECKOUT/src/forerun/extras.py
    if (checkout / "pyproject.toml").is_file():
        return f'pip install -e "{checkout}[{extra}]"'
    source = _source()
    url, vcs = str(source.get("url", "")), source.get("vcs_info")
    if isinstance(vcs, dict):
        return f'pip install "forerun[{extra}] @ {vcs.get("vcs", "git")}+{url}@{vcs.get("commit_id", "main")}"'
    parsed = urlparse(url)
    path = url2pathname(parsed.path) if parsed.scheme == "file" else ""
    if path and Path(path).exists():
        return f'pip install "{path}[{extra}]"'
    return f'pip install ".[{extra}]" in a checkout of forerun'


def _source() -> dict[str, Any]:
    """What pip noted about where it had forerun from; empty where it noted nothing."""
    try:
        found = json.loads(distribution("forerun").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
