"""Layers that see only the last W tokens: the right ones, however they are fed, and nothing before them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.native.decoders import Tiny, build, feed, reference, rows_of, text, tiny
from tests.native.test_attention import path_to, random_parents

from forerun import _native

EDGES = [1, 2, 15, 16, 17, 63, 64, 65, 128, 255, 256, 257, 320, 700]  # of blocks, pages, chunks; past the text's end


def windowed(*windows: int, **settings: object) -> Tiny:
    return tiny(num_layers=len(windows), layer_windows=windows, **settings)


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(((found - expected) ** 2).mean()) / expected.std())


@pytest.mark.parametrize("window", EDGES)
def test_a_token_sees_itself_and_those_before_it(window: int) -> None:
    """In one layer, every row is computed from its window's tokens and nothing else."""
    model = windowed(window, num_heads=6)
    tokens, width, decoder = text(model, 600), model.vocabulary_size, build(model)
    found = rows_of(decoder, tokens, width)
    assert distance(found, reference(model, tokens)) < 1e-3
    others = text(model, 600, seed=9)
    for at in (0, window - 1, 63, 64, 255, 256, 257, 400, 599):
        if at >= 600:
            continue
        first = max(0, at - window + 1)
        changed = [*others[:first], *tokens[first : at + 1]]
        np.testing.assert_array_equal(rows_of(decoder, changed, width)[-1], found[at])
        if first < at:  # and the first of them does matter
            changed[first] = (changed[first] + 1) % model.num_embeddings
            assert (rows_of(decoder, changed, width)[-1] != found[at]).any()


@pytest.mark.parametrize("window", EDGES)
def test_rows_do_not_depend_on_how_the_prompt_was_cut(window: int) -> None:
    model = windowed(window, 0, window + 64, head_size=20)
    tokens, width, decoder = text(model, 600), model.vocabulary_size, build(model)
    expected = rows_of(decoder, tokens, width)
    for sizes in ([1] * 599, [64] * 9, [257, 1, 63, 200], [65] * 9, [1, 255, 256]):
        np.testing.assert_array_equal(rows_of(decoder, tokens, width, sizes), expected)


def test_a_window_past_the_text_is_none() -> None:
    tokens = text(tiny(), 600)
    expected = rows_of(build(tiny()), tokens, 40)
    for window in (600, 601, 2**31, 2**63 - 1):
        np.testing.assert_array_equal(rows_of(build(windowed(window, window)), tokens, 40), expected)
    assert (rows_of(build(windowed(599, 599)), tokens, 40)[-1] != expected[-1]).any()


def test_rows_do_not_depend_on_neighbours() -> None:
    """Rows of many lengths in a pass, many of them in one tile: some see pages that others do not."""
    model = windowed(70, 300, num_heads=6, num_kv_heads=1)
    decoder, width, generator = build(model), model.vocabulary_size, np.random.default_rng(0)
    texts = [text(model, int(n), seed=i) for i, n in enumerate(generator.integers(2, 700, 10))]
    expected = [rows_of(decoder, tokens, width) for tokens in texts]
    for count in (1, 2, 5, 40):
        feeds = []
        for key, tokens in enumerate(texts):
            decoder.begin(key)
            if tokens[:-count]:
                feed(decoder, [(key, tokens[:-count], 0, None)], width)
            rest = tokens[-count:]
            feeds.append((key, rest, len(rest), None))
        for key, rows in enumerate(feed(decoder, feeds, width)):
            np.testing.assert_array_equal(rows, expected[key][-len(rows) :])
            decoder.free(key)


@pytest.fixture(scope="module", params=[(1, 7), (64, 0), (65, 130), (300, 20)], ids=str)
def model(request: pytest.FixtureRequest) -> Tiny:
    return windowed(*request.param, num_heads=6, head_size=20, attention_softcap=4.0)


@pytest.fixture(scope="module")
def decoder(model: Tiny) -> _native.Decoder:
    return build(model)


@pytest.mark.parametrize("shape", ["bushy", "two chains", "trunk", "mixed"])
@pytest.mark.parametrize("start, size", [(0, 12), (61, 9), (60, 70), (250, 20), (500, 40), (190, 300)])
def test_a_tree_has_the_bits_of_its_chains(
    model: Tiny, decoder: _native.Decoder, shape: str, start: int, size: int
) -> None:
    """Windows count a row's own text, wherever a branch lies in the span; branches reach beyond windows too."""
    generator, width = np.random.default_rng(size + start), model.vocabulary_size
    before, tokens = text(model, start), text(model, size, seed=1)
    parents = random_parents(generator, size, shape)
    decoder.begin(1)
    if before:
        feed(decoder, [(1, before, 0, None)], width)
    decoder.fork(1, 2, start)
    neighbour = text(model, 30, seed=2)
    found, beside = feed(decoder, [(1, tokens, size, parents), (2, neighbour, 30, None)], width)
    np.testing.assert_array_equal(beside, rows_of(decoder, [*before, *neighbour], width)[start:])
    leaves = [i for i in range(size) if i not in parents]
    for leaf in [*generator.choice(leaves, min(4, len(leaves)), replace=False).tolist(), size - 1]:
        path = path_to(parents, leaf)
        chain = [*before, *(tokens[node] for node in path)]
        expected = rows_of(decoder, [*chain, 5, 6], width)
        np.testing.assert_array_equal(found[path], expected[start : start + len(path)])
    decoder.keep(1, start, path)
    (after,) = feed(decoder, [(1, [5, 6], 2, None)], width)
    np.testing.assert_array_equal(after, expected[-2:])
    decoder.free(1)
    decoder.free(2)


