"""The order of measurement, what a failure or an interruption leaves, and the probe."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bench.toys import PROMPTS, Scripted, quick_probe

from forerun.bench import peers
from forerun.bench.probe import BandwidthProbe, ProbeSummary
from forerun.bench.rounds import run_rounds, turn_order


@given(st.integers(1, 14))
def test_every_variant_follows_every_other_equally_often(num: int) -> None:
    turns = num if num % 2 == 0 else 2 * num
    follows: Counter[tuple[int, int]] = Counter()
    places: Counter[tuple[int, int]] = Counter()
    for turn in range(turns):
        order = turn_order(num, turn)
        assert sorted(order) == list(range(num))
        follows.update(itertools.pairwise(order))
        places.update(enumerate(order))
    pairs = [(a, b) for a in range(num) for b in range(num) if a != b]
    assert {follows[pair] for pair in pairs} <= {turns // num}
    assert {places[place, variant] for place in range(num) for variant in range(num)} == {turns // num}


def test_every_prompt_meets_every_variant_before_the_next_prompt() -> None:
    log: list[tuple[str, object]] = []
    variants = [Scripted(name, log=log) for name in "abcd"]
    session = run_rounds(variants, PROMPTS, 4, 3, quick_probe())
    runs = [entry for entry in log if entry[1] != "prepare"]
    blocks = [runs[start : start + 4] for start in range(0, len(runs), 4)]
    assert len(blocks) == 3 * 4
    for block in blocks:
        assert {name for name, _ in block} == set("abcd")
        assert len({prompt for _, prompt in block}) == 1
    assert blocks[0][0] != blocks[1][0], "the order changes from turn to turn"
    assert log.count(("a", "prepare")) == len(PROMPTS), "each workload is prepared once"
    assert len(session.measurements) == len(runs)
    assert {(m.workload, m.prompt, m.round) for m in session.of("edit", "b")} == {
        ("edit", prompt, number) for prompt in range(2) for number in range(3)
    }


def test_a_probe_stands_before_and_after_every_measurement() -> None:
    readings = iter(range(1000))

    class Counting(BandwidthProbe):
        def measure(self) -> float:
            return float(next(readings))

    session = run_rounds([Scripted("a"), Scripted("b")], {"chat": [[1], [2]]}, 4, 1, Counting(1, 8, 0.0))
    assert session.probes == [float(i) for i in range(len(session.probes))]
    means = [m.probe_gb_s for m in session.measurements]
    assert all(mean % 1 == 0.5 for mean in means), "the mean of two neighbouring readings"
    assert len(set(means)) == len(means) == 4


def test_a_failing_peer_is_left_out_and_the_rest_goes_on() -> None:
    peer, own = Scripted("peer", fails_at=3), Scripted("plain", is_peer=False)
    session = run_rounds([own, peer], PROMPTS, 4, 1, quick_probe())
    assert session.failures == {"peer": "MemoryError: no room"}
    assert peer.calls == 3
    assert len(session.of("chat", "peer")) == 2
    assert len(session.measurements) == 2 + 4
    assert own.calls == 4


def test_forerun_failing_is_an_error() -> None:
    with pytest.raises(MemoryError):
        run_rounds([Scripted("plain", is_peer=False, fails_at=2)], PROMPTS, 4, 1, quick_probe())


def test_an_interruption_keeps_what_was_measured() -> None:
    class Interrupted(Scripted):
        def generate(self, prompt, num_tokens):  # type: ignore[no-untyped-def]
            if self.calls == 2:
                raise KeyboardInterrupt
            return super().generate(prompt, num_tokens)

    session = run_rounds([Interrupted("plain", is_peer=False)], PROMPTS, 4, 5, quick_probe())
    assert session.interrupted
    assert len(session.measurements) == 2


def test_progress_counts_to_the_end_even_without_a_peer() -> None:
    seen: list[tuple[int, int]] = []
    variants = [Scripted("plain", is_peer=False), Scripted("peer", fails_at=1)]
    run_rounds(variants, PROMPTS, 4, 2, quick_probe(), lambda what, done, total: seen.append((done, total)))
    assert seen[-1] == (16, 16)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_settings_are_noted_for_each_workload() -> None:
    session = run_rounds([Scripted("peer")], PROMPTS, 4, 1, quick_probe())
    settings = {workload: described["setting"]["num_tokens"] for (workload, _), described in session.described.items()}
    assert settings == {"chat": 0, "edit": 2}


def test_the_probe_reads_all_of_its_buffer() -> None:
    probe = BandwidthProbe(num_threads=3, num_bytes=1 << 16, seconds=0.0)
    try:
        assert sum(part.nbytes for part in probe._parts) == 1 << 16
        reading = probe.measure()
    finally:
        probe.close()
    assert math.isfinite(reading)
    assert reading > 0


def test_the_probe_is_larger_than_the_cache_by_default() -> None:
    probe = BandwidthProbe()
    probe.close()
    assert probe.num_bytes >= 256 << 20


@pytest.mark.parametrize(
    ("readings", "threshold"),
    [
        ([30.0] * 5, None),
        ([30.0, 33.0, 36.0], None),
        ([20.0] * 10 + [30.0] * 10, 25.0),
        ([30.0] * 99 + [10.0], None),  # one outlier is no regime
    ],
)
def test_two_regimes_need_a_wide_spread(readings: list[float], threshold: float | None) -> None:
    summary = ProbeSummary.of(readings)
    assert summary.threshold == threshold
    assert (summary.low, summary.high) == (min(readings), max(readings))
    if threshold is None:
        assert summary.regime(1.0) is None
    else:
        assert [summary.regime(value) for value in (20.0, 25.0, 30.0)] == ["slow", "fast", "fast"]


def test_peers_that_do_not_fit_are_refused_in_time(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       100 kB\nMemAvailable:       1000 kB\n", encoding="ascii")
    peers.require_memory(700_000, meminfo)
    with pytest.raises(MemoryError, match="GB"):
        peers.require_memory(1_000_000, meminfo)
    peers.require_memory(10**18, tmp_path / "not there")
