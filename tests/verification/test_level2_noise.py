"""Level 2, the random numbers themselves: uniform, independent in every word of their key, the same bits everywhere.

Each test looks at 200,000 numbers. Kolmogorov-Smirnov limits come from the Dvoretzky-Kiefer-Wolfowitz bound (exact for
any sample size), pair tables are chi-square with 32 x 32 cells of 195 expected. At a false alarm rate of 1e-8 a
distribution function that is off by .0106 is caught with 99 %, and so is a dependence that moves .025 of the mass of a
pair table.
The numbers come from the vectorised twin, which `test_level2_law.py` proves to be bit for bit `forerun.randomness`.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2
from tests.verification.population import ALPHA, derive_keys, gumbels, mix_words, uniforms

from forerun import randomness
from forerun.errors import ContractError
from forerun.randomness import (
    GAMMA,
    MASK,
    CoupledNoise,
    GreedyNoise,
    IndependentNoise,
    Purpose,
    derive_key,
    fresh_seed,
    gumbel,
    gumbel_argmax,
    inverse_cdf,
    make_noise,
    mix,
)
from forerun.sampling import Distribution, SamplingParams

NUM = 200_000
CELLS = 32
WORDS = ["seed", "choice", "committed", "node"]
BASES = {"small": (3, 0, 17, 2), "large": (2**63 + 12345, 7, 2048, 5)}


def keys(base: str, purpose: Purpose = Purpose.ACCEPT, **words: Any) -> np.ndarray:
    """Keys at a base point, with some words replaced by arrays."""
    parts = dict(zip(WORDS, BASES[base], strict=True)) | words
    return derive_keys(parts["seed"], parts["choice"], parts["committed"], parts["node"], int(purpose))


def check_uniform(values: np.ndarray) -> None:
    """sup |F_n - F| against the Dvoretzky-Kiefer-Wolfowitz limit; values in [0, 1)."""
    ordered, steps = np.sort(values), np.arange(len(values) + 1) / len(values)
    assert ordered[0] >= 0.0
    assert ordered[-1] < 1.0
    distance = max(np.max(steps[1:] - ordered), np.max(ordered - steps[:-1]))
    assert distance < math.sqrt(math.log(2 / ALPHA) / (2 * len(values)))


def check_independent(first: np.ndarray, second: np.ndarray) -> None:
    """Chi-square of the pairs on a grid of CELLS x CELLS."""
    table = np.bincount((first * CELLS).astype(int) * CELLS + (second * CELLS).astype(int), minlength=CELLS**2)
    mean = len(first) / CELLS**2
    assert np.sum((table - mean) ** 2 / mean) < chi2.isf(ALPHA, CELLS**2 - 1)


def pull_back(noise: np.ndarray) -> np.ndarray:
    """Gumbel noise to the uniform it came from."""
    return np.exp(-np.exp(-noise))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("word", WORDS)
def test_uniforms_are_uniform_along_every_word_of_the_key(word: str, base: str) -> None:
    values = uniforms(keys(base, **{word: np.arange(NUM)}))
    check_uniform(values)
    # All 53 bits: the share of ones in each (Hoeffding's limit), where a histogram only sees the first few.
    words = (values * 2.0**53).astype(np.uint64)
    limit = math.sqrt(math.log(2 * 53 / ALPHA) / (2 * NUM))
    assert all(abs(np.mean((words >> np.uint64(bit)) & np.uint64(1)) - 0.5) < limit for bit in range(53))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("word", WORDS)
def test_neighbouring_keys_give_independent_uniforms(word: str, base: str) -> None:
    """Also the same position seen from two rounds, and neighbours in the sequence of one word."""
    values = uniforms(keys(base, **{word: np.arange(2 * NUM)}))
    check_independent(values[::2], values[1::2])
    start = dict(zip(WORDS, BASES[base], strict=True))[word]
    vary = "seed" if word != "seed" else "committed"
    here, there = (uniforms(keys(base, **{vary: np.arange(NUM), word: start + step})) for step in (0, 1))
    check_independent(here, there)


@pytest.mark.parametrize(
    "pair", list(itertools.combinations(Purpose, 2)), ids=lambda pair: f"{pair[0].name}-{pair[1].name}"
)
def test_purposes_are_independent_streams(pair: tuple[Purpose, Purpose]) -> None:
    check_independent(*(uniforms(keys("small", purpose, seed=np.arange(NUM))) for purpose in pair))


def test_one_position_seen_from_two_rounds_has_two_numbers() -> None:
    """Node 1 of the round at 17 and node 0 of the round at 18 are the same position."""
    seeds = np.arange(NUM)
    check_independent(
        uniforms(keys("small", seed=seeds, committed=17, node=1)),
        uniforms(keys("small", seed=seeds, committed=18, node=0)),
    )


def test_keys_of_a_realistic_grid_are_all_different() -> None:
    grid = np.meshgrid(np.arange(7), np.arange(5), np.arange(200), np.arange(9), np.arange(1, 6), indexing="ij")
    assert len(np.unique(derive_keys(*grid))) == 7 * 5 * 200 * 9 * 5


@pytest.mark.parametrize("base", BASES)
def test_gumbel_noise_has_its_law_and_is_independent_across_tokens_positions_seeds_and_choices(base: str) -> None:
    one_row = pull_back(gumbels(keys(base, Purpose.GUMBEL), np.arange(2 * NUM)))[0]
    check_uniform(one_row)
    check_independent(one_row[::2], one_row[1::2])
    ids = np.array([11, 12])
    for word in ("seed", "choice", "committed"):
        values = pull_back(gumbels(keys(base, Purpose.GUMBEL, **{word: np.arange(2 * NUM)}), ids))
        check_uniform(values[:, 0])
        check_independent(values[:, 0], values[:, 1])
        check_independent(values[::2, 0], values[1::2, 0])
        check_independent(values[:-1, 0], values[1:, 1])


@given(st.integers(0, MASK), st.lists(st.integers(0, 300_000), min_size=1, max_size=20, unique=True))
def test_numpy_torch_and_plain_integers_give_the_same_bits(key: int, ids: list[int]) -> None:
    """The words are integers and must be equal; the logarithms are each library's own, within rounding."""
    words = [mix((key + (token + 1) * GAMMA) & MASK) >> 12 for token in ids]
    u = (np.array(words, dtype=np.float64) + 0.5) * 2.0**-52
    by_numpy = gumbel(key, np.array(ids, dtype=np.int64))
    by_torch = gumbel(key, torch.tensor(ids, dtype=torch.int64))
    assert np.array_equal(by_numpy, -np.log(-np.log(u)))
    assert torch.equal(by_torch, -torch.log(-torch.log(torch.from_numpy(u))))
    assert by_torch.dtype == torch.float64
    np.testing.assert_allclose(by_torch.numpy(), by_numpy, rtol=0, atol=1e-13)


