"""Figures from synthetic timings, whose right answers are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bench.toys import Scripted, sample, session_of, target

from forerun.bench.agreement import first_difference, row_after
from forerun.bench.probe import ProbeSummary
from forerun.bench.rounds import Measurement, Session
from forerun.bench.summary import PLAIN, best_of, median_interval, paired_ratio, summarise
from forerun.bench.variants import combined, since
from forerun.engine.statistics import Statistics
from forerun.types import Round

ONE_REGIME = ProbeSummary(30.0, 30.0, 30.0, None)


def described(session: Session, *variants: Scripted) -> Session:
    session.described = {("chat", variant.name): variant.describe() for variant in variants}
    return session


def test_decoding_excludes_the_first_tokens() -> None:
    one = replace(sample(20.0, num_tokens=11, first_s=5.0), num_first=3)
    assert one.num_decoded == 8
    assert one.ms_per_token == pytest.approx(1e3 * 0.2 / 8)
    assert one.end_to_end_tokens_per_s == pytest.approx(11 / 5.2)


def test_a_ratio_is_paired_by_prompt_and_round() -> None:
    # The machine is three times slower in the second round: pairs cancel that, medians of each side would not.
    session = session_of({PLAIN: [[20.0, 60.0], [40.0, 120.0]], "peer": [[10.0, 30.0], [20.0, 60.0]]})
    ratio = paired_ratio(session.of("chat", PLAIN), session.of("chat", "peer"))
    assert ratio == {"median": 2.0, "low": 2.0, "high": 2.0, "prompts": 2, "pairs": 4}


def test_rounds_without_a_partner_do_not_count() -> None:
    session = session_of({PLAIN: [[20.0, 20.0]], "peer": [[10.0]]})
    ratio = paired_ratio(session.of("chat", PLAIN), session.of("chat", "peer"))
    assert ratio is not None
    assert ratio["pairs"] == 1
    assert paired_ratio([], session.of("chat", "peer")) is None


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=30))
def test_the_interval_holds_the_median_and_stays_within_the_values(values: list[float]) -> None:
    median, low, high = median_interval(values)
    assert min(values) - 1e-9 <= low <= median + 1e-9
    assert median - 1e-9 <= high <= max(values) + 1e-9
    assert median == pytest.approx(float(np.median(values)))


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    draws = np.random.default_rng(0).lognormal(0.0, 0.3, (300, 12))
    covered = sum(low <= 1.0 <= high for _, low, high in (median_interval(list(row)) for row in draws))
    assert 0.88 <= covered / 300 <= 1.0


def test_more_prompts_narrow_the_interval() -> None:
    values = np.random.default_rng(1).lognormal(0.0, 0.3, 200)
    _, low_few, high_few = median_interval(list(values[:8]))
    _, low_many, high_many = median_interval(list(values))
    assert high_many - low_many < high_few - low_few


def test_an_empty_median_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        median_interval([])


def test_figures_of_a_peer_and_of_plain() -> None:
    plain, peer = Scripted(PLAIN, is_peer=False), Scripted("peer")
    session = described(session_of({PLAIN: [[20.0], [30.0]], "peer": [[10.0], [10.0]]}), plain, peer)
    figures = summarise(session, [plain, peer], "chat", ONE_REGIME, {})
    assert figures["peer"]["ms_per_token"] == pytest.approx(10.0)
    assert figures["peer"]["tokens_per_s"] == pytest.approx(100.0)
    assert figures["peer"]["ms_per_token_range"] == pytest.approx([10.0, 10.0])
    assert figures["peer"]["speedup_over"][PLAIN]["median"] == pytest.approx(2.5)
    assert figures[PLAIN]["speedup_over"]["peer"]["median"] == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert PLAIN not in figures[PLAIN]["speedup_over"]
    assert figures["peer"]["tokens_per_pass"] == 1.0
    assert figures["peer"]["text"] is None, "texts were not compared"
    assert figures["peer"]["regimes"] == {}


def test_regimes_are_kept_apart() -> None:
    plain, peer = Scripted(PLAIN, is_peer=False), Scripted("peer")
    session = session_of({PLAIN: [[20.0], [20.0]], "peer": [[10.0], [10.0]]})
    for prompt, (ms, probe) in enumerate([(40.0, 15.0), (40.0, 15.0)], start=2):
        for name, own in ((PLAIN, ms), ("peer", ms / 4)):
            session.measurements.append(Measurement("chat", prompt, 0, name, sample(own), probe))
    described(session, plain, peer)
    probes = ProbeSummary.of([30.0] * 10 + [15.0] * 10)
    regimes = summarise(session, [plain, peer], "chat", probes, {})["peer"]["regimes"]
    assert regimes["slow"]["speedup_over"][PLAIN]["median"] == pytest.approx(4.0)
    assert regimes["fast"]["speedup_over"][PLAIN]["median"] == pytest.approx(2.0)
    assert regimes["slow"]["measurements"] == regimes["fast"]["measurements"] == 2


def test_the_best_k_is_the_fastest_and_plain_wins_when_nothing_else_does() -> None:
    def variant(name: str, drafter: str, k: int) -> Scripted:
        made = Scripted(name, is_peer=False)
        made.drafter, made.k = drafter, k
        return made

    variants = [
        Scripted(PLAIN, is_peer=False),
        variant("model k=1", "model", 1),
        variant("model k=2", "model", 2),
        variant("lookup k=2", "lookup", 2),
        Scripted("peer"),
    ]
    times = {PLAIN: 20.0, "model k=1": 16.0, "model k=2": 10.0, "lookup k=2": 40.0, "peer": 1.0}

    def best(times: dict[str, float]) -> dict[str, object]:
        session = described(session_of({name: [[ms]] for name, ms in times.items()}), *variants)
        best = best_of(summarise(session, variants, "chat", ONE_REGIME, {}), variants)
        return {name: entry["variant"] for name, entry in best.items()}

    assert best(times) == {"model": "model k=2", "lookup": "lookup k=2", "overall": "model k=2"}
    assert best({**times, "model k=1": 30.0, "model k=2": 25.0})["overall"] == PLAIN


def test_statistics_since_a_snapshot_and_summed() -> None:
    early, late = Statistics(), Statistics()
    for statistics in (early, late):
        statistics.add(Round(0, 0, 0, 1))
        statistics.target_s += 2.0
    late.add(Round(0, 3, 2, 3))
    late.add(Round(0, 3, 3, 4))
    late.target_s, late.draft_s = 5.0, 1.0
    decoded = since(late, early)
    assert decoded.num_rounds == 2
    assert decoded.tokens_per_pass == 3.5
    assert decoded.acceptance_rate == 5 / 6
    assert (decoded.target_s, decoded.draft_s) == (3.0, 1.0)
    both = combined([decoded, decoded])
    assert both.num_rounds == 4
    assert both.tokens_per_pass == 3.5
    assert both.acceptance_by_depth == decoded.acceptance_by_depth
    assert both.target_s == 6.0


def test_where_the_time_goes_is_the_median_over_runs() -> None:
    plain = Scripted(PLAIN, is_peer=False)
    session = Session(probes=[30.0])
    for prompt, scale in enumerate((1.0, 1.0, 50.0)):
        statistics = Statistics(num_emitted=20, draft_s=0.3 * scale, target_s=0.6 * scale, verify_s=0.05, host_s=0.05)
        statistics.rounds[1, 1] = 10
        one = replace(sample(100.0 * scale), statistics=statistics)
        session.measurements.append(Measurement("chat", prompt, 0, PLAIN, one, 30.0))
    figure = summarise(described(session, plain), [plain], "chat", ONE_REGIME, {})[PLAIN]
    assert figure["round_ms"] == pytest.approx(
        {"draft": 30.0, "target": 60.0, "verify": 5.0, "host": 5.0, "api": 0.0}, abs=1e-6
    )
    assert figure["share"]["target"] == pytest.approx(0.6)
    assert figure["tokens_per_pass"] == 2.0


def test_first_difference() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 2]) is None
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1


@pytest.mark.parametrize("chunk", [1, 2, 5, 512])
def test_the_row_after_a_prefix_is_the_targets_own_and_leaves_no_cache(chunk: int) -> None:
    model = target()
    tokens = [1, 2, 3, 4, 5]
    assert row_after(model, tokens, 9, chunk).tolist() == model.logits(tokens)[:9].tolist()
    assert model.num_sequences == 0
