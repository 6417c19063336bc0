"""Whether a runtime computes the model that the file holds: `python -m forerun.bench.quality MODEL`.

Perplexity on real text beside llama.cpp's on the same tokens, and how far the rows of both are from those of the same
weights, dequantised, in float32 through transformers' own model code: Kullback-Leibler divergence, the largest
difference of a logit, and how often the likeliest token is the same. Quantised activations are why these are not zero.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forerun.runtime.base import Model
from forerun.types import Span

Window = Sequence[int]
RowsOf = Callable[[Window], Iterator[np.ndarray]]
"""Token ids of a window -> logits of its rows, in order, some [rows, vocab] at a time."""

PIECE = 128
"""Rows looked at together: 152k logits each, as float64."""


def rows_of_model(model: Model) -> RowsOf:
    """The rows of a forerun model, fed in pieces."""

    def rows(window: Window) -> Iterator[np.ndarray]:
        model.begin(0)
        try:
            for start in range(0, len(window), PIECE):
                piece = list(window[start : start + PIECE])
                yield np.asarray(model.forward([Span(0, start, piece, len(piece))]).matrix)
        finally:
            model.free(0)

    return rows


def rows_of_llamacpp(path: Path, num_threads: int, window: int) -> RowsOf:
    """The rows of llama.cpp."""
    from forerun.bench.llamacpp import LlamaCppVariant

    variant = LlamaCppVariant(path, num_threads, window)

    def rows(tokens: Window) -> Iterator[np.ndarray]:
        variant.clear()
        for start in range(0, len(tokens), PIECE):
            piece = tokens[start : start + PIECE]
            yield variant.feed(piece, len(piece))

    return rows


def log_softmax(rows: np.ndarray) -> np.ndarray:
    """Natural logs of the probabilities, float64 [rows, vocab]."""
    wide = rows.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide


def log_probability(row: np.ndarray, token: int) -> float:
    """Natural log of a token's probability; a row at a time stays in the cache."""
    largest = row.max()
    return float(row[token] - largest) - math.log(float(np.exp(row - largest).sum(dtype=np.float64)))


def perplexities(sides: dict[str, RowsOf], windows: Sequence[Window]) -> dict[str, float]:
    """exp of the mean negative log probability of every token but each window's first, by side."""
    totals = dict.fromkeys(sides, 0.0)
    count = 0
    for window in windows:
        targets = np.asarray(window[1:])
        count += len(targets)
        for name, rows_of in sides.items():
            at = 0
            for rows in rows_of(window):
                wanted = targets[at : at + len(rows)]
                totals[name] -= sum(log_probability(row, token) for row, token in zip(rows, wanted, strict=False))
                at += len(rows)
    return {name: math.exp(total / count) for name, total in totals.items()}


def distance(rows_of: RowsOf, reference: RowsOf, windows: Sequence[Window]) -> dict[str, float]:
    """How far rows are from the reference's: mean and largest KL(reference || rows) in nats, the largest difference of
    a centred logit, and the share of rows whose likeliest token is the same."""
    divergences: list[np.ndarray] = []
    largest, num_same = 0.0, 0
    for window in windows:
        for rows, wanted in zip(rows_of(window), reference(window), strict=True):
            one, other = log_softmax(wanted), log_softmax(rows)
            divergences.append((np.exp(one) * (one - other)).sum(axis=1))
            centred = (rows - rows.mean(axis=1, keepdims=True)) - (wanted - wanted.mean(axis=1, keepdims=True))
            largest = max(largest, float(np.abs(centred).max()))
            num_same += int((one.argmax(axis=1) == other.argmax(axis=1)).sum())
    found = np.concatenate(divergences)
    return {
        "rows": len(found),
        "mean_kl": float(found.mean()),
        "largest_kl": float(found.max()),
        "largest_logit_error": largest,
        "top1_agreement": num_same / len(found),
    }


def text_of_this_machine(num_characters: int) -> str:
    """Source of the standard library: real text that every machine has. The same Python has the same text."""
    import argparse as a
    import ast as b
    import asyncio.base_events as c
    import email.message as d
    import json.decoder as e

    text = "\n".join(Path(str(module.__file__)).read_text(encoding="utf-8") for module in (d, a, b, c, e))
    return text[:num_characters]


def cut(tokens: Sequence[int], num_tokens: int, window: int) -> list[Window]:
    """Windows of equal length, `num_tokens` in all or as many as there are."""
    usable = min(num_tokens, len(tokens)) // window * window
    return [tokens[start : start + window] for start in range(0, usable, window)]


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Parse, measure, print one line of JSON."""
    from forerun.loading import load
    from forerun.models.pull import resolve

    parser = argparse.ArgumentParser(prog="python -m forerun.bench.quality", description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=20_000, help="tokens of text for the perplexity")
    parser.add_argument("--window", type=int, default=2_000, help="tokens of one text")
    parser.add_argument("--reference-tokens", type=int, default=512, help="tokens compared with float32; 0: none")
    parser.add_argument("--no-llamacpp", action="store_true")
    given = parser.parse_args(arguments)
    llm = load(given.model, runtime="native")
    path = resolve(given.model).path
    tokens = llm.encode(text_of_this_machine(8 * max(given.tokens, given.reference_tokens)))
    sides = {"forerun": rows_of_model(llm.engine.target)}
    if not given.no_llamacpp:
        from forerun import _native

        sides["llama.cpp"] = rows_of_llamacpp(path, _native.num_threads(), given.window)
    found: dict[str, Any] = {"model": given.model}
    if given.tokens:
        windows = cut(tokens, given.tokens, given.window)
        found |= {"tokens": len(windows) * given.window, "window": given.window}
        found["perplexity"] = perplexities(sides, windows)
    if given.reference_tokens:
        reference = load(given.model, runtime="torch", dtype="float32")
        windows = cut(tokens, given.reference_tokens, min(given.window, given.reference_tokens))
        wanted = rows_of_model(reference.engine.target)
        found["distance"] = {name: distance(rows_of, wanted, windows) for name, rows_of in sides.items()}
    print(json.dumps(found))
    return found


if __name__ == "__main__":
    main()
