"""Curves on disk: measured once for what they depend on, and never trusted when damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forerun.runtime.kept_costs import kept_curve
from forerun.runtime.select import Choice
from forerun.types import CostCurve

CURVE = CostCurve(128, {1: 30.0, 2: 31.5, 16: 52.25})


class Measuring:
    """Counts how often it was asked."""

    def __init__(self, curve: CostCurve = CURVE) -> None:
        self.curve, self.num_calls = curve, 0

    def __call__(self) -> CostCurve:
        self.num_calls += 1
        return self.curve


@pytest.fixture(autouse=True)
def kept_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORERUN_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "costs"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    return path


def choice(path: Path, runtime: str = "native", **settings: Any) -> Choice:
    return Choice(path, "gguf" if path.suffix else "transformers", runtime, settings)


def test_a_curve_is_measured_once(model: Path, kept_in: Path) -> None:
    measure = Measuring()
    assert kept_curve(choice(model), measure) == CURVE
    assert kept_curve(choice(model), measure) == CURVE
    assert measure.num_calls == 1
    (file,) = kept_in.iterdir()  # nothing half written is left
    assert json.loads(file.read_text())["model"] == "model.gguf"


def changed(model: Path, how: str) -> Choice:
    if how == "weights":
        model.write_bytes(b"other weights")
    elif how == "runtime":
        return choice(model, "torch")
    elif how == "settings":
        return choice(model, quantize="q4")
    elif how == "rows":
        return choice(model, head_ids=np.arange(50_000))
    elif how == "file":
        other = model.with_name("other.gguf")
        other.write_bytes(b"weights")
        return choice(other)
    return choice(model)


@pytest.mark.parametrize("how", ["weights", "runtime", "settings", "rows", "file"])
def test_whatever_may_change_the_curve_has_one_of_its_own(model: Path, how: str) -> None:
    measure = Measuring()
    kept_curve(choice(model), measure)
    kept_curve(changed(model, how), measure)
    assert measure.num_calls == 2


def test_arrays_are_told_apart_beyond_what_is_printed_of_them(model: Path) -> None:
    """numpy prints a thousand ids by the first and the last three."""
    ids = np.arange(5000)
    measure = Measuring()
    kept_curve(choice(model, head_ids=ids), measure)
    ids = ids.copy()
    ids[2500] = 0
    kept_curve(choice(model, head_ids=ids), measure)
    assert measure.num_calls == 2


def test_a_file_in_a_directory_counts(tmp_path: Path) -> None:
    folder = tmp_path / "directory"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"1")
    measure = Measuring()
    kept_curve(choice(folder, "torch"), measure)
    (folder / "model.safetensors").write_bytes(b"22")
    kept_curve(choice(folder, "torch"), measure)
    assert measure.num_calls == 2


DAMAGED = {
    "empty": "",
    "not json": "{",
    "not an object": "[1, 2]",
    "no curve": json.dumps({"context": 128}),
    "empty curve": json.dumps({"context": 128, "milliseconds": {}}),
    "no numbers": json.dumps({"context": 128, "milliseconds": {"1": "fast"}}),
    "no rows": json.dumps({"context": 128, "milliseconds": {"0": 3.0}}),
    "negative": json.dumps({"context": 128, "milliseconds": {"1": -3.0}}),
    "not a number": '{"context": 128, "milliseconds": {"1": NaN}}',
    "infinite": '{"context": 128, "milliseconds": {"1": Infinity}}',
    "nested": "[" * 100_000,
    "too large": '{"context": 1e999, "milliseconds": {"1": 1.0}}',
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_is_measured_again_and_replaced(model: Path, kept_in: Path, text: str) -> None:
    measure = Measuring()
    kept_curve(choice(model), measure)
    (file,) = kept_in.iterdir()
    file.write_text(text)
    assert kept_curve(choice(model), measure) == CURVE
    assert kept_curve(choice(model), measure) == CURVE
    assert measure.num_calls == 2
    file.write_bytes(b"\xff\xfe\x00")
    assert kept_curve(choice(model), measure) == CURVE


def test_a_place_that_cannot_be_written_to_costs_a_measurement(model: Path, kept_in: Path) -> None:
    kept_in.parent.mkdir()
    kept_in.write_text("a file where a folder is to be")
    measure = Measuring()
    for _ in range(2):
        assert kept_curve(choice(model), measure) == CURVE
    assert measure.num_calls == 2


def test_a_measurement_that_fails_keeps_nothing(model: Path, kept_in: Path) -> None:
    def failing() -> CostCurve:
        raise RuntimeError("no pass")

    with pytest.raises(RuntimeError, match="no pass"):
        kept_curve(choice(model), failing)
    assert not kept_in.exists()
