"""The picture of a plan: speed-up by k (predicted, and measured where it was), what passes cost, and what load does.

Colours are Okabe and Ito's, told apart by the colour-blind; markers and dashes tell the lines apart without colour.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forerun.bench.plot import INK, STYLES, short_name


def write_plot(document: Mapping[str, Any], target: str, path: Path) -> None:
    """Draw a plan to a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 8.0), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    (by_k, passes), (by_batch, by_context) = figure.subplots(2, 2)
    styles = {name: STYLES[place % len(STYLES)] for place, name in enumerate(document["predicted"])}
    _draw_by_k(by_k, document, styles)
    _draw_passes(passes, document, target, styles)
    _draw_load(by_batch, document["by_batch"], styles, "best k and its speed, by sequences at once", "sequences")
    _draw_load(by_context, document["by_context"], styles, "best k and its speed, by context", "cached tokens")
    for axis in (by_k, passes, by_batch, by_context):
        axis.grid(color="#DDDDDD", linewidth=0.6)
        axis.set_axisbelow(True)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
        axis.tick_params(labelsize=9, colors=INK)
    where = document["device"]["title"] if "device" in document else "measured here"
    handles = _legend(document, target, styles)
    figure.legend(
        handles=handles, loc="outside upper center", ncols=min(len(handles), 6), frameon=False, fontsize=8,
        title=f"{short_name(target)}: what drafting is worth ({where})", title_fontsize=11,
    )  # fmt: skip
    figure.savefig(path, format="png")


def _legend(document: Mapping[str, Any], target: str, styles: Mapping[str, tuple[str, str]]) -> list[Any]:
    """A line for each source, and what the kinds of lines are."""
    from matplotlib.lines import Line2D

    found = [
        Line2D([], [], color=colour, marker=marker, markersize=5, label=short_name(name))
        for name, (colour, marker) in styles.items()
    ]
    found.append(Line2D([], [], color=INK, marker="o", markersize=5, label=f"{short_name(target)} (target)"))
    hollow: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 8, "markerfacecolor": "none"}
    if document["measured"] is not None:
        found.append(Line2D([], [], color=INK, **hollow, label="measured"))
    found.append(Line2D([], [], color=INK, linestyle=":", label="textbook"))
    found.append(Line2D([], [], color=INK, linestyle="--", label="roofline; always the longest k"))
    return found


def _draw_by_k(axis: Any, document: Mapping[str, Any], styles: Mapping[str, tuple[str, str]]) -> None:
    measured = document["measured"] or {}
    for name, found in document["predicted"].items():
        colour, marker = styles[name]
        ks = [int(k) for k in found]
        axis.plot(ks, [one["textbook_acceptance"] for one in found.values()], color=colour, linestyle=":")
        axis.plot(
            ks, [one["speedup"] for one in found.values()], color=colour, marker=marker, markersize=4, linewidth=1.6
        )
        if name in measured:
            axis.plot(
                ks, [one["speedup"] for one in measured[name].values()], color=colour, marker=marker, markersize=8,
                linestyle="none", markerfacecolor="none",
            )  # fmt: skip
    axis.axhline(1.0, color=INK, linewidth=1.0)
    axis.xaxis.get_major_locator().set_params(integer=True)  # there is no half a draft token
    axis.set_ylim(bottom=0.0)
    axis.set_title("speed, plain decoding = 1", fontsize=11, color=INK)
    axis.set_xlabel("k, draft tokens a round", fontsize=9, color=INK)


def _draw_passes(axis: Any, document: Mapping[str, Any], target: str, styles: Mapping[str, tuple[str, str]]) -> None:
    curves = {target: document["target_cost_ms"], **document["draft_cost_ms"]}
    roofs = document["roofline"].get("models", {})
    most = 1
    for name, costs in curves.items():
        colour, marker = (INK, "o") if name == target else styles[name]
        rows = [int(n) for n in costs]
        most = max(most, *rows)
        axis.plot(rows, list(costs.values()), color=colour, marker=marker, markersize=4)
        if name in roofs:
            axis.plot(rows, [roofs[name]["floor_ms"][n] for n in costs], color=colour, linestyle="--", linewidth=1.0)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks([2**n for n in range(most.bit_length())])
    axis.xaxis.set_major_formatter("{x:.0f}")
    axis.set_title("milliseconds of a pass", fontsize=11, color=INK)
    axis.set_xlabel("rows", fontsize=9, color=INK)


def _draw_load(
    axis: Any, loads: Mapping[str, Any], styles: Mapping[str, tuple[str, str]], title: str, label: str
) -> None:
    for name, found in loads.items():
        colour, marker = styles[name]
        points = [int(n) for n in found]
        axis.plot(
            points, [one["longest_speedup"] for one in found.values()], color=colour, linestyle="--", linewidth=1.0
        )
        axis.plot(points, [one["speedup"] for one in found.values()], color=colour, marker=marker, markersize=4)
        for point, one in zip(points, found.values(), strict=True):
            axis.annotate(
                str(one["k"]), (point, one["speedup"]), textcoords="offset points", xytext=(0, 5), fontsize=7,
                color=colour, ha="center",
            )  # fmt: skip
    axis.axhline(1.0, color=INK, linewidth=1.0)
    axis.set_xscale("log", base=2)
    axis.set_xticks([int(n) for n in next(iter(loads.values()))])
    axis.xaxis.set_major_formatter("{x:.0f}")
    axis.set_ylim(bottom=0.0)
    axis.margins(y=0.12)
    axis.set_title(title, fontsize=11, color=INK)
    axis.set_xlabel(label, fontsize=9, color=INK)
