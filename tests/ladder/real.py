"""Levels 3 and 4: the text on real weights is plain decoding's, whatever is drafted and whoever shares the batch.

`strict` makes a row's logits independent of its company, so equality has no exceptions: no numeric ties, and a model
that drafts for itself is accepted always.
"""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tests.ladder.bed import Bed, Request, answer, digest
from tests.ladder.cases import MODES
from tests.ladder.cells import Cell, Found, Options
from tests.real.loaded import Length

from forerun.bench.agreement import first_difference, row_after
from forerun.result import Result
from forerun.runtime.torch.strict import STRICT_ROWS
from forerun.topology import by_widths

ROOT = Path(__file__).parents[2]
GetBed = Callable[[], Bed]
PROMPT_PASSES = 15
"""Strict passes that read a HumanEval prompt of 115 tokens, the mean."""
RESTARTED, LOADING_PASSES = 10, 100
"""Prompts of the process that level 4 starts, and about what loading its model takes."""
FREE, FREE_SEED = {"temperature": 1.5}, 7
"""Hot enough that two free texts are the same only if they share their randomness."""


def make_bed(options: Options) -> GetBed:
    """The bed, loaded when first asked for."""
    return cache(lambda: Bed(options.dtype, options.num_prompts, options.num_tokens))


def cost(num_prompts: int, num_tokens: int, drafter: str | None, length: Length, batch: int, reads: int = 0) -> float:
    """About how many strict passes a cell takes; what is not accepted always is taken to be accepted twice of three,
    and the adaptive policy to draft three tokens. Passes of a copy, which are not strict, do not count."""
    k, depth = (length, length) if isinstance(length, int) else _size(length)
    batch = min(batch, num_prompts)
    num_batches = math.ceil(num_prompts / batch)
    accepted = 0 if drafter is None else depth if drafter == "self" else min(depth, 2)
    target = num_tokens / (accepted + 1) * math.ceil(batch * (k + 1) / STRICT_ROWS)
    draft = num_tokens / (accepted + 1) * depth * math.ceil(batch / STRICT_ROWS) if drafter == "self" else 0
    return num_batches * (target + draft) + num_prompts * reads * PROMPT_PASSES


def _size(length: str) -> tuple[int, int]:
    """(tokens, depth)."""
    if length == "adaptive":
        return 3, 3
    widths = [int(width) for width in length.split("x")]
    return len(by_widths(widths)), len(widths)


# -- level 3 -----------------------------------------------------------------------------------------------------------


