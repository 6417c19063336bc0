"""Tables that become cards on a narrow screen, so that nothing has to be scrolled sideways."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; the first column names the row."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = []
    for name, *cells in rows:
        rest = "".join(
            f'<td data-label="{escape(column, quote=True)}">{escape(cell)}</td>'
            for column, cell in zip(columns[1:], cells, strict=True)
        )
        body.append(f'<tr><th scope="row">{escape(name)}</th>{rest}</tr>')
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def facts(values: Mapping[str, Any]) -> str:
    """Names and values, nested ones flattened."""
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(shown(value))}</dd></div>" for name, value in flat(values).items()
    )
    return f'<dl class="facts">{items}</dl>'


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} as {"a b": 1}."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{str(name).replace('_', ' ')}"
        if isinstance(value, Mapping):
            found.update(flat(value, f"{key} "))
        else:
            found[key] = value
    return found


def shown(value: Any) -> str:
    """A value as a person writes it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(shown(part) for part in value) or "–"
    return str(value)


def percent(value: float | None) -> str:
    """A share in percent."""
    return "–" if value is None else f"{100 * value:.0f} %"


def number(value: float | None, digits: int = 2) -> str:
    """A number, or a dash."""
    return "–" if value is None else f"{value:.{digits}f}"


def figure(content: str, caption: str) -> str:
    """A plot with its caption; nothing without a plot."""
    return f"<figure>{content}<figcaption>{escape(caption)}</figcaption></figure>" if content else ""


def section(title: str, content: str, about: str = "") -> str:
    """A part of the page; nothing without content."""
    if not content:
        return ""
    text = f"<p>{escape(about)}</p>" if about else ""
    return f"<section><h2>{escape(title)}</h2>{text}{content}</section>"


def grid(figures: Iterable[str]) -> str:
    """Plots side by side where there is room."""
    content = "".join(figures)
    return f'<div class="grid-of-figures">{content}</div>' if content else ""
