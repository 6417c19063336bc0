"""The page: a bench's document as HTML that needs nothing else, no network, no scripts."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from forerun.bench.page.groups import bandwidth, group_part, groups_of
from forerun.bench.page.studies import acceptance_part, depth_part, phases_part, verdict_part
from forerun.bench.page.svg import lines
from forerun.bench.page.tables import facts, figure, grid, section
from forerun.errors import ParameterError

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def check_page(path: Path | None) -> None:
    """Refuse a name that promises another kind of file, before anything is measured."""
    if path is not None and path.suffix.lower() not in (".html", ".htm"):
        raise ParameterError("report", f"{str(path)!r} is not a .html file", "for example --report bench.html")


def write_page(document: Mapping[str, Any], path: Path) -> None:
    """Write the page of what `forerun bench` (but for `--load`) or `python -m forerun.bench.cells` prints."""
    path.write_text(page_of(document), encoding="utf-8")


def page_of(document: Mapping[str, Any]) -> str:
    """The page's text."""
    settings = document.get("settings") or {}
    names = [str(name) for name in (settings.get("target"), settings.get("draft")) if name]
    title = "forerun bench" + (f": {' and '.join(names)}" if names else "")
    body = [f"<h1>{escape(title)}</h1>", _head(document)]
    body.append(section("Never slower", verdict_part(document), "Adaptive drafting beside plain decoding and the best "
                        "fixed choice of each cell, in alternating blocks at like bandwidth."))  # fmt: skip
    for group in groups_of(document):
        body.append(section(group.name, group_part(group), group.about))
    for key, name, part in (
        ("phases", "Steps of load and content", phases_part),
        ("depth", "Copying by depth", depth_part),
        ("acceptance", "Acceptance by workload and temperature", acceptance_part),
    ):
        if document.get(key):
            body.append(section(name, part(document[key])))
    body.append(section("What a pass costs", grid([_curves(document), _probe(document)])))
    body.append(section("Settings", _settings(document)))
    style = (files("forerun.bench.page") / "style.css").read_text(encoding="utf-8")
    return _PAGE.format(title=escape(title), style=style, body="\n".join(part for part in body if part))


def _head(document: Mapping[str, Any]) -> str:
    """Command, commit, machine and its speed."""
    known: dict[str, Any] = {name: document[name] for name in ("commit", "date", "policy") if document.get(name)}
    hardware, probe = document.get("hardware") or {}, document.get("probe") or {}
    if hardware:
        known |= {"processor": hardware.get("cpu"), "cores": hardware.get("cores"), "memory": _gb(hardware)}
        known["GPU"] = hardware.get("gpu") or "none"
        known["instruction sets"] = hardware.get("isa")
    if probe:
        known["memory bandwidth"] = f"{probe['median']:.1f} GB/s ({probe['low']:.1f} to {probe['high']:.1f})"
        if probe.get("threshold") is not None:
            known["two regimes of it"] = f"parted at {probe['threshold']:.1f} GB/s"
    for name, floor in (document.get("floor") or {}).items():
        known[f"reading {name}'s weights"] = f"{floor['bytes'] / 1e9:.2f} GB a pass, {floor['ms']:.1f} ms at this speed"
    notes = []
    if document.get("interrupted"):
        notes.append("Interrupted: the figures cover what was measured until then.")
    reasons = document.get("not_run") or {}
    named = reasons.items() if isinstance(reasons, Mapping) else ((name, "no draft model") for name in reasons)
    notes += [f"Not run: {name}: {reason}" for name, reason in named]
    command = f"<pre><code>{escape(str(document['command']))}</code></pre>" if document.get("command") else ""
    return command + facts(known) + "".join(f"<p>{escape(note)}</p>" for note in notes)


def _gb(hardware: Mapping[str, Any]) -> str | None:
    return None if hardware.get("memory_gb") is None else f"{hardware['memory_gb']} GB"


def _curves(document: Mapping[str, Any]) -> str:
    curves = document.get("cost_curve") or {}
    series = {name: [(float(rows), float(ms)) for rows, ms in curve["ms"].items()] for name, curve in curves.items()}
    contexts = ", ".join(str(context) for context in sorted({curve["context"] for curve in curves.values()}))
    return figure(lines(series, "rows of a pass", "ms"), f"t(rows): milliseconds of a pass at {contexts} cached tokens")


def _probe(document: Mapping[str, Any]) -> str:
    readings = (document.get("probe") or {}).get("series") or ()
    return bandwidth([(float(at), float(reading)) for at, reading in readings])


def _settings(document: Mapping[str, Any]) -> str:
    parts = {"settings": document.get("settings"), "versions": document.get("versions"), "hardware": document.get(
        "hardware")}  # fmt: skip
    return "".join(
        f"<details{' open' if name == 'settings' else ''}><summary>{name}</summary>{facts(values)}</details>"
        for name, values in parts.items()
        if values
    )