@pytest.mark.parametrize("start", [0, 300])
def test_rows_of_one_tile_may_lie_far_apart(model: Tiny, decoder: _native.Decoder, start: int) -> None:
    """Children of a long branch's end beside children of its beginning: chunks that one row sees end before another's
    window begins."""
    width, before, trunk = model.vocabulary_size, text(model, start), text(model, 600, seed=1)
    tokens, parents = [*trunk, *range(24)], [*range(-1, 599), *([599, 0, 599, 299, 0, 599] * 4)]
    decoder.begin(1)
    if before:
        feed(decoder, [(1, before, 0, None)], width)
    (found,) = feed(decoder, [(1, tokens, 24, parents)], width)
    for row, token, parent in zip(found, tokens[600:], parents[600:], strict=True):
        expected = rows_of(decoder, [*before, *trunk[: parent + 1], token], width)[-1]
        np.testing.assert_array_equal(row, expected)
    decoder.free(1)


# -- what is not seen -------------------------------------------------------------------------------------------------


def poisoned(window: int) -> tuple[Tiny, _native.Decoder]:
    """One layer; token 7's embedding is NaN, so are its keys and values."""
    model = windowed(window, num_heads=6)
    model.raw["embedding"].view(np.float32)[7] = np.nan
    return model, build(model)


@pytest.mark.parametrize("window", [1, 3, 16, 63, 64, 65, 200, 256, 300])
@pytest.mark.parametrize("at", [0, 5, 63, 64, 130, 255, 256, 300])
def test_a_broken_token_is_seen_within_its_window_and_not_beyond(window: int, at: int) -> None:
    model, decoder = poisoned(window)
    clean = [token for token in text(model, 700) if token != 7]
    width, length = model.vocabulary_size, at + window + 30
    expected = rows_of(decoder, clean[:length], width)
    broken = [*clean[:at], 7, *clean[at + 1 : length]]
    for sizes in ([], [1] * length, [at + window - 1, 1, 3]):
        found = rows_of(decoder, broken, width, sizes)
        assert np.isnan(found[at : at + window]).all()
        np.testing.assert_array_equal(found[:at], expected[:at])
        np.testing.assert_array_equal(found[at + window :], expected[at + window :])


@pytest.mark.parametrize("window", [2, 5, 64])
@pytest.mark.parametrize("start", [0, 60, 250])
def test_a_broken_branch_is_seen_by_its_own_rows_alone(window: int, start: int) -> None:
    """Two branches in turns; one begins with the broken token, which its later rows have left behind."""
    model, decoder = poisoned(window)
    clean, width = [token for token in text(model, 500) if token != 7], model.vocabulary_size
    before, size = clean[:start], 160
    one, two = clean[300:380], [7, *clean[380:459]]
    tokens = [token for pair in zip(one, two, strict=True) for token in pair]
    parents = [i - 2 if i > 1 else -1 for i in range(size)]
    decoder.begin(1)
    if before:
        feed(decoder, [(1, before, 0, None)], width)
    (found,) = feed(decoder, [(1, tokens, size, parents)], width)
    np.testing.assert_array_equal(found[::2], rows_of(decoder, [*before, *one], width)[start:])
    assert np.isnan(found[1::2][:window]).all()
    np.testing.assert_array_equal(found[1::2], rows_of(decoder, [*before, *two], width)[start:])
    assert np.isfinite(found[1::2][window:]).all()
    decoder.keep(1, start, list(range(1, size, 2)))
    (after,) = feed(decoder, [(1, [1, 2], 2, None)], width)
    np.testing.assert_array_equal(after, rows_of(decoder, [*before, *two, 1, 2], width)[-2:])


def test_what_was_forgotten_stays_forgotten() -> None:
    """Pages are used again; what a freed or shortened sequence left in them is never seen."""
    model, decoder = poisoned(70)
    clean, width = [token for token in text(model, 400) if token != 7], model.vocabulary_size
    expected = rows_of(decoder, clean[:350], width)
    decoder.begin(1)
    feed(decoder, [(1, [7] * 350, 0, None)], width)
    decoder.free(1)
    np.testing.assert_array_equal(rows_of(decoder, clean[:350], width), expected)
    decoder.begin(1)
    feed(decoder, [(1, clean[:200], 0, None)], width)
    feed(decoder, [(1, [7] * 100, 0, None)], width)
    decoder.keep(1, 200)
    (found,) = feed(decoder, [(1, clean[200:350], 150, None)], width)
    np.testing.assert_array_equal(found, expected[200:])
