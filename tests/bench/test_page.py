"""The page: well formed, self-contained, escaped, and with every figure of its document."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.bench.test_cells import line
from tests.bench.test_run import run
from tests.bench.toys import PROMPTS, Scripted, draft, quick_probe, target

from forerun.bench import depth, phases
from forerun.bench.acceptance import beside_quoted, run_acceptance
from forerun.bench.cells.pool import pooled
from forerun.bench.cells.run import Measuring
from forerun.bench.cells.table import COLUMNS, rows_of
from forerun.bench.cells.table import title as cell_title
from forerun.bench.depth import run_depths
from forerun.bench.page import svg
from forerun.bench.page.page import page_of, write_page
from forerun.bench.page.tables import facts, shown, table
from forerun.bench.phases import Phase, run_phases
from forerun.bench.report import remarks, table_of, title
from forerun.control.policy import FixedLength
from forerun.drafting import ModelDrafter
from forerun.llm import LLM
from forerun.sampling import SamplingParams

EVIL = "<script>alert('x')</script>&\"'"
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Checker(HTMLParser):
    """Fails on tags that do not nest; collects tags, addresses and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.append(tag)
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), f"an attribute of {tag} comes twice"
        self.addresses += [value for name, value in attributes if name in ("src", "href", "xlink:href", "srcset")]
        assert not any(name.startswith("on") for name in names)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: Any) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"{tag} ends and nothing is open"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def checked(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    return checker


def study_document() -> dict[str, Any]:
    """A document with every mode's figures at once."""
    llm, prompts = LLM(target()), [[1, 2, 3]]
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    sides = {"plain": (None, FixedLength(0)), "adaptive": (ModelDrafter(draft()), FixedLength(3))}
    steps = [Phase(name, prompts, 0.0) for name in ("one", "two", "one again")]
    return {
        "phases": run_phases(llm, sides, {"load": steps, "content": steps}, 24),
        "depth": run_depths(llm, ["lookup"], [(8, "random"), (32, "random")], 4, params, Measuring(quick_probe(), 0.0)),
        "acceptance": run_acceptance(llm, ModelDrafter(draft()), PROMPTS, 3, 24, (0.0, 1.0)),
    }


def test_a_page_of_workloads_shows_where_time_and_tokens_went() -> None:
    document = run(drafters=("model", "lookup", "adaptive"))
    page = page_of(document)
    checker = checked(page)
    text = " ".join(checker.text)
    for needed in (
        "forerun bench: toy and toy-draft", document["command"], document["commit"], document["hardware"]["cpu"],
        "Decoding over plain, of too few prompts for intervals", "Where the time of decoding went",
        "Where the tokens came from",
        "Acceptance by depth", "How long adaptive drafted: rounds by k", "t(rows)", "Memory bandwidth",
        "recovered", "bonus", "target", "verify", "Settings", "temperature",
    ):  # fmt: skip
        assert needed in text, needed
    for workload in PROMPTS:
        assert f"<h2>{workload}</h2>" in page
    assert checker.tags.count("svg") >= 2 * 5
    for name in document["workloads"]["chat"]:
        assert name in text


def test_a_page_of_workloads_says_all_that_the_text_says() -> None:
    """Every figure of the printed tables, and every line below them."""
    prompts = {"chat": [[1, 2, 3], [4, 5], [6, 7, 8]]}
    document = run([Scripted("transformers", 50.0)], prompts=prompts)
    document["probe"]["threshold"] = 12.5
    checker = checked(page_of(document))
    texts = {text.strip() for text in checker.text}
    heads, rows = table_of(document["workloads"]["chat"])
    assert set(heads) <= texts
    for cells in rows:
        assert set(cells) <= texts, cells
    assert {*remarks(document, "chat"), title(document, "chat")} <= texts
    whole = " ".join(checker.text)
    for needed in ("Decoding over plain, 95 % intervals", "reading target's weights", "3.00 GB a pass",
                   "parted at 12.5 GB/s", "Not run: assisted: no reason"):  # fmt: skip
        assert needed in whole, needed


def test_a_page_of_cells_has_the_claims() -> None:
    document = pooled([line()])
    text = " ".join(checked(page_of(document)).text)
    assert "no cell's 99 % interval lies below 0.98x plain" in text
    assert "Memory bandwidth while this was measured" in text
    assert "adaptive warm" in text
    assert "99 % intervals" in text


def test_a_page_of_cells_has_the_printed_tables() -> None:
    document = pooled([line()])
    texts = {text.strip() for text in checked(page_of(document)).text}
    for figures in document["cells"].values():
        assert {*COLUMNS, cell_title(figures)} <= texts
        for cells in rows_of(figures):
            assert {cell.strip() for cell in cells} <= {*texts, ""}, cells


def test_a_page_of_the_other_modes() -> None:
    text = " ".join(checked(page_of(study_document())).text)
    for needed in ("Steps of load and content", "Copying by depth", "Acceptance by workload and temperature",
                   "random prompts", "quoted, from", "stalls"):  # fmt: skip
        assert needed in text


def test_a_page_of_the_other_modes_has_the_printed_figures() -> None:
    document = study_document()
    texts = {text.strip() for text in checked(page_of(document)).text}
    told = [(phases.COLUMNS, phases.rows_of(sides), 2) for sides in document["phases"]["steps"].values()]
    for columns, rows, num_names in [*told, (depth.COLUMNS, depth.rows_of(document["depth"]), 3)]:
        assert len(rows) >= 6
        for cells in (columns, *rows):
            assert {", ".join(cells[:num_names]), *cells[num_names:]} <= texts, cells
    assert "load step, 24 tokens each" in texts
    row = document["acceptance"]["workloads"]["chat"]["1"]
    assert {"quoted", beside_quoted(row["acceptance_rate"], (0.7, 0.85))} <= texts


def test_nothing_is_fetched_and_nothing_runs() -> None:
    for document in (run(), pooled([line()]), study_document()):
        page = page_of(document)
        checker = checked(page)
        assert not {"script", "link", "iframe", "object", "embed", "img"} & set(checker.tags)
        assert checker.addresses == []
        assert not re.search(r"url\(|@import|https?://|//[a-z]", page)
        assert "default-src 'none'" in page


def test_what_users_name_is_escaped() -> None:
    document = json.loads(json.dumps(pooled([line()])).replace("lookup k=4", "lookup <b> k=4"))
    document["cells"] = {EVIL: document["cells"]["toy"]}
    document["command"] = f"forerun bench --target {EVIL}"
    document["settings"] = {"target": EVIL, "draft": None, EVIL: [EVIL]}
    document["not_run"] = {EVIL: EVIL}
    page = page_of(document)
    checker = checked(page)
    assert "<script" not in page
    assert "<b>" not in page
    assert "b" not in checker.tags
    assert sum(EVIL in text for text in checker.text) >= 5


def test_a_document_with_nothing_in_it_is_still_a_page(tmp_path: Path) -> None:
    path = tmp_path / "x.html"
    write_page({"workloads": {}, "interrupted": True}, path)
    checker = checked(path.read_text(encoding="utf-8"))
    assert any("Interrupted" in text for text in checker.text)


# -- plots ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]), (0, 100, [0, 20, 40, 60, 80, 100]), (0.93, 1.12, [0.95, 1.0, 1.05, 1.1]),
     (3, 3, [3]), (0, float("inf"), [0])],
)  # fmt: skip
def test_ticks_are_round_and_inside(low: float, high: float, expected: list[float]) -> None:
    assert svg.ticks(low, high) == pytest.approx(expected)


