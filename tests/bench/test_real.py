"""One small bench on real weights: the parts fit together outside the toys."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forerun.cli import app

pytestmark = pytest.mark.slow
MODEL = "smollm2-135m"


def test_a_real_model_its_lookup_and_every_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["forerun", "bench"])
    plot = tmp_path / "bench.png"
    arguments = [
        "bench", "chat", "--target", MODEL, "--draft", MODEL, "--k", "2", "--prompts", "1", "--max-tokens", "12",
        "--dtype", "float32", "--peers", "transformers,assisted,prompt-lookup", "--plot", str(plot), "--mirror",
    ]  # fmt: skip
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout.rstrip("\n").split("\n")[-1])
    figures = document["workloads"]["chat"]
    assert document["not_run"] == {}
    assert list(figures) == ["plain", "model k=2", "lookup k=2", "transformers", "assisted", "prompt-lookup"]
    # Float32 logits of this text are far apart, so every engine writes the same twelve tokens.
    assert {name: figure["text"]["equal_to_plain"] for name, figure in figures.items()} == dict.fromkeys(figures, 1)
    assert figures["model k=2"]["acceptance_rate"] == 1.0, "a model drafting for itself is always right"
    assert figures["assisted"]["tokens_per_pass"] >= 1.0
    assert len(figures["assisted"]["tried"]) > 1
    assert document["floor"]["target"]["bytes"] == pytest.approx(134_515_008 * 4, rel=0.001)
    assert plot.read_bytes().startswith(b"\x89PNG")
