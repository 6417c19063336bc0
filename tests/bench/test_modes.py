"""The modes of `forerun bench`: what each refuses, prints and writes, on toys."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.bench.test_cli import ModuloTokenizer, invoke, refusal
from tests.bench.test_page import checked
from tests.bench.toys import steady_probe

from forerun import loading
from forerun.bench import models, modes, workloads
from forerun.bench.cells import definitions
from forerun.bench.cells.definitions import Cell
from forerun.drafting import ModelDrafter
from forerun.errors import InputError
from forerun.llm import LLM
from forerun.models import pull
from forerun.models.store import ModelFiles
from forerun.runtime.toy import ToyModel

TABLE = np.random.default_rng(5).normal(0.0, 3.0, (11, 11))
SMALL = {
    cell.name: cell
    for cell in (Cell("one", "chat", 0.0, 1, 60), Cell("wrong", "random", 1.2, 2, 40, "liar"))
}  # fmt: skip


class LongTokenizer(ModuloTokenizer):
    """A token for every tenth byte."""

    def encode(self, text: str) -> list[int]:
        return [byte % 10 for byte in text.encode()[::10]]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []

    def model(seed: int) -> ToyModel:
        noise = np.random.default_rng(seed).normal(0.0, 0.1, TABLE.shape)
        return ToyModel.from_table(TABLE + noise, context_length=4000)

    def load(name: str, **given: Any) -> LLM:
        calls.append({"target": name, **given})
        drafter = ModelDrafter(model(2)) if given["draft"] is not None else None
        return LLM(model(1), LongTokenizer(), drafter)  # type: ignore[arg-type]

    monkeypatch.setattr(loading, "load", load)
    monkeypatch.setattr(pull, "resolve", lambda name, **given: ModelFiles(name, Path(name), "gguf", "local", None))
    monkeypatch.setattr(models, "bytes_per_pass", lambda *given: 1_000_000)
    monkeypatch.setattr(modes, "BandwidthProbe", steady_probe)
    monkeypatch.setattr(definitions, "CELLS", SMALL)
    return calls


def document(*arguments: str) -> tuple[dict[str, Any], str]:
    result = invoke("--target", "toy", *arguments)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout.rstrip("\n").split("\n")[-1])
    for name in ("command", "commit", "hardware", "versions", "settings", "probe", "interrupted"):
        assert name in found
    return found, result.stdout


def test_cells_from_the_command_line_to_a_file_and_a_page(loaded: list[dict[str, Any]], tmp_path: Path) -> None:
    lines, page, output = tmp_path / "cells.jsonl", tmp_path / "page.html", tmp_path / "x.json"
    arguments = ("--cells", "all", "--draft", "d", "--minutes", "0", "--append", str(lines), "--max-tokens", "24")
    found, printed = document(*arguments, "--report", str(page), "--output", str(output), "--prompts", "2")
    assert list(found["cells"]) == ["one", "wrong"]
    assert len(lines.read_text(encoding="utf-8").splitlines()) == 2
    assert "|adaptive warm" in printed
    assert "no cell's 99 % interval lies below" in printed
    one = found["cells"]["one"]
    assert {"plain", "adaptive cold", "adaptive warm", "model k=5", "lookup k=12"} <= set(one["contenders"])
    assert one["contenders"]["plain"]["blocks"] >= 1
    assert one["adaptive"]["adaptive cold"]["never_slower"]["decoding"]["ratio"] is not None
    assert found["cells"]["wrong"]["contenders"]["model k=3"]["acceptance_rate"] < 0.3, "a draft that is sure and wrong"
    assert one["contenders"]["model k=3"]["acceptance_rate"] > 0.7
    assert set(found["cost_curve"]) == {"target", "model"}
    assert json.loads(output.read_text(encoding="utf-8")) == found
    text = " ".join(checked(page.read_text(encoding="utf-8")).text)
    assert "Never slower" in text

    pooled, _ = document(*arguments)
    assert pooled["cells"]["one"]["runs"] == 2
    assert pooled["cells"]["one"]["blocks"] > one["blocks"]


def test_cells_without_a_draft_model_leave_adversarial_ones_out(loaded: list[dict[str, Any]]) -> None:
    found, _ = document("--cells", "all", "--minutes", "0", "--max-tokens", "24")
    assert list(found["cells"]) == ["one"]
    assert found["not_run"] == ["wrong"]
    assert not any(name.startswith("model") for name in found["cells"]["one"]["contenders"])


def test_phases_from_the_command_line(loaded: list[dict[str, Any]], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    found, printed = document("--phases", "--draft", "d", "--max-tokens", "24", "--report", str(page))
    steps = found["phases"]["steps"]
    assert [phase["phase"] for phase in steps["load"]["adaptive"]] == [
        "1: 1 at once", "2: 8 at once", "3: 1 at once", "4: 12 at once",
    ]  # fmt: skip
    assert [phase["phase"] for phase in steps["content"]["plain"]] == ["copy", "story", "copy again"]
    assert "load step, 24 tokens each" in printed
    assert "stalls" in page.read_text(encoding="utf-8")


def test_depths_from_the_command_line(loaded: list[dict[str, Any]]) -> None:
    found, printed = document(
        "--depth", "16,64", "--pattern", "periodic", "--drafter", "lookup", "--minutes", "0", "--max-tokens", "24"
    )
    assert list(found["depth"]["depths"]) == ["16", "64"]
    assert found["depth"]["k"] == 8
    assert "lookup k=8" in printed
    assert loaded[0]["draft"] is None


def test_acceptance_from_the_command_line(loaded: list[dict[str, Any]]) -> None:
    found, printed = document(
        "chat", "random", "--acceptance", "--draft", "d", "--prompts", "2", "--max-tokens", "24", "--k", "3"
    )
    assert list(found["acceptance"]["workloads"]) == ["chat", "random"]
    assert list(found["acceptance"]["workloads"]["chat"]) == ["0", "0.3", "0.7", "1", "1.2"]
    assert found["acceptance"]["k"] == 3
    assert "usually quoted" in printed


def test_adaptive_drafting_beside_fixed_drafters_on_workloads(loaded: list[dict[str, Any]], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    found, printed = document(
        "chat", "--draft", "d", "--drafters", "adaptive,lookup", "--k", "2", "--prompts", "1", "--max-tokens", "24",
        "--report", str(page),
    )  # fmt: skip
    assert list(found["workloads"]["chat"]) == ["plain", "adaptive", "lookup k=2"]
    assert sum(found["workloads"]["chat"]["adaptive"]["origins"].values()) == 23
    assert found["probe"]["series"][0][0] == 0
    assert "\nadaptive. decoding" in printed
    assert loaded[0]["draft"] == "d", "the adaptive policy may draft with it"
    assert "How long adaptive drafted" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--cells", "nothing"), "cells: 'nothing' is not known"),
        (("--cells", "one", "--phases"), "phases: cannot be measured beside cells"),
        (("--cells", "one", "--temperature", "1"), "temperature: is not used with --cells"),
        (("chat", "--cells", "one"), "^WORKLOAD is not used with --cells"),
        (("--server", "forerun"), "^server: is not used for workloads"),
        (
            ("--phases", "--draft", "d", "--draft-vocabulary", "9", "--draft-min-confidence", "0.5"),
            "^draft_min_confidence: is not used with --phases",
        ),
        (("--cells", "one", "--k", "3"), "k: is not used with --cells"),
        (("--cells", "one", "--plot", "x.png"), "plot: is not used with --cells"),
        (("--cells", "one", "--peers", "transformers"), "peers: is not used with --cells"),
        (("--cells", "one", "--minutes", "-1"), "minutes"),
        (("--cells", "one", "--max-tokens", "8"), "max_tokens: 8 are too few"),
        (("--cells", "one", "--drafters", "lookup", "--draft", "d"), "which draft model"),
        (("--cells", "one", "--drafters", "model"), "needs a draft model"),
        (("--cells", "one", "--append", "/no/such/place/x.jsonl"), "append"),
        (("chat", "--append", "x.jsonl"), "append: is not used for workloads"),
        (("chat", "--minutes", "3"), "minutes: is not used for workloads"),
        (("chat", "--report", "/no/such/place/x.html"), "report"),
        (("--phases", "--minutes", "3"), "minutes: is not used with --phases"),
        (("--depth", "512,x"), "depth: '512,x'"),
        (("--depth", "512", "--pattern", "stripes"), "pattern: 'stripes'"),
        (("--depth", "512", "--drafters", "model"), "drafters: 'model' is not known"),
        (("--depth", "512", "--drafters", "lookup,adaptive"), "drafters: 'adaptive' is not known"),
        (("--depth", "512", "--drafters", ","), "drafters: ',' is not known"),
        (("--depth", "512", "--draft", "d"), "draft: is not used with --depth"),
        (("--cells", "wrong"), "cells: wrong: nothing drafts there without a draft model"),
        (("--depth", "512", "--k", "2,4"), "k: '2,4' are several, and --depth has one"),
        (("--acceptance", "--draft", "d", "--k", "2,4"), "k: '2,4' are several"),
        (("--acceptance",), "acceptance: needs a draft model"),
        (("--acceptance", "--draft", "d", "--rounds", "2"), "rounds: is not used with --acceptance"),
    ],
)
def test_what_a_mode_does_not_use_is_refused_before_anything_is_loaded(
    loaded: list[dict[str, Any]], arguments: tuple[str, ...], message: str
) -> None:
    error = refusal("--target", "toy", *arguments)
    assert isinstance(error, InputError)
    assert re.search(message, str(error)), str(error)
    assert loaded == []


def test_an_interrupted_cell_is_kept(
    loaded: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from forerun.bench.cells import run

    calls, real, lines = [0], run.run_block, tmp_path / "x.jsonl"

    def interrupting(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == 25:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(run, "run_block", interrupting)
    result = invoke("--target", "toy", "--cells", "all", "--minutes", "9", "--append", str(lines), "--draft", "d")
    assert result.exit_code == 130
    found = json.loads(result.stdout.rstrip("\n").split("\n")[-1])
    assert found["interrupted"]
    assert list(found["cells"]) == ["one"], "the other cell is not begun"
    assert len(lines.read_text(encoding="utf-8").splitlines()) == 1


def test_the_new_workloads() -> None:
    assert len(workloads.load_workload("creative")) == 12
    tasks = workloads.load_workload("random")
    assert len({task.prompt for task in tasks}) == 12  # type: ignore[comparison-overlap]
