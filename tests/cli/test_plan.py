"""`forerun plan`: costs, predictions, the verdict on vocabularies, and what it says is not measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Invoke
from tests.models.tiny_gguf import write_tiny_gguf
from typer.testing import CliRunner

from forerun.cli import app
from forerun.errors import VocabularyMismatchError
from forerun.planning import ACCEPTANCES, LENGTHS
from forerun.runtime import cost
from forerun.runtime.cost import ROWS

KEYS = ["target_cost_ms", "draft_cost_ms", "acceptance_by_depth", "predicted", "measured", "best"]
"""The document of the command grammar in docs/design.md; what else it holds comes after these."""


@pytest.fixture(autouse=True)
def small_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bandwidth is read from a megabyte for a moment, and costs are measured in few rounds."""
    monkeypatch.setattr("forerun.bench.probe.BandwidthProbe.__init__.__defaults__", (1, 1 << 20, 0.001))
    monkeypatch.setitem(cost.measure_cost.__kwdefaults__, "budget_s", 0.01)


def document(invoke: Invoke, *args: str) -> Any:
    result = invoke("plan", *args, "--json")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)


def test_the_document_is_that_of_the_grammar(invoke: Invoke) -> None:
    found = document(invoke, "toy", "toy-draft", "--context", "20")
    assert list(found)[: len(KEYS)] == KEYS
    assert list(found["target_cost_ms"]) == [str(rows) for rows in ROWS]
    assert list(found["draft_cost_ms"]) == ["toy-draft"]
    assert list(found["draft_cost_ms"]["toy-draft"]) == [str(rows) for rows in ROWS]
    assert all(milliseconds > 0 for milliseconds in found["target_cost_ms"].values())
    assert (found["acceptance_by_depth"], found["measured"], found["best"]) == (None, None, None)
    assert found["vocabulary"] == {"toy-draft": "same"}
    assert found["context"] == {"toy": 20, "toy-draft": 20}
    assert found["runtime"] == {"toy": "native", "toy-draft": "native"}
    assert all(gb_per_s > 0 for gb_per_s in found["bandwidth_gb_per_s"].values())


def test_predictions_follow_from_the_curves(invoke: Invoke) -> None:
    found = document(invoke, "toy", "toy-draft", "--context", "20")
    target, draft = found["target_cost_ms"], found["draft_cost_ms"]["toy-draft"]
    assert list(found["predicted"]) == ["lookup", "toy-draft"]
    for name, step_ms in (("lookup", 0.0), ("toy-draft", draft["1"])):
        assert list(found["predicted"][name]) == [str(k) for k in LENGTHS]
        one = found["predicted"][name]["3"]
        assert one["round_ms"] == pytest.approx(target["4"] + 3 * step_ms)
        assert list(one["speedup"]) == [str(acceptance) for acceptance in ACCEPTANCES]
        assert one["speedup"]["0.5"] == pytest.approx(1.875 * target["1"] / one["round_ms"])
        assert one["break_even"] is None or 0.0 <= one["break_even"] <= 1.0


def test_without_a_draft(invoke: Invoke) -> None:
    found = document(invoke, "toy")
    assert (found["draft_cost_ms"], found["vocabulary"], list(found["predicted"])) == ({}, {}, ["lookup"])


def test_several_drafts_and_the_target_itself(invoke: Invoke) -> None:
    found = document(invoke, "toy", "toy-draft", "toy", "toy-small", "toy-draft", "--context", "30")
    assert list(found["draft_cost_ms"]) == ["toy-draft", "toy", "toy-small"]
    assert found["context"]["toy-small"] == 8  # of 24 tokens 16 are the largest pass


def test_the_text_names_what_it_measured_and_what_it_did_not(invoke: Invoke) -> None:
    result = invoke("plan", "toy", "toy-draft", "--context", "20")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["rows", *(str(rows) for rows in ROWS)] in lines
    assert ["k", "breaks", "even", "at", *(f"{acceptance:g}" for acceptance in ACCEPTANCES)] in lines
    assert "vocabulary of toy-draft: the same as the target" in result.stdout
    assert "toy on the native runtime, after 20 tokens; memory gave" in result.stdout
    assert "not measured yet: acceptance_by_depth, measured, best" in result.stderr
    help_text = " ".join(invoke("plan", "--help").stdout.split())
    assert "not measured here yet" in help_text


def test_a_draft_of_another_vocabulary_is_named_and_left_out(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are measured all the same; no weights of the odd one are read."""
    fact = "target and draft differ: id 3 is 'c' in the target and 'd' in the draft"

    def require(target: Any, draft: Any) -> None:
        if not draft.has_template:  # toy-raw
            raise VocabularyMismatchError(fact, "the target has 257 tokens and the draft 257", "choose another draft")

    monkeypatch.setattr(sys.modules["forerun.models.vocabulary"], "require_same_vocabulary", require)
    found = document(invoke, "toy", "toy-raw", "toy-draft")
    assert found["vocabulary"]["toy-draft"] == "same"
    assert found["vocabulary"]["toy-raw"].startswith(fact)
    assert list(found["draft_cost_ms"]) == ["toy-draft"]
    assert list(found["predicted"]) == ["lookup", "toy-draft"]
    text = invoke("plan", "toy", "toy-raw").stdout
    assert f"vocabulary of toy-raw: {fact}" in text
    assert "speed-up by toy-raw" not in text


@pytest.mark.parametrize(
    "args, code, message",
    [
        (("toy", "--context", "0"), 2, "--context: 0 is not allowed"),
        (("toy", "toy-new"), 3, "the architecture 'mamba' is not served"),
        (("toy-new",), 3, "the architecture 'mamba' is not served"),
        (("no-such-model",), 3, "no-such-model"),
        (("toy", "no-such-model"), 3, "no-such-model"),
        (("toy", "--runtime", "gpu"), 2, "--runtime: 'gpu' is not allowed"),
        (("toy", "toy-draft", "--draft-runtime", "gpu"), 2, "--draft-runtime: 'gpu' is not allowed"),
        (("toy", "toy-draft", "--draft-vocabulary", "0"), 2, "--draft-vocabulary: 0 is not allowed"),
        (("toy", "toy-foreign", "--draft-requantise"), 2, "--draft-requantise: needs the native runtime"),
        ((), 2, "TARGET"),
    ],
)
def test_what_is_refused(invoke: Invoke, args: tuple[str, ...], code: int, message: str) -> None:
    result = invoke("plan", *args)
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr


def test_nothing_is_measured_before_everything_is_checked(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any, **settings: Any) -> None:
        raise AssertionError("a model was measured")

    monkeypatch.setattr(cost, "measure_cost", never)
    assert invoke("plan", "toy", "toy-new", "--context", "5").exit_code == 3


def test_files_of_tiny_models(tmp_path: Path) -> None:
    """Real files: a draft padded otherwise is the same vocabulary, one with two tokens swapped is not."""
    target = write_tiny_gguf(tmp_path / "target.gguf", seed=3, context_length=64)
    padded = write_tiny_gguf(tmp_path / "padded.gguf", seed=3, padding=64, context_length=64)
    odd = write_tiny_gguf(tmp_path / "odd.gguf", swap=[(310, 300)], context_length=64)
    result = CliRunner().invoke(app, ["plan", str(target), str(padded), str(odd), "--json"])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["vocabulary"][str(padded)] == "same"
    assert "id 300 is" in found["vocabulary"][str(odd)]
    assert "in the target and" in found["vocabulary"][str(odd)]
    assert list(found["draft_cost_ms"]) == [str(padded)]
