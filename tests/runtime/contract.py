"""What every Model must do, whatever runs it: one function per promise, and one that checks them all.

The rows of a sequence are a function of its own tokens. How they were cut into spans, what was fed and rolled back,
who shared the pass: none of it may show.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from forerun.errors import ContractError
from forerun.runtime.base import Model, Rows
from forerun.types import Span

MakeModel = Callable[[], Model]


def check_model_contract(make_model: MakeModel, *, tolerance: float = 1e-4, num_tokens: int = 12) -> None:
    """Every promise of `forerun.runtime.base.Model`. `make_model` returns a model without sequences; `tolerance` is
    how far the same row may differ when it is computed in other company."""
    check_rows_have_the_right_shape(make_model(), num_tokens)
    check_any_cutting(make_model(), num_tokens, tolerance)
    check_rollback(make_model(), num_tokens, tolerance)
    check_fork(make_model(), num_tokens, tolerance)
    check_neighbours(make_model(), num_tokens, tolerance)
    check_free(make_model(), num_tokens, tolerance)
    check_breaches(make_model())
    if make_model().capabilities.trees:
        check_tree_rows(make_model(), num_tokens, tolerance)
        check_tree_paths(make_model(), num_tokens, tolerance)
        check_tree_neighbours(make_model(), num_tokens, tolerance)
        check_tree_breaches(make_model())
        check_trees_fit_by_their_depth(make_model(), tolerance)
    else:
        check_trees_are_refused(make_model())
    check_cost(make_model())


def text(model: Model, num_tokens: int, seed: int = 0) -> list[int]:
    """Random tokens that the model can be fed."""
    size = model.capabilities.num_inputs
    return [random.Random(f"{seed} {i}").randrange(size) for i in range(num_tokens)]


def split(rows: Rows, counts: Sequence[int]) -> list[np.ndarray]:
    """The matrix cut back into spans, on the CPU."""
    matrix = np.asarray(rows.matrix.cpu() if hasattr(rows.matrix, "cpu") else rows.matrix)
    assert matrix.shape[0] == sum(counts)
    return [matrix[rows.starts[i] : rows.starts[i + 1]] for i in range(len(counts))]


def feed(model: Model, key: int, tokens: Sequence[int], sizes: Sequence[int] | None = None) -> np.ndarray:
    """Feed `tokens` after what is cached, cut into spans of `sizes`; all rows [tokens, vocab]."""
    sizes = sizes if sizes is not None else [len(tokens)]
    assert sum(sizes) == len(tokens)
    out, at = [], 0
    for size in sizes:
        span = Span(key, model.length(key), tokens[at : at + size], size)
        out.extend(split(model.forward([span]), [size]))
        at += size
    return np.concatenate(out)


def reference(model: Model, tokens: Sequence[int], key: int = 900) -> np.ndarray:
    """The rows of `tokens`, fed all at once to a fresh sequence."""
    model.begin(key)
    try:
        return feed(model, key, tokens)
    finally:
        model.free(key)


def close(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def check_rows_have_the_right_shape(model: Model, num_tokens: int) -> None:
    tokens = text(model, num_tokens)
    expected = reference(model, tokens)
    assert expected.shape == (num_tokens, model.capabilities.vocabulary_size)
    assert expected.dtype in (np.float32, np.float64)
    assert np.isfinite(expected).all()
    for num_rows in (0, 1, 2, num_tokens):
        model.begin(1)
        rows = model.forward([Span(1, 0, tokens, num_rows)])
        (found,) = split(rows, [num_rows])
        close(found, expected[num_tokens - num_rows :], 1e-4)
        assert model.length(1) == num_tokens
        model.free(1)


def check_any_cutting(model: Model, num_tokens: int, tolerance: float) -> None:
    tokens = text(model, num_tokens, 1)
    expected = reference(model, tokens)
    cuttings = [[1] * num_tokens, [num_tokens - 1, 1], [1, num_tokens - 1]]
    for seed in range(3):
        generator, left, sizes = random.Random(seed), num_tokens, []
        while left:
            sizes.append(generator.randint(1, left))
            left -= sizes[-1]
        cuttings.append(sizes)
    for key, sizes in enumerate(cuttings):
        model.begin(key)
        close(feed(model, key, tokens, sizes), expected, tolerance)
    for key in range(len(cuttings)):
        model.free(key)


def check_rollback(model: Model, num_tokens: int, tolerance: float) -> None:
    """Keeping a prefix and going on is the same as never having fed the rest."""
    tokens, wrong = text(model, num_tokens, 2), text(model, num_tokens, 3)
    expected = reference(model, tokens)
    for cut in (0, 1, num_tokens // 2, num_tokens - 1):
        model.begin(5)
        if cut:
            feed(model, 5, tokens[:cut])
        feed(model, 5, wrong)
        model.keep(5, cut)
        assert model.length(5) == cut
        model.keep(5, cut)  # idempotent
        assert model.length(5) == cut
        close(feed(model, 5, tokens[cut:]), expected[cut:], tolerance)
        model.free(5)


def check_fork(model: Model, num_tokens: int, tolerance: float) -> None:
    tokens, other = text(model, num_tokens, 4), text(model, num_tokens, 5)
    expected = reference(model, tokens)
    for cut in (0, 1, num_tokens // 2):
        branch = [*tokens[:cut], *other[cut:]]
        expected_branch = reference(model, branch)
        model.begin(1)
        if num_tokens > 1:
            feed(model, 1, tokens[:-1])
        model.fork(1, 2, cut)
        assert (model.length(1), model.length(2)) == (num_tokens - 1, cut)
        close(feed(model, 2, branch[cut:]), expected_branch[cut:], tolerance)
        close(feed(model, 1, tokens[-1:]), expected[-1:], tolerance)  # the source did not notice
        model.free(1)
        model.keep(2, cut)
        if cut < num_tokens:
            close(feed(model, 2, tokens[cut:]), expected[cut:], tolerance)  # and the copy outlives it
        model.free(2)


def check_neighbours(model: Model, num_tokens: int, tolerance: float) -> None:
    """Ragged passes over several sequences at different positions give each the rows it gets alone."""
    texts = [text(model, max(1, num_tokens - 2 * i), 6 + i) for i in range(4)]
    expected = [reference(model, tokens, 950) for tokens in texts]
    fed = [0] * len(texts)
    found: list[list[np.ndarray]] = [[] for _ in texts]
    for key in range(len(texts)):
        model.begin(key)
    generator = random.Random(7)
    while any(fed[i] < len(texts[i]) for i in range(len(texts))):
        spans, who = [], []
        for i in generator.sample(range(len(texts)), len(texts)):
            size = min(generator.randint(0, 4), len(texts[i]) - fed[i])
            if size:
                spans.append(Span(i, fed[i], texts[i][fed[i] : fed[i] + size], size))
                who.append(i)
                fed[i] += size
        if spans:
            for i, rows in zip(who, split(model.forward(spans), [span.num_rows for span in spans]), strict=True):
                found[i].append(rows)
    for i, rows in enumerate(found):
        close(np.concatenate(rows), expected[i], tolerance)
        model.free(i)


def check_free(model: Model, num_tokens: int, tolerance: float) -> None:
    model.free(77)  # unknown ids are ignored
    tokens, other = text(model, num_tokens, 8), text(model, num_tokens, 9)
    expected = reference(model, tokens)
    model.begin(3)
    feed(model, 3, other)
    model.free(3)
    with pytest.raises(ContractError):
        model.forward([Span(3, 0, tokens, 1)])
    model.begin(3)  # the id may come back, and nothing of its past does
    assert model.length(3) == 0
    close(feed(model, 3, tokens), expected, tolerance)
    model.free(3)
    model.free(3)


def check_breaches(model: Model) -> None:
    """A broken protocol is loud, and changes nothing."""
    size = model.capabilities.num_inputs
    model.begin(1)
    model.begin(2)
    model.forward([Span(1, 0, [0, 1 % size], 1)])
    bad = [
        [Span(9, 0, [0], 1)],  # not begun
        [Span(1, 3, [0], 1)],  # a gap
        [Span(1, 1, [0], 1)],  # an overlap
        [Span(2, 0, [0], 1), Span(2, 0, [0], 1)],  # twice
        [Span(2, 0, [], 0)],  # empty
        [Span(2, 0, [0], 2)],  # more rows than tokens
        [Span(2, 0, [0], -1)],
        [Span(2, 0, [size], 1)],  # no such token
        [Span(2, 0, [-1], 1)],
        [Span(2, 0, [0], 1), Span(1, 5, [0], 1)],  # one good, one bad
    ]
    limit = model.capabilities.context_length
    if limit is not None:
        bad.append([Span(2, 0, [0] * (limit + 1), 1)])
    for spans in bad:
        with pytest.raises(ContractError):
            model.forward(spans)
        assert (model.length(1), model.length(2)) == (2, 0)
    for length in (3, -1):
        with pytest.raises(ContractError):
            model.keep(1, length)
    with pytest.raises(ContractError):
        model.begin(1)
    with pytest.raises(ContractError):
        model.fork(1, 2, 1)
    with pytest.raises(ContractError):
        model.fork(1, 3, 3)
    assert (model.length(1), model.length(2)) == (2, 0)
    model.free(1)
    model.free(2)


TREES = (
    (-1, -1),
    (-1, -1, 0, 0, 1, 1),
    (-1, 0, 1, 1, 0, -1, 5, 3),  # a trunk of two, and children before and after the others' own
    (-1, 0, -1, 2, 3, 1, 4, 6, 7, 8, 9),
)


def path_to(parents: Sequence[int], node: int) -> list[int]:
    return [] if node < 0 else [*path_to(parents, parents[node]), node]


def tree_span(model: Model, key: int, missing: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> Span:
    """Missing tokens of the text and a tree behind them, rows for the last missing one and every node."""
    first = len(missing)
    shifted = (*range(-1, first - 1), *(first + parent for parent in parents))
    return Span(key, model.length(key), [*missing, *tokens], len(tokens) + 1, shifted)


def rows_along(model: Model, before: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> np.ndarray:
    """The row after `before` and that after each node, each of its text alone."""
    texts = [[*before, *(tokens[i] for i in path_to(parents, node))] for node in range(-1, len(tokens))]
    return np.stack([reference(model, one)[-1] for one in texts])


def check_tree_rows(model: Model, num_tokens: int, tolerance: float) -> None:
    """A node's row is that of its own path, whatever else is in the tree: also far behind the text's beginning, where
    windows hide some of it, and where two nodes hold one token."""
    for seed, parents in enumerate(TREES):
        for num_cached, num_missing in ((0, 1), (num_tokens - 3, 3), (num_tokens - 1, 1)):
            before = text(model, num_cached + num_missing, 20 + seed)
            tokens = text(model, len(parents), 30 + seed)
            tokens[-1] = tokens[0]
            expected = rows_along(model, before, tokens, parents)
            model.begin(1)
            if num_cached:
                feed(model, 1, before[:num_cached])
            span = tree_span(model, 1, before[num_cached:], tokens, parents)
            (found,) = split(model.forward([span]), [span.num_rows])
            close(found, expected, tolerance)
            assert model.length(1) == len(before) + len(tokens)
            model.free(1)


def check_tree_paths(model: Model, num_tokens: int, tolerance: float) -> None:
    """Whatever path is kept, the cache goes on as if it alone had been fed; and nothing but the text, if none is."""
    for seed, parents in enumerate(TREES):
        before, tokens = text(model, num_tokens, 40 + seed), text(model, len(parents), 50 + seed)
        after = text(model, 3, 60 + seed)
        for node in range(-1, len(tokens)):
            path = path_to(parents, node)
            kept = [*before, *(tokens[i] for i in path)]
            expected = reference(model, [*kept, *after])[len(kept) :]
            for skipped in (0, min(2, len(path))):  # also a path whose beginning is kept by its length
                if path[:skipped] != list(range(skipped)):
                    continue
                model.begin(1)
                feed(model, 1, before[:-2])
                model.forward([tree_span(model, 1, before[-2:], tokens, parents)])
                length = len(before) - 2
                model.keep(1, length + skipped, tuple([0, 1, *(2 + i for i in path)][skipped:]))
                assert model.length(1) == len(kept)
                model.keep(1, len(kept))
                close(feed(model, 1, after), expected, tolerance)
                model.free(1)
        model.begin(1)
        model.forward([tree_span(model, 1, before, tokens, parents)])
        model.fork(1, 2, num_tokens - 1)
        model.keep(1, num_tokens - 1)
        for key in (1, 2):
            close(feed(model, key, before[-1:]), reference(model, before)[-1:], tolerance)
            model.free(key)


def check_tree_neighbours(model: Model, num_tokens: int, tolerance: float) -> None:
    """Trees and chains in one pass, at different places."""
    parents = TREES[1]
    texts = [text(model, num_tokens - 2 * i, 70 + i) for i in range(4)]
    trees = [text(model, len(parents), 80 + i) for i in range(2)]
    expected = [rows_along(model, texts[i], trees[i], parents) for i in range(2)]
    expected += [reference(model, one) for one in texts[2:]]
    for key in range(4):
        model.begin(key)
    feed(model, 1, texts[1][:-1])
    feed(model, 3, texts[3][:2])
    spans = [
        Span(2, 0, texts[2], len(texts[2])),
        tree_span(model, 1, texts[1][-1:], trees[1], parents),
        Span(3, 2, texts[3][2:], len(texts[3]) - 2),
        tree_span(model, 0, texts[0], trees[0], parents),
    ]
    found = split(model.forward(spans), [span.num_rows for span in spans])
    for rows, one in zip(found, (expected[2], expected[1], expected[3][2:], expected[0]), strict=True):
        close(rows, one, tolerance)
    for key in range(4):
        model.free(key)


def check_tree_breaches(model: Model) -> None:
    """What is no tree is refused, and so is going on as if a tree were a text."""
    model.begin(1)
    model.begin(2)
    feed(model, 1, [0, 0])
    for parents in ((-1,), (-1, 1), (0, 0), (-2, -1), (-1, -1, -1)):
        with pytest.raises(ContractError):
            model.forward([Span(1, 2, [0, 0], 1, parents)])
    assert (model.length(1), model.length(2)) == (2, 0)
    model.forward([Span(1, 2, [0, 0, 0], 1, (-1, -1, 1))])
    with pytest.raises(ContractError):
        model.forward([Span(2, 0, [0], 1), Span(1, 5, [0], 1)])
    for length, path in (
        (4, ()),
        (5, ()),
        (3, (1,)),
        (2, (2,)),
        (2, (0, 2)),
        (2, (1, 2, 3)),
        (2, (-1,)),
        (6, ()),
        (1, (0,)),
    ):
        with pytest.raises(ContractError):
            model.keep(1, length, path)
    with pytest.raises(ContractError):
        model.fork(1, 3, 4)
    assert (model.length(1), model.length(2)) == (5, 0)
    model.keep(1, 2, (1, 2))
    assert model.length(1) == 4
    with pytest.raises(ContractError):
        model.keep(1, 2, (1, 2))  # the span is no longer the last thing that happened
    model.keep(1, 3)
    feed(model, 1, [0])
    for key in (1, 2):
        model.free(key)


def check_trees_fit_by_their_depth(model: Model, tolerance: float) -> None:
    """A tree may have more nodes than the context has places left, if no path is longer than those."""
    limit = model.capabilities.context_length
    if limit is None or limit > 200:
        return
    before = text(model, limit - 2, 90)
    tokens, parents = text(model, 8, 91), (-1, -1, -1, 0, 0, 1, 1, 2)
    expected = rows_along(model, before, tokens, parents)
    model.begin(1)
    feed(model, 1, before[:-1])
    span = tree_span(model, 1, before[-1:], tokens, parents)
    close(split(model.forward([span]), [9])[0], expected, tolerance)
    model.keep(1, limit - 2, ())
    with pytest.raises(ContractError):
        model.forward([Span(1, limit - 2, tokens[:4], 1, (-1, -1, 1, 2))])
    model.free(1)


def check_trees_are_refused(model: Model) -> None:
    model.begin(1)
    with pytest.raises(ContractError):
        model.forward([Span(1, 0, [0, 0], 1, (-1, -1))])
    model.free(1)


def check_cost(model: Model) -> None:
    curve = model.cost()
    assert 1 in curve.milliseconds
    assert all(milliseconds > 0 for milliseconds in curve.milliseconds.values())
    assert model.cost() is curve or model.cost() == curve