def unmix(word: int) -> int:
    """The inverse of `mix`, by undoing its steps: that there is one proves that `mix` is a bijection."""
    word = word ^ (word >> 31) ^ (word >> 62)
    word = (word * pow(randomness.MULTIPLIER_2, -1, 1 << 64)) & MASK
    word = word ^ (word >> 27) ^ (word >> 54)
    word = (word * pow(randomness.MULTIPLIER_1, -1, 1 << 64)) & MASK
    return word ^ (word >> 30) ^ (word >> 60)


@given(st.integers(0, MASK))
def test_mix_is_a_bijection_and_the_twin_agrees(word: int) -> None:
    assert unmix(mix(word)) == word
    assert int(mix_words(np.array([word], dtype=np.uint64))[0]) == mix(word)


def key_of_word(word: int) -> int:
    """The key whose uniform is made of exactly this 64-bit word."""
    return (unmix(word) - GAMMA) & MASK


LOWEST, HIGHEST = key_of_word(0), key_of_word(MASK)


def test_the_two_ends_of_the_uniforms() -> None:
    assert randomness.uniform(LOWEST) == 0.0
    assert randomness.uniform(HIGHEST) == 1.0 - 2.0**-53
    ends = gumbel(LOWEST, np.array([0])), gumbel(HIGHEST, np.array([0]))
    assert np.isfinite(ends).all()
    assert ends[0] < -3.5
    assert ends[1] > 36


def test_probability_zero_is_never_accepted_and_one_always(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in (LOWEST, HIGHEST):
        monkeypatch.setattr(randomness, "derive_key", lambda *words, key=key: key)
        noise = IndependentNoise(1, 0, 5)
        assert noise.accept(0.0, 0) is False
        assert noise.accept(1.0, 0) is True
        assert noise.draw(Distribution.explicit(np.array([0.0, 0.4, 0.0, 0.6, 0.0])), 0, Purpose.EMIT) in (1, 3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, torch.float32, torch.float64], ids=str)
