"""`--trace`: one line of JSON for every pass, which adds up to what the requests' statistics say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.control.worlds import policy, world
from tests.verification.laws import finish
from tests.verification.test_level4_adaptive import adaptive
from tests.verification.test_level4_invariance import DRAFTERS, PROMPTS, target

from forerun.control import FixedLength
from forerun.control.simulation import simulate
from forerun.control.trace import TracedPolicy
from forerun.engine import Engine, Scheduler
from forerun.sampling import SamplingParams


def traced(drafter: str, inner: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    lines: list[str] = []
    engine = Engine(target(), DRAFTERS[drafter](), TracedPolicy(inner, lines.append), scheduler=Scheduler(3))
    made = [engine.add(prompt, SamplingParams(max_tokens=12, seed=2)) for prompt in PROMPTS]
    finish(engine)
    assert all(line.endswith("\n") and line.count("\n") == 1 for line in lines)
    return [json.loads(line) for line in lines], made


@pytest.mark.parametrize("drafter", ["none", "model", "suffix", "stack"])
@pytest.mark.parametrize("inner", ["adaptive", "fixed"])
def test_lines_add_up_to_the_statistics(drafter: str, inner: str) -> None:
    lines, made = traced(drafter, adaptive() if inner == "adaptive" else FixedLength(3))
    assert [line["pass"] for line in lines] == list(range(len(lines)))
    for sequence in made:
        own = [one for line in lines for one in line["sequences"] if one["id"] == sequence.sequence_id]
        for name in ("proposed", "accepted", "emitted"):
            assert sum(one[name] for one in own) == getattr(sequence.statistics, f"num_{name}")
        assert own[0]["length"] == sequence.prompt_length
        assert all(one["proposed"] <= one["k"] for one in own)
    for line in lines:
        found = line["actual"]
        parts = [found[f"{part}_ms"] for part in ("draft", "target", "verify", "host")]
        assert found["milliseconds"] == pytest.approx(sum(parts))
        assert found["num_tokens"] == sum(one["emitted"] for one in line["sequences"])
        assert (line["predicted"] is None) is (inner == "fixed")
        for one in line["sequences"]:
            assert one["source"] is None or one["source"] in one["offered"]


def test_predictions_come_true_on_average() -> None:
    """In a steady world: milliseconds within 5 % and tokens within 10 %, over all passes behind the first thirty."""
    cell = world(0.8, 0.05)
    lines: list[str] = []

    class Metered(TracedPolicy):
        def meter(self, *given: Any) -> None:
            self.policy.meter(*given)  # type: ignore[attr-defined]

    simulate(Metered(policy(cell), lines.append), cell, 400, 1)
    found = [json.loads(line) for line in lines[30:]]
    best = [line for line in found if line["predicted"]["purpose"] == "best"]
    assert len(best) >= 0.97 * len(found)
    for name, within in (("milliseconds", 0.05), ("num_tokens", 0.1)):
        predicted, actual = (sum(line[part][name] for line in best) for part in ("predicted", "actual"))
        assert predicted == pytest.approx(actual, rel=within)


def test_a_traced_policy_plans_as_the_policy_does() -> None:
    cell = world(0.7)
    lines: list[str] = []
    traced_one = TracedPolicy(FixedLength(2), lines.append)
    assert "FixedLength(2)" in repr(traced_one)
    assert simulate(traced_one, cell, 10, 1) == simulate(FixedLength(2), cell, 10, 1)
    assert len(lines) == 10
