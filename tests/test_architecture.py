"""The shape of the package: imports point down the design's list, importing is cheap, and the pages are true."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "forerun"

# Lowest first. A module may import from its own layer's package and from layers before it.
LAYERS = [
    {"_native"},  # compiled from csrc/
    {"version", "errors", "types", "checks", "extras"},
    {"arrays", "topology"},
    {"models"},
    {"runtime"},
    {"constraints"},
    {"sampling", "randomness"},
    {"verification"},
    {"drafting"},
    {"control"},
    {"engine"},
    {"result", "stream", "llm", "loading"},
    {"bench"},
    {"planning"},
    {"server"},
    {"cli", "__main__"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Top-level forerun parts that a module imports at run time (TYPE_CHECKING blocks are left out)."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
            if node.module == "forerun":
                names = [f"forerun.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("forerun.")}
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if own == "__init__":
        return
    upward = {name for name in imports(path) if RANK[name] > RANK[own]}
    assert not upward, f"{own} imports from layers above it: {upward}"


def test_every_part_has_a_place_in_the_layers() -> None:
    parts = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in modules()} - {"__init__"}
    assert parts | {"_native"} == set(RANK)


def test_importing_forerun_imports_nothing_heavy() -> None:
    heavy = "{'torch', 'transformers', 'tokenizers', 'numpy', 'rich'}"
    code = f"import sys, forerun; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_resolve() -> None:
    import forerun

    assert all(getattr(forerun, name) is not None for name in forerun.__all__)
    assert set(dir(forerun)) == set(forerun.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        forerun.nothing  # noqa: B018


def test_files_stay_readable() -> None:
    """Files stay under about 300 lines (design, style 10); 360 is where that stops being "about"."""
    long = {str(path.relative_to(PACKAGE)): n for path in modules() if (n := len(path.read_text().splitlines())) > 360}
    assert not long


def test_nothing_large_is_tracked() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False).stdout
    paths = [ROOT / name for name in listed.decode().split("\0") if name]
    assert not [path for path in paths if path.is_file() and path.stat().st_size > 1_000_000]
