"""The line that installs an extra: it must work where forerun came from, since no package index has it."""

from __future__ import annotations

import json
import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from forerun import extras
from forerun.extras import install_line

ROOT = Path(__file__).parent.parent
INDEX = re.compile(r"""pip install ['"]?forerun\[\w+\]['"]?(?! @)""")
"""What only an index that had forerun could serve."""


def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, note: object) -> None:
    """As after `pip install`: the package lies in site-packages, and pip's note says `note` (None: there is none)."""

    class Found:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return None if note is None else note if isinstance(note, str) else json.dumps(note)

    monkeypatch.setattr(extras, "HERE", tmp_path / "lib" / "site-packages" / "forerun" / "extras.py")
    monkeypatch.setattr(extras, "distribution", lambda name: Found())


def test_a_checkout_that_forerun_runs_from() -> None:
    assert install_line("bench") == f'pip install -e "{ROOT}[bench]"'


def test_what_pip_noted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = tmp_path / "my checkout"
    place.mkdir()
    installed(monkeypatch, tmp_path, {"url": place.as_uri(), "dir_info": {}})
    assert install_line("serve") == f'pip install "{place}[serve]"'
    git = {"url": "https://example.org/forerun", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
    installed(monkeypatch, tmp_path, git)
    assert install_line("torch") == 'pip install "forerun[torch] @ git+https://example.org/forerun@abc"'


@pytest.mark.parametrize("note", [None, "", "{", "[]", {"url": "file:///no/such/place"}, {"url": "https://x/f.whl"}])
def test_what_tells_nothing_leads_to_a_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, note: object) -> None:
    installed(monkeypatch, tmp_path, note)
    assert install_line("bench") == 'pip install ".[bench]" in a checkout of forerun'

    def missing(name: str) -> Any:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "distribution", missing)
    assert install_line("bench") == 'pip install ".[bench]" in a checkout of forerun'


def test_no_text_sends_anybody_to_an_index() -> None:
    """Code and pages: `pip install forerun[...]` finds nothing."""
    files = [*(ROOT / "src").rglob("*.py"), ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert not [str(path) for path in files if INDEX.search(path.read_text(encoding="utf-8"))]