def numbers(drawn: str, attribute: str) -> list[float]:
    return [float(value) for value in re.findall(rf'\b{attribute}="([-\d.]+)"', drawn)]


def test_intervals_say_which_side_of_the_reference_they_lie_on() -> None:
    drawn = svg.intervals([("a", 1.2, 1.1, 1.3), ("b", 0.9, 0.8, 0.99), ("c", 1.0, 0.9, 1.1)], "x")
    checked(drawn)
    assert re.findall(r"dot (\w+)", drawn) == ["better", "worse", "same"]
    x = numbers(drawn, "cx")
    assert x[1] < x[2] < x[0]
    assert all(svg.LEFT <= at <= svg.WIDTH for at in x)
    assert svg.intervals([], "x") == ""


def test_stacks_fill_the_bar_and_columns_stand_in_proportion() -> None:
    drawn = svg.stacks([("row", {"a": 1.0, "b": 3.0})], ["a", "b"], "x")
    checked(drawn)
    widths = numbers(drawn, "width")
    assert widths[1] == pytest.approx(3 * widths[0], abs=0.05)
    assert sum(widths) == pytest.approx(svg.WIDTH - svg.LEFT - svg.RIGHT, abs=0.05)
    assert "25.0 %" in drawn
    columns = svg.columns({"0": 10, "4": 5}, "k")
    tall = numbers(columns, "height")
    assert tall[0] == pytest.approx(2 * tall[1], abs=0.05)
    checked(svg.columns({}, "k"))
    checked(svg.stacks([("empty", {})], ["a"], "x"))


def test_lines_stay_inside_and_space_logarithms_evenly() -> None:
    drawn = svg.lines({"a": [(512, 1), (2048, 2), (8192, 4)]}, "x", "y", log_x=True)
    checked(drawn)
    x = numbers(drawn, "cx")
    assert x[1] - x[0] == pytest.approx(x[2] - x[1], abs=0.2)
    y = numbers(drawn, "cy")
    assert y[0] > y[1] > y[2] > 0
    assert svg.lines({"a": []}, "x", "y") == ""
    checked(svg.lines({"a": [(1, 0)]}, "x", "y"))


def test_tables_label_every_cell_for_narrow_screens() -> None:
    drawn = table(("name", "speed"), [[EVIL, "1"], ["b", "2"]])
    checked(drawn)
    assert drawn.count('data-label="speed"') == 2
    assert "<script" not in drawn
    assert shown(None) == "–"
    assert shown([1.23456, True]) == "1.235, yes"
    assert "a b" in facts({"a": {"b": 1}})
