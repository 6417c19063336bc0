"""The native row processor against its reference, the array API: the same tokens, supports and probabilities.

`test_native_bits.py` compares instruction sets and neighbours bit by bit, `test_native_law.py` the law of texts.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sampling.row_digest import FILTERS, shapes
from tests.sampling.tools import INF, Walk, random_rows, rows_of

from forerun.arrays import log_total, rank_and_top
from forerun.errors import NoLegalTokenError, NumericalError
from forerun.randomness import Purpose, derive_key, make_noise, uniform
from forerun.sampling import Distribution, Processing, SamplingParams, kinds, raw_logprob, token_logprob
from forerun.sampling.kinds import ARRAYS, KINDS, Kind
from forerun.sampling.mass import Mass
from forerun.types import Draft
from forerun.verification import RULES, verify

pytest.importorskip("forerun._native", reason="the native extension is not built")
NATIVE = KINDS[0]
NEARLY_ONE = 1.0 - 2.0**-53
ORDINARY = [{}, {"temperature": 0.3}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.05}]


def both(row: np.ndarray, **params: Any) -> tuple[Mass, Mass]:
    """(native, reference) masses of a row under sampling parameters."""
    asked = SamplingParams(**params)
    native, reference = (kind.mass(row, asked, lambda: best(row)) for kind in (NATIVE, ARRAYS))
    return native, reference


def best(row: Any) -> tuple[int, float]:
    return int(row.argmax()), float(row.max())


def spread(mass: Mass, size: int) -> np.ndarray:
    """Probabilities [size]."""
    ids, probs = mass.pool
    dense = np.zeros(size)
    dense[np.arange(len(probs)) if ids is None else ids] = probs
    return dense


def assert_drawn_alike(native: Mass, reference: Mass, size: int, us: Any) -> None:
    """The same token for every u, but for sums that end within rounding of it."""
    ends = np.cumsum(spread(reference, size))
    for u in us:
        token, expected = native.draw(u), reference.draw(u)
        low, high = sorted((token, expected))
        assert token == expected or np.all(np.abs(ends[low:high] - u) < 1e-12), (u, token, expected)
        assert native.prob(token) > 0.0


def assert_alike(native: Mass, reference: Mass, size: int, keys: Any = range(3)) -> None:
    """One mass in two forms."""
    got, expected = spread(native, size), spread(reference, size)
    np.testing.assert_array_equal(got > 0, expected > 0)
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=0)
    assert math.fsum(got) == pytest.approx(1.0, abs=1e-12)
    for token in {0, size // 2, size - 1, int(expected.argmax())}:
        assert native.prob(token) == got[token]
        assert reference.prob(token) == expected[token]
    us = [0.0, 0.5, NEARLY_ONE, *(uniform(derive_key(size, key)) for key in keys)]
    assert_drawn_alike(native, reference, size, us)
    for key in keys:
        assert native.race(derive_key(key)) == reference.race(derive_key(key))


# -- processed probabilities -------------------------------------------------------------------------------------------


@st.composite
def rows(draw: Any, max_size: int = 70) -> np.ndarray:
    """[size] float32: ties, both zeros, minus infinities, close values, extremes; the largest is finite."""
    special = st.sampled_from([-INF, -3e38, -80.0, -7.25, -1.0, -0.0, 0.0, 0.5, 1.0, 1.0, 3.5, 1e-45])
    value = special | st.floats(-30, 30, width=32)
    values = draw(st.lists(value, min_size=1, max_size=max_size).filter(lambda values: max(values) > -INF))
    return np.array(values * draw(st.sampled_from([1, 1, 1, 3])), dtype=np.float32)


@st.composite
def filters(draw: Any) -> dict[str, Any]:
    return {
        "temperature": draw(st.sampled_from([1.0, 0.7, 1e-5, 1e-3, 40.0, 1e6, 1e30, 1e300]) | st.floats(0.01, 10.0)),
        "top_k": draw(st.sampled_from([0, 1, 2, 3, 10, 10**7])),
        "top_p": draw(st.sampled_from([1.0, 1.0, 1e-4, 0.1237, 0.7893, 0.99999]) | st.floats(0.01, 1.0)),
        "min_p": draw(st.sampled_from([0.0, 0.0, 1e-310, 0.1373, 0.8713, 1.0]) | st.floats(0.0, 1.0)),
    }


@settings(max_examples=500)
@given(rows(), filters())
def test_processed_probabilities_are_those_of_the_reference(row: np.ndarray, params: dict[str, Any]) -> None:
    native, reference = both(row, **params)
    assert_alike(native, reference, len(row))


WIDTHS = [1, 2, 15, 16, 17, 255, 1_023, 1_024, 1_025, 2_048, 4_099, 32_001, 151_936, 200_003]


@pytest.mark.parametrize("size", WIDTHS)
def test_rows_of_every_width_and_shape_are_those_of_the_reference(size: int) -> None:
    for turn, (name, row) in enumerate(shapes(size)):
        # The array reference takes 10 ms and more for a wide row, so each shape meets some of the filters there.
        for params in FILTERS if size < 5_000 else FILTERS[turn % 4 :: 4]:
            native, reference = both(row, **params)
            try:
                assert_alike(native, reference, size)
            except AssertionError as error:
                raise AssertionError(f"{name} under {params}: {error}") from error


def test_a_wide_draw_finds_each_token_at_its_place() -> None:
    """A flat row of 2^17: u = (i + 1/2) / 2^17 is token i, in whatever block it lies."""
    native, _ = both(np.zeros(1 << 17, dtype=np.float32))
    for i in [0, 1, 1_022, 1_023, 1_024, 50_000, (1 << 17) - 1, *np.random.default_rng(0).integers(0, 1 << 17, 500)]:
        assert native.draw((int(i) + 0.5) / (1 << 17)) == i
        assert native.draw(int(i) / (1 << 17)) == i  # edges belong to the right


@pytest.mark.parametrize("params", ORDINARY, ids=str)
def test_draws_of_no_mass_never_happen(params: dict[str, Any]) -> None:
    row = random_rows(1, 3_000, seed=4)[0]
    row[::2] = -INF
    native, _ = both(row, **params)
    for u in [0.0, NEARLY_ONE, 2.0**-53, *np.random.default_rng(0).random(500)]:
        assert native.prob(native.draw(float(u))) > 0.0
    for key in range(300):
        assert native.prob(native.race(key)) > 0.0


def test_frequencies_of_draws_are_the_probabilities() -> None:
    """20,000 draws of either kind: no token is off by more than 5 standard deviations."""
    row = random_rows(1, 12, seed=1)[0]
    native, _ = both(row, temperature=2.0)
    probs = spread(native, 12)
    for draws in ([native.draw(uniform(derive_key(i))) for i in range(20_000)], [native.race(derive_key(i))
                  for i in range(20_000)]):  # fmt: skip
        counts = np.bincount(draws, minlength=12)
        assert np.all(np.abs(counts - 20_000 * probs) <= 5 * np.sqrt(20_000 * probs * (1 - probs)) + 1e-9)


# -- Gumbel draws without a total --------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [0.0, 0.5, 2.5, 10.0, 60.0, 2e37])
@pytest.mark.parametrize("size", [7, 1_024, 5_001, 151_936])
def test_pruned_races_are_the_argmax_over_all_ids(size: int, spread: float) -> None:
    random = np.random.default_rng(size)
    row = (random.normal(0.0, 1.0, size) * spread).astype(np.float32)
    row[random.random(size) < 0.1] = -INF
    row[size // 2] = 0.5
    token = int(row.argmax())
    for key in range(6 if size > 100_000 else 40):
        for temperature in (1e-3, 0.8, 1.0, 30.0, 1e37):
            asked = row, temperature, token, float(row[token]), derive_key(key)
            with np.errstate(over="ignore"):  # the reference's own pruning, in float32
                assert NATIVE.race(*asked) == ARRAYS.race(*asked)


def test_a_race_over_logits_is_the_race_over_their_probabilities() -> None:
    for row in random_rows(20, 400, seed=5):
        native, _ = both(row, temperature=0.7)
        token = int(row.argmax())
        for key in range(20):
            assert native.race(derive_key(key)) == NATIVE.race(row, 0.7, token, float(row[token]), derive_key(key))


# -- residuals ---------------------------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(rows(), rows(), st.sampled_from(ORDINARY), st.sampled_from(ORDINARY), st.floats(0.0, 1.0))
def test_residuals_are_those_of_the_reference(
    p_row: np.ndarray, q_row: np.ndarray, p_params: Any, q_params: Any, scale: float
) -> None:
    """Either may be cut to few ids or not, and q may be narrower or wider than p."""
    (p, p_reference), (q, q_reference) = both(p_row, **p_params), both(q_row, **q_params)
    left, expected = p.minus(q, scale), p_reference.minus(q_reference, scale)
    assert left.total == pytest.approx(expected.total, rel=1e-12, abs=1e-15)
    if expected.total > 1e-6:
        np.testing.assert_allclose(spread(left, len(p_row)), spread(expected, len(p_row)), rtol=1e-9, atol=1e-12)
        us = [0.0, 0.3, NEARLY_ONE, *(uniform(derive_key(key)) for key in range(3))]
        ends = np.cumsum(spread(expected, len(p_row)))
        for u in us:
            low, high = sorted((left.draw(u), expected.draw(u)))
            assert low == high or np.all(np.abs(ends[low:high] - u) < 1e-9)
        for token in range(len(p_row)):
            assert left.prob(token) == spread(left, len(p_row))[token]


@pytest.mark.parametrize("q_width", [151_936, 151_000, 32_000, 3])
@pytest.mark.parametrize("params", [{}, {"temperature": 0.8}, {"top_k": 60}, {"top_p": 0.9}], ids=str)
def test_wide_residuals_are_those_of_the_reference(q_width: int, params: dict[str, Any]) -> None:
    random = np.random.default_rng(q_width)
    p_row = random.normal(0.0, 2.5, 151_936).astype(np.float32)
    q_row = (p_row + random.normal(0.0, 0.5, 151_936)).astype(np.float32)[:q_width]
    (p, p_reference), (q, q_reference) = both(p_row, **params), both(q_row, **params)
    for scale in (1.0, 0.6):
        left, expected = p.minus(q, scale), p_reference.minus(q_reference, scale)
        assert left.total == pytest.approx(expected.total, rel=1e-11)
        assert [left.draw(u) for u in (0.1, 0.5, 0.9)] == [expected.draw(u) for u in (0.1, 0.5, 0.9)]


@pytest.mark.parametrize("params", ORDINARY, ids=str)
def test_equal_rows_leave_nothing_and_are_always_accepted(params: dict[str, Any]) -> None:
    row = random_rows(1, 5_000, seed=2)[0]
    p, q = both(row, **params)[0], both(row.copy(), **params)[0]
    assert p.minus(q, 1.0).total == 0.0
    assert p.minus(q, 0.5).total == 0.0
    assert all(p.prob(token) == q.prob(token) for token in range(0, 5_000, 37))


@pytest.mark.parametrize("params", ORDINARY, ids=str)
def test_pairs_of_different_kinds_meet(params: dict[str, Any]) -> None:
    """A torch target with a native draft, and the reverse; a greedy row among them."""
    p_row, q_row = random_rows(2, 40, seed=8)
    (p, p_reference), (q, q_reference) = both(p_row, **params), both(q_row, **params)
    asked = SamplingParams(**params)
    by_torch = [ARRAYS.mass(torch.from_numpy(row), asked, lambda row=row: best(row)) for row in (p_row, q_row)]
    expected = p_reference.minus(q_reference, 0.9)
    for left in (p.minus(by_torch[1], 0.9), by_torch[0].minus(q, 0.9), p.minus(q_reference, 0.9)):
        assert left.total == pytest.approx(expected.total, rel=1e-12)
        ids, probs = left.pool
        dense = np.zeros(40)
        dense[np.arange(40) if ids is None else np.asarray(ids)] = np.asarray(probs)
        np.testing.assert_allclose(dense, spread(expected, 40), rtol=1e-9, atol=1e-12)


# -- edits, ranks, log probabilities -----------------------------------------------------------------------------------


@settings(max_examples=200)
@given(rows(), st.lists(st.integers(0, 90), max_size=12, unique=True), st.floats(0.01, 100.0), st.data())
def test_edits_are_those_of_numpy_bit_by_bit(row: np.ndarray, ids: list[int], penalty: float, data: Any) -> None:
    """Ids beyond the row are passed over."""
    chosen = np.array(ids, dtype=np.int64)
    amounts = np.array(data.draw(st.lists(st.floats(-200, 200), min_size=len(ids), max_size=len(ids))))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=250, max_size=250)))
    calls: list[Any] = [
        lambda edits, x: edits.penalise_repetition(x, chosen, penalty),
        lambda edits, x: edits.subtract(x, chosen, amounts),
        lambda edits, x: edits.rule_out(x, chosen),
        lambda edits, x: edits.keep_only(x, mask),
    ]
    for call in calls:
        native, reference = (call(kind.edits, row.copy()) for kind in (NATIVE, ARRAYS))
        assert native.tobytes() == reference.tobytes()


def test_a_mask_or_amounts_of_the_wrong_size_are_refused() -> None:
    row = np.zeros(5, dtype=np.float32)
    with pytest.raises(ValueError, match="narrower"):
        NATIVE.edits.keep_only(row, np.ones(4, dtype=bool))
    with pytest.raises(ValueError, match="one amount"):
        NATIVE.edits.subtract(row, np.arange(3), np.zeros(2))


@settings(max_examples=300)
@given(rows(), st.integers(0, 80), st.data())
def test_ranks_and_alternatives_are_those_of_the_reference(row: np.ndarray, num_top: int, data: Any) -> None:
    token = data.draw(st.integers(0, len(row) - 1))
    assert NATIVE.rank_and_top(row, token, num_top) == rank_and_top(row, token, num_top)


@pytest.mark.parametrize("size", [3, 1_024, 151_936])
def test_log_probabilities_are_those_of_the_model(size: int) -> None:
    """The native sum is in float64, the reference's in float32."""
    for name, row in shapes(size):
        largest = float(row.max())
        exact = float(np.log(np.sum(np.exp(row.astype(np.float64) - largest))))
        assert NATIVE.log_total(row, largest) == pytest.approx(exact, rel=1e-12, abs=1e-13), name
        assert NATIVE.log_total(row, largest) == pytest.approx(log_total(row, largest), abs=2e-5)
        for token in (0, size - 1):
            if row[token] > -INF:
                found = raw_logprob(row, token, 5)
                assert found.logprob == pytest.approx(float(row[token]) - largest - exact, abs=1e-9)
                assert (found.rank, [i for i, _ in found.top][: min(5, size)]) == (
                    rank_and_top(row, token, 5)[0],
                    rank_and_top(row, token, 5)[1],
                )


