"""Plans of real weights: structure and arithmetic, never how long anything took."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from forerun.cli import app

pytestmark = pytest.mark.slow


@pytest.mark.thorough("1.5b")
@pytest.mark.parametrize(
    "models",
    [("smollm2-135m",), ("smollm2-135m", "smollm2-135m"), ("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b")],
    ids=lambda models: "+".join(models),
)
def test_a_plan_of_real_weights(models: tuple[str, ...]) -> None:
    args = [
        *models,
        "--k",
        "0-2",
        "--max-tokens",
        "12",
        "--num-prompts",
        "1",
        "--workload",
        "json",
        "--mirror",
        "--json",
    ]
    result = CliRunner().invoke(app, ["plan", *args])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    names = [*models[1:], "lookup", "suffix"]
    assert list(found["predicted"]) == names
    target = found["target_cost_ms"]
    for name in names:
        host = found["host_ms"][name]
        for k, one in found["predicted"][name].items():
            real = found["measured"][name][k]
            assert one["tokens_per_s"] == pytest.approx(1e3 * one["tokens_per_pass"] / one["round_ms"])
            assert real["tokens_per_s"] == pytest.approx(1e3 * real["tokens_per_pass"] / real["round_ms"])
            assert 1.0 <= real["tokens_per_pass"] <= int(k) + 1
        assert found["predicted"][name]["0"]["round_ms"] == pytest.approx(target["1"] + host["plain"])
    if models[1:] == models[:1]:
        assert found["acceptance_by_depth"][models[1]] == [1.0, 1.0], "a model drafting for itself is always right"
    memory = found["memory"]
    assert memory["need_bytes"][models[0]]["weights"] > 50e6
    assert memory["has"]["total_gb"] > 0
    assert found["roofline"]["models"][models[0]]["ridge_rows"] > 0