def spread(axes: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """The product of the axes, ordered so that every beginning of it covers values, and pairs of values, evenly: what
    an interruption leaves undone is more of the same."""
    left = list(itertools.product(*axes))
    seen: dict[Any, int] = {}

    def parts(cell: tuple[Any, ...]) -> list[Any]:
        places = list(enumerate(cell))
        return [*places, *itertools.combinations(places, 2)]

    ordered = []
    while left:
        best = min(left, key=lambda cell: sum(seen.get(part, 0) for part in parts(cell)))
        left.remove(best)
        ordered.append(best)
        for part in parts(best):
            seen[part] = seen.get(part, 0) + 1
    return ordered


def cells(bed: GetBed, options: Options) -> list[Cell]:
    num_prompts, num_tokens, modes = options.num_prompts, options.num_tokens, options.modes
    plain = [
        Cell(
            3, f"plain decoding, {mode}", lambda m=mode: check_plain(bed(), m),
            cost(num_prompts, num_tokens, None, 0, 1, reads=int(mode == modes[0])), "passes",
        )
        for mode in modes
    ]  # fmt: skip
    return plain + [
        Cell(
            3, f"{mode}, {drafter}, k={length}, batch {batch}",
            lambda c=(mode, drafter, length, batch): check(bed(), *c),
            cost(num_prompts, num_tokens, drafter, length, batch), "passes",
        )
        for mode, drafter, length, batch in spread([modes, options.drafters, options.lengths, options.batches])
    ]  # fmt: skip


def check_plain(bed: Bed, mode: str) -> Found:
    """Makes the answers that the other cells compare with."""
    plain = bed.plain(mode)
    empty = [f"prompt {number} has no tokens" for number, result in enumerate(plain) if not result.tokens]
    num_tokens = sum(len(one.tokens) for result in plain for one in result.choices)
    return Found(empty, note=f"{len(plain)} answers of {num_tokens} tokens made")


def check(bed: Bed, mode: str, drafter: str, length: Length, batch: int) -> Found:
    plain = bed.plain(mode)
    made = bed.write(bed.all_of(mode), drafter, length, batch)
    failures = differences(bed, plain, made)
    equal = len(plain) - len(failures)
    statistics = [one.speculation for result in made for one in result.choices]
    accepted, proposed = sum(s.num_accepted for s in statistics), sum(s.num_proposed for s in statistics)
    if drafter == "self" and isinstance(length, int) and proposed != accepted:
        failures.append(f"a model drafting for itself was accepted {accepted} times of {proposed}")
    if drafter not in ("lookup", "suffix") and not proposed and any(len(result.tokens) > 2 for result in plain):
        failures.append("nothing was drafted")
    return Found(failures, {"texts": (equal, len(plain)), drafter: (accepted, proposed)})


def differences(bed: Bed, plain: Sequence[Result], results: Sequence[Result], step: int = 1) -> list[str]:
    """How answers 0, step, 2 step, ... differ from plain decoding's, a line each."""
    found = []
    for number in range(0, len(plain), step):
        if answer(plain[number]) == answer(results[number]):
            continue
        name = f"prompt {number} ({bed.tasks[number].name})"
        for one, other in zip(plain[number].choices, results[number].choices, strict=True):
            if answer(one) != answer(other):
                found.append(f"{name}, choice {one.choice}: {_difference(bed, number, one, other)}")
                break
    return found


def _difference(bed: Bed, number: int, one: Result, other: Result) -> str:
    """The first place where tokens differ, and how close the raw row's top two logits are there."""
    place = first_difference(one.tokens, other.tokens)
    if place is not None:
        tokens = [*bed.prompts[number], *one.tokens[:place]]
        second, first = np.sort(row_after(bed.raw_model, tokens, bed.tokenizer.vocabulary_size))[-2:]
        changed = f"{other.tokens[place]} instead of {one.tokens[place]}"
        return f"output token {place} is {changed}, top-2 gap {first - second:.4f}"
    if one.tokens == other.tokens:
        return f"the same tokens, but {other.finish_reason!r} ({other.stop_reason!r}), text or log probabilities differ"
    return f"{len(other.tokens)} tokens instead of {len(one.tokens)}"


# -- level 4 -----------------------------------------------------------------------------------------------------------


def invariance_cells(bed: GetBed, options: Options) -> list[Cell]:
    """Sameness for every mode that names a seed, its prompts read again in other company; and once, difference."""
    num_prompts, num_tokens = options.num_prompts, options.num_tokens
    num_restarted = min(num_prompts, RESTARTED)
    trials: list[tuple[str, Callable[[Bed, str], Found], float]] = [
        ("reversed order", reversed_order, cost(num_prompts, num_tokens, "stack", "adaptive", 3, reads=2)),
        ("cancelled neighbours", cancelled_neighbours, cost(num_prompts, num_tokens, "copy", "2x2x1", 8, reads=1)),
        ("prompts in pieces", in_pieces, cost(num_prompts, num_tokens, "lookup", 3, 3, reads=1)),
        (
            "another process",
            another_process,
            LOADING_PASSES + cost(num_restarted, num_tokens, "self", 2, 2, reads=2),
        ),
    ]
    seeded = [mode for mode in options.modes if "seed" in MODES[mode]]
    same = [
        Cell(4, f"{mode}, {name}", lambda t=trial, m=mode: t(bed(), m), passes, "passes")
        for mode in seeded
        for name, trial, passes in trials
    ]
    run = cost(num_prompts, num_tokens, "lookup", 3, 8)
    return [
        *same,
        Cell(4, "other seeds and choices", lambda: other_seeds(bed()), 3 * run, "passes"),
        Cell(4, "no seed", lambda: unseeded(bed()), 2 * run, "passes"),
    ]


def _compared(bed: Bed, plain: Sequence[Result], results: Sequence[Result], step: int = 1) -> Found:
    failures, num = differences(bed, plain, results, step), len(plain[::step])
    return Found(failures, {"texts": (num - len(failures), num)})


def reversed_order(bed: Bed, mode: str) -> Found:
    made = bed.write(bed.all_of(mode)[::-1], "stack", "adaptive", 3, rereads=True)
    return _compared(bed, bed.plain(mode), made[::-1])


def cancelled_neighbours(bed: Bed, mode: str) -> Found:
    """Every second request is cancelled half-way through its text; what stays must not notice."""
    half = max(bed.num_tokens // 2, 1)
    requests = [Request(r.prompt, r.params, half if r.prompt % 2 else None) for r in bed.all_of(mode)]
    return _compared(bed, bed.plain(mode), bed.write(requests, "copy", "2x2x1", 8, rereads=True), step=2)


def in_pieces(bed: Bed, mode: str) -> Found:
    """A pass reads at most 11 tokens of prompts, beside whatever decodes."""
    made = bed.write(bed.all_of(mode), "lookup", 3, 3, rereads=True, piece=11)
    return _compared(bed, bed.plain(mode), made)


def another_process(bed: Bed, mode: str) -> Found:
    """A process that knows only the requests' own parameters must arrive at the same hash."""
    num = min(len(bed.prompts), RESTARTED)
    asked = [mode, bed.dtype, str(len(bed.prompts)), str(bed.num_tokens), str(num)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.ladder.restart", *asked], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        return Found([f"the process failed: {' | '.join(done.stderr.strip().splitlines()[-2:])}"])
    theirs, ours = done.stdout.split()[-1], digest(bed.plain(mode)[:num])
    failures = [] if theirs == ours else [f"hash {theirs} instead of {ours}"]
    return Found(failures, {"texts": (num if theirs == ours else 0, num)}, f"hash {theirs[:12]}")


def other_seeds(bed: Bed) -> Found:
    """A seed and a choice index name a text; another of either names another."""
    return _distinct(bed, [{"seed": FREE_SEED, "n": 2}, {"seed": FREE_SEED + 1}])


def unseeded(bed: Bed) -> Found:
    return _distinct(bed, [{"n": 2}, {}])


def _distinct(bed: Bed, runs: Sequence[dict[str, Any]]) -> Found:
    """Every prompt's texts of all runs must differ."""
    texts: list[list[tuple[int, ...]]] = [[] for _ in bed.prompts]
    for params in runs:
        requests = [Request(number, {**FREE, **params}) for number in range(len(bed.prompts))]
        for mine, result in zip(texts, bed.write(requests, "lookup", 3, 8), strict=True):
            mine += [one.tokens for one in result.choices]
    same = [number for number, mine in enumerate(texts) if len(set(mine)) < len(mine)]
    failures = [f"prompt {number} has the same text twice" for number in same]
    return Found(failures, {"texts": (len(texts) - len(same), len(texts))})