# -- through Distribution ----------------------------------------------------------------------------------------------

EVERYTHING: dict[str, Any] = {
    "temperature": 0.8, "top_k": 400, "top_p": 0.95, "min_p": 0.001, "repetition_penalty": 1.2,
    "frequency_penalty": 0.3, "presence_penalty": 0.2, "logit_bias": {4: 1.0, 9: -3.0}, "bad_words": [[7], [1, 9]],
    "min_tokens": 3,
}  # fmt: skip


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("rules", ["block", "chain"])
@pytest.mark.parametrize("params", [{"temperature": 0.8}, {"top_p": 0.9}, EVERYTHING], ids=["plain", "top-p", "all"])
def test_rounds_have_the_same_verdicts_in_both_kinds(
    params: dict[str, Any], rules: str, seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 rounds of 4 draft tokens: drafts drawn, judged and followed, with every parameter and a narrower draft."""
    size, found = 900, []
    for own in ((NATIVE, ARRAYS), (ARRAYS,)):
        monkeypatch.setattr(kinds, "KINDS", own)
        asked, random, verdicts = SamplingParams(**params, seed=seed), np.random.default_rng(7), []
        made = Processing(asked, size, [1, 2, 3, 2, 1], stop_ids=[11])
        made.begin_round()
        for turn in range(200):
            p_rows = random.normal(0.0, 3.0, (5, size)).astype(np.float32)
            q_rows = (p_rows[:4] + random.normal(0.0, 1.0, (4, size))).astype(np.float32)
            q_rows = np.ascontiguousarray(q_rows[:, : size - turn % 3 * 50])
            noise, draft, q = make_noise(asked, turn, 0, 5), list[int](), list[Distribution]()
            for i in range(4):
                q.append(made.distribution(rows_of(q_rows), i, tuple(draft), "draft"))
                draft.append(noise.draw(q[-1], i, Purpose.DRAFT))
            p = [made.distribution(rows_of(p_rows), i, tuple(draft[:i])) for i in range(5)]
            proposed = Draft(tuple(draft), noise.kind, tuple(q) if noise.kind == "sampled" else None)
            verdicts.append((draft, verify(p, proposed, noise, RULES[rules])))
            for token in draft[:2]:
                entry = token_logprob(p[0], token, 3, "processed")
                assert entry.logprob == pytest.approx(math.log(max(p[0].prob(token), 1e-300)), abs=1e-9) or math.isinf(
                    entry.logprob
                )
        found.append(verdicts)
    assert found[0] == found[1]


@pytest.mark.parametrize("where", [0, 5, 899])
def test_nan_is_seen(where: int) -> None:
    row = random_rows(1, 900)
    row[0, where] = math.nan
    for params in ({}, {"top_k": 3}, {"repetition_penalty": 1.5}):
        found = Walk([0], size=900, **params)
        found.processing.begin_round()
        distribution = found.processing.distribution(rows_of(row), 0)
        for look in ("argmax", "mass", "probs", "confidence"):
            with pytest.raises(NumericalError, match="largest value"):
                getattr(distribution, look)


def test_rows_without_a_legal_token_are_refused() -> None:
    walk = Walk([0], allowed_token_ids=[3])
    walk.processing.begin_round()
    logits = np.zeros((1, 8), dtype=np.float32)
    only = Distribution(rows_of(logits), 0, SamplingParams(), 8, lambda row: NATIVE.edits.rule_out(row, np.arange(8)))
    with pytest.raises(NoLegalTokenError):
        only.draw(0.5)


def counting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of native kernels as they are called."""
    calls: list[str] = []

    def counted(name: str) -> Any:
        def call(*args: Any) -> Any:
            calls.append(name)
            return getattr(NATIVE, name)(*args)

        return call

    spied = replace(NATIVE, **{name: counted(name) for name in ("mass", "race", "log_total", "rank_and_top")})
    monkeypatch.setattr(kinds, "KINDS", (spied, ARRAYS))
    return calls


def test_a_row_is_weighed_once_however_often_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counting(monkeypatch)
    row = Distribution(rows_of(random_rows(1, 50)), 0, SamplingParams(), 50)
    assert row.argmax >= 0
    assert calls == []
    for _ in range(3):
        _ = row.prob(1), row.draw(0.5), row.pool, row.probs, row.support
    assert calls == ["mass"]


def test_seeded_draws_without_filters_are_not_normalised(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counting(monkeypatch)
    Distribution(rows_of(random_rows(1, 50)), 0, SamplingParams(), 50).race(3)
    Distribution(rows_of(random_rows(1, 50)), 0, SamplingParams(top_k=4), 50).race(3)
    assert calls == ["race", "mass"]


@pytest.mark.parametrize(
    "row",
    [np.zeros(8), np.zeros(8, dtype=np.float16), np.zeros((8, 2), dtype=np.float32)[:, 0], torch.zeros(8)],
    ids=["float64", "float16", "strided", "torch"],
)
def test_other_rows_take_the_array_path(row: Any) -> None:
    assert kinds.kind_of(row) is ARRAYS
    assert kinds.kind_of(np.zeros(8, dtype=np.float32)) is NATIVE


def test_masses_keep_alive_what_they_were_made_of() -> None:
    """The residual of rows that nobody else holds."""

    def left() -> Mass:
        p_row, q_row = random_rows(2, 4_000, seed=6)
        return both(p_row.copy())[0].minus(both(q_row.copy())[0], 1.0)

    mass = left()
    expected = [mass.draw(u) for u in (0.2, 0.7)]
    junk = [np.random.default_rng(0).random(4_000, dtype=np.float32) for _ in range(50)]
    assert [mass.draw(u) for u in (0.2, 0.7)] == expected
    assert len(junk) == 50


def test_kinds_are_records_of_the_same_functions() -> None:
    assert all(isinstance(kind, Kind) for kind in KINDS)
    assert list(itertools.islice(KINDS, 2)) == [NATIVE, ARRAYS]
