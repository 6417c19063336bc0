"""What copying earlier text costs and gains by how much text there is.

Prompts are random ids, where nothing matches, or periodic ones, where everything does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TextIO

from forerun.bench.cells.contenders import fixed, unfixed
from forerun.bench.cells.figures import cell_figures
from forerun.bench.cells.run import Measuring, check_prompts, run_cell
from forerun.bench.cells.table import interval
from forerun.bench.summary import PLAIN
from forerun.bench.workloads import RandomIds
from forerun.control import AdaptiveLength
from forerun.drafting import COPIERS, Drafter
from forerun.llm import LLM
from forerun.randomness import Noise
from forerun.runtime.base import Rows
from forerun.sampling import Distribution, SamplingParams
from forerun.types import FinishReason, Plan

PATTERNS = ("random", "periodic")
PERIOD = 2
NUM_PROPOSALS = 200
COLUMNS = ("depth", "pattern", "side", "tokens/s", "over plain (99 %)", "first ms", "each ms")
"""Of the table; the last two are a proposal's own time."""


def pattern_ids(pattern: str, depth: int, vocabulary_size: int) -> list[int]:
    """`depth` token ids: random ones, or two of them in turn. More of them begin with the same ones."""
    ids = RandomIds(7, depth).ids(vocabulary_size)
    return ids if pattern == "random" else [ids[i % PERIOD] for i in range(depth)]


def run_depths(
    llm: LLM, names: Sequence[str], places: Sequence[tuple[int, str]], k: int, params: SamplingParams, how: Measuring
) -> dict[str, Any]:
    """{depth: {pattern: figures}} for each place (depth, pattern): tokens per second of plain decoding, of each drafter
    at `k` and of the adaptive policy with the first of them, and what the drafters' own work takes. The budget of `how`
    is for each place."""
    target = llm.engine.target
    size, limit = llm.engine.vocabulary_size, target.capabilities.context_length
    found: dict[str, Any] = {}
    interrupted = False
    for depth, pattern in places:
        text = pattern_ids(pattern, depth + NUM_PROPOSALS, size)
        prompt, behind = text[:depth], text[depth:]
        check_prompts(f"depth {depth}", [[prompt]], params.max_tokens or 0, limit)
        how.report(f"{depth} tokens, {pattern}", 0, 1)
        cost = {name: drafter_cost(COPIERS[name](), prompt, behind, size, k) for name in names}
        adaptive = unfixed(lambda: (COPIERS[names[0]](), AdaptiveLength.of(target)))
        run = run_cell(llm, [*adaptive, *(fixed(name, k, COPIERS[name]()) for name in names)], [[prompt]], params, how)
        if run.entries:
            found.setdefault(str(depth), {})[pattern] = {"drafting": cost, **cell_figures(run.entries)}
        interrupted = run.interrupted
        if interrupted:
            break
    return {"k": k, "depths": found, "interrupted": interrupted}


@dataclass
class Text:
    """A sequence as a drafter sees it, without an engine."""

    tokens: list[int]
    vocabulary_size: int
    sequence_id: int = 0
    params: SamplingParams = field(default_factory=SamplingParams)
    num_missing: int = 1
    finish_reason: FinishReason | None = None

    @property
    def prompt_length(self) -> int:
        return len(self.tokens)

    @property
    def noise(self) -> Noise:
        raise NotImplementedError("text that is copied draws nothing")

    def distribution(self, rows: Rows, index: int, prefix: tuple[int, ...] = ()) -> Distribution:
        raise NotImplementedError("text that is copied has no rows")


def drafter_cost(
    drafter: Drafter, prompt: Sequence[int], behind: Sequence[int], vocabulary_size: int, k: int
) -> dict[str, float]:
    """Milliseconds of the first proposal, which takes in the prompt, and of each one after it, as the text grows by
    the tokens `behind` the prompt."""
    text = Text(list(prompt), vocabulary_size)
    seconds = []
    for token in [None, *behind]:
        if token is not None:
            text.tokens.append(token)
        start = perf_counter()
        drafter.prospects([text], [k])
        drafter.propose([text], [Plan(k)])
        seconds.append(perf_counter() - start)
    drafter.release(0)
    return {"first_ms": 1e3 * seconds[0], "each_ms": 1e3 * sum(seconds[1:]) / max(len(seconds) - 1, 1)}


def print_depths(document: Mapping[str, Any], file: TextIO) -> None:
    """A line for each depth, pattern and side."""
    print(file=file)
    for depth, pattern, side, speed, over, *own in (COLUMNS, *rows_of(document["depth"])):
        cells = " ".join(f"{cell:>8}" for cell in own)
        print(f"{depth:>6} {pattern:9} {side:16} {speed:>8} {over:>22} {cells}", file=file)


def rows_of(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A line of COLUMNS for each depth, pattern and side: the page shows the same."""
    rows: list[tuple[str, ...]] = []
    for depth, patterns in found["depths"].items():
        for pattern, figures in patterns.items():
            for name, figure in figures["contenders"].items():
                cost = figures["drafting"].get(name.partition(" ")[0])
                own = (f"{cost['first_ms']:.1f}", f"{cost['each_ms']:.3f}") if cost else ("-", "-")
                over = interval(figure["over_plain"]["decoding"]) if name != PLAIN else "1"
                rows.append((depth, pattern, name, f"{figure['tokens_per_s']:.1f}", over, *own))
    return rows