@given(weights=st.lists(st.integers(0, 5), min_size=1, max_size=8).filter(any), steps=st.integers(0, 2**53 - 1))
def test_tokens_without_mass_are_never_drawn(dtype: Any, weights: list[int], steps: int) -> None:
    as_torch = isinstance(dtype, torch.dtype)
    probs = torch.tensor(weights, dtype=dtype) / 7 if as_torch else np.array(weights, dtype=dtype) / dtype(7)
    for u in (0.0, 2.0**-53, steps * 2.0**-53, 0.5, 1.0 - 2.0**-53):
        assert weights[inverse_cdf(probs, u)] > 0


def test_a_uniform_that_rounds_up_to_the_total_takes_the_last_token_with_mass() -> None:
    """In float32, (1 - 2^-53) * total is the total: the first sum above it does not exist."""
    probs = np.array([0.25, 0.5, 0.25, 0.0, 0.0], dtype=np.float32)
    assert np.float32(float(probs.sum()) * (1.0 - 2.0**-53)) == probs.sum()
    assert inverse_cdf(probs, 1.0 - 2.0**-53) == 2
    assert inverse_cdf(torch.from_numpy(probs), 1.0 - 2.0**-53) == 2


def test_inverse_cdf_draws_each_token_for_its_own_share_of_the_interval() -> None:
    """Eighths are exact: u in [0, 1/8) is token 1, [1/8, 5/8) token 2, [5/8, 1) token 4; edges belong to the right."""
    probs = np.array([0.0, 1.0, 4.0, 0.0, 3.0])  # any positive total
    for eighth, token in enumerate([1, 2, 2, 2, 2, 4, 4, 4]):
        assert inverse_cdf(probs, eighth / 8) == token
        assert inverse_cdf(probs, (eighth + 1) / 8 - 2.0**-53) == token
        assert inverse_cdf(torch.from_numpy(probs), eighth / 8) == token


@given(st.lists(st.integers(0, 3), min_size=2, max_size=6).filter(any), st.integers(0, MASK), st.integers(0, 10**6))
def test_coupled_draws_stay_in_the_support(weights: list[int], seed: int, committed: int) -> None:
    distribution = Distribution.explicit(np.array(weights, dtype=np.float64))
    noise = CoupledNoise(seed, 0, committed)
    token = noise.draw(distribution, 1, Purpose.FOLLOW)
    assert weights[token] > 0
    # The position decides, not the round or the purpose: draft and target agree, and so does every later round.
    assert token == noise.draw(distribution, 1, Purpose.DRAFT)
    assert token == CoupledNoise(seed, 0, committed + 1).draw(distribution, 0, Purpose.FOLLOW)


def test_greedy_and_coupled_noise_accept_nothing_by_chance() -> None:
    for noise in (GreedyNoise(), CoupledNoise(1, 0, 4)):
        assert noise.kind == "deterministic"
        with pytest.raises(ContractError):
            noise.accept(0.5, 0)


def test_the_request_decides_its_noise() -> None:
    assert make_noise(SamplingParams(temperature=0, seed=3), 3, 0, 5) == GreedyNoise()
    assert make_noise(SamplingParams(temperature=9e-6), 3, 0, 5) == GreedyNoise()
    assert make_noise(SamplingParams(seed=3), 3, 1, 5) == CoupledNoise(3, 1, 5)
    assert make_noise(SamplingParams(), 3, 1, 5) == IndependentNoise(3, 1, 5)


def test_fresh_seeds_are_fresh_and_fit() -> None:
    seeds = {fresh_seed() for _ in range(1000)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**60


@pytest.mark.parametrize("position", range(5))
def test_every_word_of_the_key_matters(position: int) -> None:
    words = [5, 0, 9, 2, 3]
    changed = [word + (i == position) for i, word in enumerate(words)]
    assert derive_key(*words) != derive_key(*changed)


@pytest.mark.parametrize("spread", [0.0, 0.5, 2.5, 10.0, 60.0])
@pytest.mark.parametrize("size", [50, 5_000, 40_000])
def test_the_pruned_gumbel_draw_is_the_argmax_over_all_ids(size: int, spread: float) -> None:
    random = np.random.default_rng(size)
    for key in range(40):
        weights = random.normal(0.0, spread, size)
        weights[random.random(size) < 0.2] = -np.inf
        ids = np.sort(random.choice(2 * size, size, replace=False)).astype(np.int64)
        noise = gumbel(derive_key(key), ids)
        assert gumbel_argmax(derive_key(key), ids, weights) == ids[np.argmax(weights + noise)]
