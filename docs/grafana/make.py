"""Write docs/grafana/forerun.json, the dashboard of a server's metrics: `python docs/grafana/make.py`.

Why: a dashboard as Grafana exports it is two thousand lines that nobody reads. Here a panel is its title, its unit and
its queries; tests/server/test_metrics.py checks that the file is current and names only metrics that exist.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("forerun.json")
WHERE = 'model_name=~"$model",instance=~"$instance"'
SPECULATION = "vllm:spec_decode_num_"

Query = tuple[str, str]
"""(legend, PromQL with METRIC[] for a rate and METRIC{} for a value of the models and instances that were chosen)."""
Panel = tuple[str, str, str, list[Query]]
"""(title, unit, what it says, queries)."""


def quantiles(name: str) -> list[Query]:
    """The median and the tail of a histogram."""
    return [(f"p{round(100 * q)}", f"histogram_quantile({q}, sum by (le) ({name}_bucket[]))") for q in (0.5, 0.9, 0.99)]


def ratio(above: str, below: str, group: str = "") -> str:
    """The ratio of two rates."""
    by = f"by ({group}) " if group else ""
    return f"sum {by}({above}[]) / {'ignoring (' + group + ') group_left ' if group else ''}sum ({below}[])"


SECTIONS: list[tuple[str, list[Panel]]] = [
    ("Speculation", [
        ("Tokens per pass", "short", "Tokens committed in a round (1: nothing gained): of all, of drafted ones.", [
            ("all rounds", ratio("forerun_emitted_tokens_total", "forerun_draft_length_count")),
            ("with a draft", f"1 + {ratio(f'{SPECULATION}accepted_tokens_total', f'{SPECULATION}drafts_total')}"),
        ]),
        ("Drafts accepted", "percentunit", "Accepted draft tokens of those verified.", [
            ("accepted", ratio(f"{SPECULATION}accepted_tokens_total", f"{SPECULATION}draft_tokens_total")),
        ]),
        ("Accepted by position", "percentunit", "Share of drafts whose token at this position (from 0) was accepted.", [
            ("{{position}}",
             ratio(f"{SPECULATION}accepted_tokens_per_pos_total", f"{SPECULATION}drafts_total", "position")),
        ]),
        ("Chosen k", "short", "Draft tokens of rounds: the mean, and the share of rounds that drafted nothing.", [
            ("mean k", ratio("forerun_draft_length_sum", "forerun_draft_length_count")),
            ("share of k = 0", 'sum (forerun_draft_length_bucket{le="0.0"}[]) / sum (forerun_draft_length_count[])'),
        ]),
        ("Rounds by source", "ops", "Who drafted; none: rounds without a draft.", [
            ("{{source}}", "sum by (source) (forerun_rounds_total[])"),
        ]),
        ("Actual over predicted", "short", "What passes took and brought over what was expected (1: as expected).", [
            ("time", ratio("forerun_actual_seconds_total", "forerun_predicted_seconds_total")),
            ("tokens", ratio("forerun_actual_tokens_total", "forerun_predicted_tokens_total")),
            ("time of a pass, p90", "histogram_quantile(0.9, sum by (le) (forerun_actual_to_predicted_bucket[]))"),
        ]),
    ]),
    ("Latency", [
        ("Time to first token", "s", "From arrival.", quantiles("forerun_time_to_first_token_seconds")),
        ("Time per output token", "s", "Of each text, after its first round.",
         quantiles("forerun_time_per_output_token_seconds")),
        ("Whole request", "s", "From arrival to the end.", quantiles("forerun_request_seconds")),
        ("Waiting", "s", "From arrival to the first pass.", quantiles("forerun_queue_seconds")),
    ]),
    ("Load", [
        ("Tokens", "ops", "Per second: written, in prompts, and of those not read again.", [
            ("{{kind}}", "sum by (kind) (forerun_tokens_total[])"),
        ]),
        ("Requests", "short", "Sequences that run and wait, requests held, and the most there may be of each.", [
            ("running", "sum (forerun_sequences_running{})"), ("waiting", "sum (forerun_sequences_waiting{})"),
            ("places", "sum (forerun_sequences_limit{})"), ("held", "sum (forerun_requests_held{})"),
            ("held at most", "sum (forerun_requests_limit{})"),
        ]),
        ("Preemptions", "ops", "Sequences that gave way for want of memory or places: freed, and read again later.", [
            ("preempted", "sum (forerun_preemptions_total[])"),
        ]),
        ("Ended", "ops", "Requests by what ended them.", [
            ("{{outcome}}", "sum by (outcome) (forerun_requests_total[])"),
        ]),
        ("HTTP responses", "ops", "By route and status; 429: refused for want of room.", [
            ("{{route}} {{status}}", "sum by (route, status) (forerun_http_responses_total[])"),
        ]),
        ("Passes", "short", "Passes a second, and sequences and rows of each.", [
            ("passes/s", "sum (forerun_passes_total[])"),
            ("sequences", ratio("forerun_batch_sequences_sum", "forerun_batch_sequences_count")),
            ("rows", ratio("forerun_rows_total", "forerun_passes_total")),
        ]),
        ("Where time goes", "percentunit", "Busy share of the wall clock, by part of a round.", [
            ("{{part}}", "sum by (part) (forerun_round_seconds_total[])"),
        ]),
        ("A pass", "s", "Drafting included.", quantiles("forerun_pass_seconds")),
    ]),
    ("Memory", [
        ("Tokens in caches", "short", "Of running sequences, and of texts that have ended.", [
            ("running", "sum (forerun_cached_tokens{})"), ("kept", "sum (forerun_kept_tokens{})"),
        ]),
        ("Process", "bytes", "Resident memory.", [("{{instance}}", "forerun_memory_bytes{}")]),
    ]),
]  # fmt: skip


def dashboard() -> dict[str, Any]:
    """The document that Grafana imports."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, inside in SECTIONS:
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "panels": [],
             "gridPos": {"x": 0, "y": top, "w": 24, "h": 1}}
        )  # fmt: skip
        for place, panel in enumerate(inside):
            panels.append(_panel(len(panels) + 1, panel, 8 * (place % 3), top + 1 + 8 * (place // 3)))
        top += 1 + 8 * ((len(inside) + 2) // 3)
    return {
        "title": "forerun", "uid": "forerun", "schemaVersion": 39, "version": 1, "editable": True, "refresh": "10s",
        "tags": ["llm", "speculative decoding"], "time": {"from": "now-30m", "to": "now"}, "timezone": "browser",
        "templating": {"list": [
            {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"},
            _variable("model", "label_values(forerun_info, model_name)"),
            _variable("instance", 'label_values(forerun_info{model_name=~"$model"}, instance)'),
        ]},
        "panels": panels,
    }  # fmt: skip


def _panel(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    title, unit, about, queries = panel
    limits = {"min": 0, "max": 1} if unit == "percentunit" and title != "Where time goes" else {"min": 0}
    return {
        "id": number, "type": "timeseries", "title": title, "description": about,
        "datasource": {"type": "prometheus", "uid": "$source"}, "gridPos": {"x": x, "y": y, "w": 8, "h": 8},
        "fieldConfig": {
            "defaults": {"unit": unit, **limits, "custom": {"lineWidth": 2, "fillOpacity": 8}}, "overrides": [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": "ABCDE"[place], "legendFormat": legend, "expr": _expression(query)}
            for place, (legend, query) in enumerate(queries)
        ],
    }  # fmt: skip


def _expression(query: str) -> str:
    """METRIC[] and METRIC{LABEL}[] as rates, METRIC{} as a value, of what was chosen."""
    words = []
    for word in query.split(" "):
        name, brackets, rest = word.partition("[]")
        if brackets:
            start = len(name) - len(name.lstrip("("))
            metric, _, selector = name[start:].removesuffix("}").partition("{")
            where = f"{selector},{WHERE}" if selector else WHERE
            word = f"{'(' * start}rate({metric}{{{where}}}[$__rate_interval]){rest}"
        words.append(word.replace("{}", f"{{{WHERE}}}"))
    return " ".join(words)


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name, "type": "query", "datasource": {"type": "prometheus", "uid": "$source"}, "refresh": 2,
        "query": {"query": query, "refId": name}, "includeAll": True, "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def text() -> str:
    """The file."""
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
