"""Plots as inline SVG, drawn for the width of a phone and coloured by the page's style sheet.

Every text that comes from outside goes through `escape`. Classes c0, c1, ... are the page's categorical colours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH = 360.0
LEFT, RIGHT = 118.0, 12.0
NUM_COLOURS = 8
Point = tuple[float, float]


def legend(names: Sequence[str]) -> str:
    """Names beside their colours."""
    items = "".join(
        f'<li><span class="swatch c{i % NUM_COLOURS}"></span>{escape(name)}</li>' for i, name in enumerate(names)
    )
    return f'<ul class="legend">{items}</ul>'


def intervals(rows: Sequence[tuple[str, float, float, float]], label: str) -> str:
    """A dot and its interval for each (name, ratio, low, high), beside a line at 1."""
    if not rows:
        return ""
    low = min(1.0, *(row[2] for row in rows))
    high = max(1.0, *(row[3] for row in rows))
    pad = 0.06 * (high - low or 1.0)
    low, high = low - pad, high + pad
    height = 20.0 * len(rows) + 30
    parts = [_frame_x(low, high, height, label)]
    at = _scale(1.0, low, high)
    parts.append(f'<line class="reference" x1="{at:.1f}" x2="{at:.1f}" y1="4" y2="{height - 26:.1f}"/>')
    for place, (name, value, first, last) in enumerate(rows):
        y = 14 + 20 * place
        x, a, b = (_scale(v, low, high) for v in (value, first, last))
        side = "worse" if last < 1.0 else "better" if first > 1.0 else "same"
        parts.append(
            f"<g>{_title(f'{name}: {value:.3f} ({first:.3f} to {last:.3f})')}{_row_name(name, y)}"
            f'<line class="whisker {side}" x1="{a:.1f}" x2="{b:.1f}" y1="{y}" y2="{y}"/>'
            f'<circle class="dot {side}" cx="{x:.1f}" cy="{y}" r="4"/></g>'
        )
    return _svg(height, parts, label)


def stacks(rows: Sequence[tuple[str, Mapping[str, float]]], names: Sequence[str], label: str) -> str:
    """A bar of shares (each row's sum is taken as 100 %) for every row."""
    height = 20.0 * len(rows) + 30
    parts = [_frame_x(0.0, 100.0, height, label)]
    for place, (name, values) in enumerate(rows):
        y, x, total = 6 + 20 * place, LEFT, sum(values.values())
        bars = [_row_name(name, y + 8)]
        for i, part in enumerate(names):
            share = values.get(part, 0.0) / total if total > 0 else 0.0
            width = share * (WIDTH - LEFT - RIGHT)
            if width > 0:
                bars.append(
                    f'<rect class="bar c{i % NUM_COLOURS}" x="{x:.2f}" y="{y}" width="{width:.2f}" height="14">'
                    f"{_title(f'{name}, {part}: {100 * share:.1f} %')}</rect>"
                )
            x += width
        parts.append(f"<g>{''.join(bars)}</g>")
    return _svg(height, parts, label) + legend(names)


def columns(counts: Mapping[str, float], label: str) -> str:
    """A column for each count, in the mapping's order."""
    height, left, bottom, top = 150.0, 34.0, 120.0, 14.0
    most = max(counts.values(), default=0.0) or 1.0
    step = (WIDTH - left - RIGHT) / max(len(counts), 1)
    parts = [_y_ticks(0.0, most, left, top, bottom)]
    every = math.ceil(len(counts) / 16)
    for place, (name, count) in enumerate(counts.items()):
        tall = (bottom - top) * count / most
        x = left + step * place
        parts.append(
            f'<rect class="bar c0" x="{x + 0.12 * step:.2f}" y="{bottom - tall:.2f}" width="{0.76 * step:.2f}" '
            f'height="{tall:.2f}">{_title(f"{name}: {count:g}")}</rect>'
        )
        if place % every == 0:
            parts.append(_text(x + step / 2, bottom + 13, name, "middle"))
    parts.append(_text(WIDTH - RIGHT, height - 3, label, "end", "label"))
    return _svg(height, parts, label)


def lines(series: Mapping[str, Sequence[Point]], x_label: str, y_label: str, log_x: bool = False) -> str:
    """A line for each series of (x, y), y from 0 on; `log_x` spaces x by its logarithm."""
    drawn = {name: list(points) for name, points in series.items() if points}
    if not drawn:
        return ""
    xs = [math.log2(x) if log_x else x for points in drawn.values() for x, _ in points]
    ys = [y for points in drawn.values() for _, y in points]
    left, right, top, bottom, height = 42.0, WIDTH - RIGHT, 24.0, 170.0, 204.0
    x_low, x_high = min(xs), max(xs)
    y_low, y_high = 0.0, max(ys)
    y_high = y_high if y_high > y_low else y_low + 1.0
    x_high = x_high if x_high > x_low else x_low + 1.0

    def place(x: float, y: float) -> Point:
        along = ((math.log2(x) if log_x else x) - x_low) / (x_high - x_low)
        return left + along * (right - left), bottom - (y - y_low) / (y_high - y_low) * (bottom - top)

    parts = [_y_ticks(y_low, y_high, left, top, bottom)]
    shown = sorted({x for points in drawn.values() for x, _ in points}) if log_x else ticks(x_low, x_high)
    if all(x == int(x) for x in xs):
        shown = [x for x in shown if x == int(x)]  # nothing lies at half a row or half a step
    last = -math.inf
    for x in shown:
        at = place(x, y_low)[0]
        if at - last >= 28:
            parts.append(_text(at, bottom + 14, f"{x:g}", "middle"))
            last = at
    for i, (name, points) in enumerate(drawn.items()):
        colour = f"c{i % NUM_COLOURS}"
        dashed = " dashed" if i >= NUM_COLOURS else ""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
        parts.append(f'<polyline class="line {colour}{dashed}" points="{path}"/>')
        if len(points) <= 24:
            for x, y in points:
                a, b = place(x, y)
                title = _title(f"{name}: {y:.4g} at {x:g}")
                parts.append(f'<circle class="bar {colour}" cx="{a:.1f}" cy="{b:.1f}" r="2.6">{title}</circle>')
    parts.append(_text(right, height - 6, x_label, "end", "label"))
    parts.append(_text(2, 10, y_label, "start", "label"))
    return _svg(height, parts, f"{y_label} by {x_label}") + (legend(list(drawn)) if len(drawn) > 1 else "")


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers between two."""
    span = high - low
    if not span > 0 or not math.isfinite(span):
        return [low]
    rough = span / count
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 10) for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _svg(height: float, parts: Sequence[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{escape(label, quote=True)}">'
        f"{''.join(parts)}</svg>"
    )


def _scale(value: float, low: float, high: float) -> float:
    return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)


def _frame_x(low: float, high: float, height: float, label: str) -> str:
    """Grid lines with their values below, and what they mean."""
    parts = []
    for value in ticks(low, high, 4):
        x = _scale(value, low, high)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="2" y2="{height - 26:.1f}"/>')
        parts.append(_text(x, height - 15, f"{value:g}", "middle"))
    parts.append(_text(WIDTH - RIGHT, height - 3, label, "end", "label"))
    return "".join(parts)


def _y_ticks(low: float, high: float, left: float, top: float, bottom: float) -> str:
    parts = []
    for value in ticks(low, high, 4):
        y = bottom - (value - low) / ((high - low) or 1.0) * (bottom - top)
        parts.append(f'<line class="grid" x1="{left:g}" x2="{WIDTH - RIGHT:g}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(left - 4, y + 3.5, f"{value:g}", "end"))
    return "".join(parts)


def _row_name(name: str, y: float) -> str:
    short = name if len(name) <= 18 else f"{name[:17]}…"
    return _text(LEFT - 6, y + 4, short, "end", "name")


def _text(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>"
