"""The picture: speed-up over plain decoding by k, one panel per workload, peers as level lines.

Colours are Okabe and Ito's, told apart by the colour-blind; markers and dashes tell the lines apart without colour.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forerun.bench.doubts import has_interval
from forerun.bench.summary import PLAIN
from forerun.bench.variants import ADAPTIVE
from forerun.errors import MissingDependencyError, ParameterError
from forerun.extras import install_line

INK = "#333333"
STYLES = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"), ("#E69F00", "v"), ("#56B4E9", "P"))
"""Colour and marker of each drafter; `forerun plan` draws with them too."""
PEER_STYLES: tuple[tuple[str, Any], ...] = (
    ("#CC79A7", "--"), ("#E69F00", "-."), ("#56B4E9", ":"), ("#999999", (0, (5, 1, 1, 1))),
)  # fmt: skip
MAX_COLUMNS = 3


def check_plot(path: Path | None) -> None:
    """Refuse a plot that could not be written, before anything is measured."""
    if path is None:
        return
    if path.suffix.lower() != ".png":
        raise ParameterError("plot", f"{str(path)!r} is not a .png file", "for example --plot bench.png")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingDependencyError(
            "--plot needs matplotlib", "it is not installed", f"pip install matplotlib, or {install_line('bench')}"
        ) from None


def write_plot(document: Mapping[str, Any], path: Path) -> None:
    """Draw the document's speed-ups to a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    workloads = document["workloads"]
    columns = min(len(workloads), MAX_COLUMNS)
    rows = -(-len(workloads) // columns)
    figure = Figure(figsize=(1.2 + 3.6 * columns, 1.5 + 3.0 * rows), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, sharey=True).flatten()
    drafters = list(
        dict.fromkeys(f["drafter"] for figures in workloads.values() for f in figures.values() if f.get("drafter"))
    )
    peers = list(dict.fromkeys(n for figures in workloads.values() for n, f in figures.items() if "drafter" not in f))
    handles: dict[str, Any] = {}
    for axis, (workload, figures) in zip(axes, workloads.items(), strict=False):
        handles.update(_panel(axis, figures, drafters, peers))
        axis.set_title(workload, fontsize=11, color=INK)
    for axis in axes[len(workloads) :]:
        axis.set_visible(False)
    axes[0].set_ylim(bottom=0.0)  # shared by all panels, so only once every line is drawn
    settings, machine = document["settings"], document["hardware"]
    pair = short_name(settings["target"]) + (f" with {short_name(settings['draft'])}" if settings["draft"] else "")
    figure.legend(
        handles.values(), handles.keys(), loc="outside upper center", ncols=min(len(handles), 2 * columns),
        frameon=False, fontsize=9, title=f"{pair}, {settings['dtype']}", title_fontsize=11,
    )  # fmt: skip
    has_bars = any(
        has_interval(f["speedup_over"][PLAIN])
        for figures in workloads.values()
        for f in figures.values()
        if f["speedup_over"].get(PLAIN)
    )
    bars = "bars: 95 % of the median over prompts" if has_bars else "too few prompts for bars"
    note = f"{machine['cpu']}, {machine['cores']} cores; {document['commit'][:12]}; {bars}"
    figure.supxlabel(f"k, draft tokens per round\n{note}", fontsize=8, color=INK)
    figure.supylabel("decoding speed, forerun plain = 1", fontsize=10, color=INK)
    figure.savefig(path, format="png")


def _panel(axis: Any, figures: Mapping[str, Any], drafters: list[str], peers: list[str]) -> dict[str, Any]:
    """Draw one workload; returns legend label -> handle."""
    handles: dict[str, Any] = {"forerun plain": axis.axhline(1.0, color=INK, linewidth=1.2)}
    for place, drafter in enumerate(drafters):
        colour, marker = STYLES[place % len(STYLES)]
        points = [(f["k"], f["speedup_over"][PLAIN]) for f in figures.values() if f.get("drafter") == drafter]
        if drafter == ADAPTIVE:  # it chooses k itself: a level
            for _, ratio in points:
                style = {"color": colour, "linestyle": (0, (7, 2)), "linewidth": 1.6}
                handles[f"forerun, {drafter}"] = axis.axhline(ratio["median"], **style)
            continue
        points.sort(key=lambda point: point[0])
        middle = [ratio["median"] for _, ratio in points]
        below = [ratio["median"] - ratio["low"] if has_interval(ratio) else 0.0 for _, ratio in points]
        above = [ratio["high"] - ratio["median"] if has_interval(ratio) else 0.0 for _, ratio in points]
        handles[f"forerun, {drafter}"] = axis.errorbar(
            [k for k, _ in points], middle, yerr=[below, above], color=colour, marker=marker, linestyle="-",
            markersize=5, capsize=2.5, linewidth=1.6, elinewidth=0.9,
        )  # fmt: skip
    for place, peer in enumerate(peers):
        colour, dashes = PEER_STYLES[place % len(PEER_STYLES)]
        if peer in figures and PLAIN in figures[peer]["speedup_over"]:
            level = figures[peer]["speedup_over"][PLAIN]["median"]
            handles[f"peer: {peer}"] = axis.axhline(level, color=colour, linestyle=dashes, linewidth=1.6)
    ks = sorted({figure["k"] for figure in figures.values() if figure.get("drafter") not in (None, ADAPTIVE)})
    axis.set_xticks(ks)
    axis.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    axis.tick_params(labelsize=9, colors=INK, labelleft=True)
    return handles


def short_name(name: str) -> str:
    """A model as a legend calls it: a file without its folders and ending."""
    return Path(name).stem if name.endswith(".gguf") else name
