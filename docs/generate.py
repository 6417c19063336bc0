"""Write the generated parts of README.md and docs/: the file trees, the command line, the models, the parameters.

Why: a page that is generated cannot go stale unnoticed. `make docs` rewrites the parts between
`<!-- generated: NAME -->` and `<!-- end -->`; `tests/test_docs.py` fails when they differ. `--check` only says so.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "forerun"
NATIVE = ROOT / "csrc"
PAGES = [ROOT / "README.md", ROOT / "docs" / "cli.md", ROOT / "docs" / "native.md", ROOT / "docs" / "serving.md"]


def tree() -> str:
    """Every module with the first line of its docstring."""
    lines = ["```"]
    for path in sorted(PACKAGE.rglob("*.py"), key=lambda p: (p.parent.relative_to(PACKAGE).parts, p.name)):
        relative = path.relative_to(PACKAGE)
        if relative.name == "__init__.py":
            name = f"{relative.parent}/" if relative.parent.parts else "forerun/"
        else:
            name = "  " * len(relative.parts[:-1]) + relative.name
        doc = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")[0]
        lines.append(f"{name:26} {doc}".rstrip())
    return "\n".join([*lines, "```"])


def csrc() -> str:
    """Every file of the native runtime with the first sentence of the comment it begins with; a .cpp that says nothing
    of its own belongs to its header."""
    lines = ["```"]
    for folder in sorted(path for path in NATIVE.iterdir() if path.is_dir()):
        lines.append(f"{folder.name}/")
        for path in sorted(path for path in folder.rglob("*") if path.suffix in (".h", ".cpp")):
            comment = re.match(r"(?:// .*\n)+", path.read_text(encoding="utf-8"))
            if comment:
                text = " ".join(line.removeprefix("// ") for line in comment[0].splitlines())
                lines.append(f"  {path.relative_to(folder).as_posix():22} {text.split('. ')[0].removesuffix('.')}.")
    return "\n".join([*lines, "```"])


def commands() -> str:
    """Every command with its arguments, options and their help, by the panels of its --help."""
    from typer.main import get_command

    from forerun.cli import app

    root: Any = get_command(app)
    shared = _panels(root.commands["generate"])
    parts = []
    for name, command in sorted(root.commands.items()):
        about = (command.help or "").strip().split("\f")[0]
        rows = [f"## forerun {name}", "", about, "", "| option | meaning | default |", "|---|---|---|"]
        for panel, lines in _panels(command).items():
            if name != "generate" and len(lines) > 1 and lines == shared.get(panel):
                rows.append(f"| **{panel}** | as in `forerun generate` |  |")
            else:
                rows += [f"| **{panel}** |  |  |"] * bool(panel) + lines
        parts.append("\n".join(rows))
    return "\n\n".join(parts)


def _panels(command: Any) -> dict[str, list[str]]:
    panels: dict[str, list[str]] = {"": []}
    for parameter in command.params:
        if not getattr(parameter, "hidden", False):
            panels.setdefault(getattr(parameter, "rich_help_panel", None) or "", []).append(_row(parameter))
    return panels


def _row(parameter: Any) -> str:
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    if parameter.param_type_name == "argument":
        names = names.upper()
    elif parameter.metavar:
        names += f" {parameter.metavar}"
    meaning = _cell(getattr(parameter, "help", None) or "")
    default = parameter.default
    is_unset = default in (None, (), [], "", False) or callable(default) or "UNSET" in repr(default)
    return f"| `{names.replace('|', chr(92) + '|')}` | {meaning} | {'' if is_unset else default} |"


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def models() -> str:
    """The registry."""
    from forerun.models.registry import entries

    rows = ["| name | size | licence |", "|---|---|---|"]
    rows += [f"| `{entry.name}` | {entry.size / 1e6:,.0f} MB | {entry.licence} |" for entry in entries()]
    return "\n".join(rows)


def metrics() -> str:
    """What a server tells Prometheus, in the order it does."""
    from forerun.server.metrics import Metrics

    rows = ["| metric | kind | more labels | what it says |", "|---|---|---|---|"]
    common = {"model_name", "engine", "le"}
    made = Metrics("m", with_process=False)
    made.note_response("/", "GET", 200)  # else there are no labels to be seen
    for family in made.registry.collect():
        suffix = "_total" if family.type == "counter" else ""
        labels = sorted({name for sample in family.samples for name in sample.labels} - common)
        shown = ", ".join(f"`{name}`" for name in labels)
        rows.append(f"| `{family.name}{suffix}` | {family.type} | {shown} | {family.documentation} |")
    return "\n".join(rows)


def parameters() -> str:
    """The sampling parameters by the panels of their flags, with what is not simply off or unset by default."""
    from forerun.cli.flags import options_of
    from forerun.cli.options import PYTHON_ONLY, Sampling
    from forerun.sampling import NOT_BUILT, SamplingParams
    from forerun.server.requests import ChatRequest, CompletionRequest

    defaults = {field.name: field.default for field in fields(SamplingParams)}
    panels: dict[str, list[str]] = {}
    for name, option in options_of(Sampling).items():
        panels.setdefault(option.rich_help_panel, []).append(name)
    panels["From Python only"] = list(PYTHON_ONLY)
    rows = ["| | parameters, with their defaults where they are not unset |", "|---|---|"]
    for panel, names in panels.items():
        shown = [f"`{name}`{'' if not defaults[name] else f' {defaults[name]}'}" for name in names]
        rows.append(f"| {panel} | {', '.join(shown)} |")
    served = {name for request in (CompletionRequest, ChatRequest) for name in request.model_fields}
    refused = ", ".join(f"`{name}`" for name in sorted(NOT_BUILT))
    taken = ", ".join(f"`{name}`" for name in sorted(NOT_BUILT) if name in served)
    return "\n".join([
        *rows, "",
        f"Refused by name in Python and on the command line: {refused}. Requests to `forerun serve` may have {taken}",
        "([docs/serving.md](docs/serving.md)).",
    ])  # fmt: skip


PARTS: dict[str, Callable[[], str]] = {
    "tree": tree,
    "csrc": csrc,
    "commands": commands,
    "models": models,
    "parameters": parameters,
    "metrics": metrics,
}


def render(text: str) -> str:
    """`text` with every generated part written anew."""

    def replace(match: re.Match[str]) -> str:
        return f"<!-- generated: {match[1]} -->\n{PARTS[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- generated: (\w+) -->\n.*?<!-- end -->", replace, text, flags=re.DOTALL)


def main() -> int:
    """Rewrite the pages, or with --check only report which are stale."""
    stale = []
    for page in PAGES:
        old = page.read_text(encoding="utf-8")
        new = render(old)
        if new != old:
            stale.append(page.name)
            if "--check" not in sys.argv:
                page.write_text(new, encoding="utf-8")
    if stale:
        print(("stale: " if "--check" in sys.argv else "written: ") + ", ".join(stale))
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
