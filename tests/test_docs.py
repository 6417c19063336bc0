"""Pages are true: generated parts are current, and what they point at exists."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def generate():  # type: ignore[no-untyped-def]
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["README.md", "docs/cli.md", "docs/native.md", "docs/serving.md"])
def test_generated_parts_are_current(generate, page: str) -> None:  # type: ignore[no-untyped-def]
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "<!-- generated:" in text
    assert generate.render(text) == text, "run `make docs`"


def test_tests_named_in_the_pages_exist() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for name in re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8")):
            assert f"def {name}(" in sources, f"{page.name} names {name}"


def test_paths_named_in_the_pages_exist() -> None:
    packages = "|".join(path.parent.name for path in (ROOT / "src" / "forerun").glob("*/__init__.py"))
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"`((?:src|tests|docs|\.ci)/[\w./-]+)`", text):
            assert (ROOT / name).exists(), f"{page.name} names {name}"
        for name in re.findall(rf"`((?:{packages})/[\w/]+\.py)`", text):
            assert (ROOT / "src" / "forerun" / name).exists(), f"{page.name} names {name}"
        for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_the_readme_example_is_short_and_runs() -> None:
    """The API example is at most eight lines and uses only names that exist."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert example
    lines = [line for line in example[1].splitlines() if line.strip()]
    assert len(lines) <= 8
    import forerun

    compile(example[1], "README.md", "exec")
    for name in re.findall(r"forerun\.(\w+)", example[1]):
        assert hasattr(forerun, name)
