"""Acceptance by workload and temperature, beside the 70 to 85 % that is usually quoted.

Temperature 0 is greedy, where a draft token is kept if it is the target's argmax; above it tokens are sampled, and kept
by the exact rule. A depth counts where all before it were kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

import numpy as np

from forerun.bench.cells.batches import Block, KeptPrompts, run_block
from forerun.bench.cells.figures import speculation_of
from forerun.bench.doubts import MIN_PROMPTS
from forerun.bench.rounds import Prompts, Report
from forerun.control.policy import FixedLength
from forerun.drafting import Drafter
from forerun.llm import LLM
from forerun.sampling import SamplingParams

TEMPERATURES = (0.0, 0.3, 0.7, 1.0, 1.2)
QUOTED = (0.70, 0.85)
"""The acceptance that is usually quoted, from and to."""
NUM_RESAMPLES = 2000


def run_acceptance(
    llm: LLM,
    drafter: Drafter,
    prompts: Prompts,
    k: int,
    num_tokens: int,
    temperatures: Sequence[float] = TEMPERATURES,
    seed: int | None = None,
    report: Report = lambda what, done, total: None,
) -> dict[str, Any]:
    """{workload: {temperature: figures}}, each prompt written once at each temperature. Ctrl-C ends it; what there is
    is returned."""
    found: dict[str, Any] = {}
    kept, interrupted = KeptPrompts(llm.engine.target), False
    total, done = len(prompts) * len(temperatures), 0
    try:
        for workload, of_workload in prompts.items():
            for temperature in temperatures:
                report(f"{workload}: temperature {temperature}", done, total)
                params = SamplingParams(temperature=temperature, seed=seed, max_tokens=num_tokens, ignore_eos=True)
                blocks = []
                for prompt in of_workload:  # one at a time: prompts differ, and so do their acceptances
                    kept.read(prompt)
                    blocks.append(run_block(llm, drafter, FixedLength(k), [prompt], params, kept))
                figures = {name: value for name, value in speculation_of(blocks).items() if name != "share"}
                found.setdefault(workload, {})[f"{temperature:g}"] = {
                    "rule": "greedy" if temperature == 0 else "sampled" if seed is None else "coupled by a seed",
                    **figures, "interval": _interval(blocks), "prompts": len(of_workload),
                }  # fmt: skip
                done += 1
            kept.drop()
    except KeyboardInterrupt:
        interrupted = True
    finally:
        kept.drop()
    return {"k": k, "quoted": list(QUOTED), "workloads": found, "interrupted": interrupted}


def _interval(blocks: Sequence[Block]) -> list[float]:
    """A 95 % bootstrap interval over prompts of the acceptance rate, accepted / proposed of all of them: one that is
    badly drafted for has more rounds, and counts for more. [] where fewer than MIN_PROMPTS had any draft."""
    drafted = [
        (sum(accepted * times for (_, _, accepted, _), times in block.rounds.items()), proposed)
        for block in blocks
        if (proposed := sum(proposed * times for (_, proposed, _, _), times in block.rounds.items()))
    ]
    if len(drafted) < MIN_PROMPTS:
        return []
    counts = np.asarray(drafted, np.float64)  # [prompts, 2]
    picks = np.random.default_rng(0).integers(0, len(counts), (NUM_RESAMPLES, len(counts)))
    accepted, proposed = counts[picks].sum(axis=1).T
    return [float(q) for q in np.quantile(accepted / proposed, (0.025, 0.975))]


def beside_quoted(rate: float | None, quoted: Sequence[float]) -> str:
    """Whether a rate lies "below", "within" or "above" what is quoted."""
    low, high = quoted
    return "-" if rate is None else "below" if rate < low else "above" if rate > high else "within"


def print_acceptance(document: Mapping[str, Any], file: TextIO) -> None:
    """The table."""
    for line in acceptance_lines(document["acceptance"]):
        print(line, file=file)


def acceptance_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """A line for each workload and temperature."""
    low, high = found["quoted"]
    yield f"\nacceptance at k = {found['k']}; {100 * low:.0f} to {100 * high:.0f} % is usually quoted"
    yield (
        f"{'workload':10} {'temperature':>11} {'rule':18} {'accepted (95 %)':>20} {'quoted':>7} {'tokens/pass':>11}"
        "  by depth %"
    )
    for workload, rows in found["workloads"].items():
        for temperature, row in rows.items():
            rate, interval = row["acceptance_rate"], row["interval"]
            where = beside_quoted(rate, found["quoted"])
            depths = " ".join(f"{100 * depth:.0f}" for depth in row["acceptance_by_depth"])
            percent = "-"
            if rate is not None:
                percent = f"{100 * rate:.0f} %"
            if rate is not None and interval:
                percent += f" ({100 * interval[0]:.0f}-{100 * interval[1]:.0f})"
            passes = "-" if row["tokens_per_pass"] is None else f"{row['tokens_per_pass']:.2f}"
            yield f"{workload:10} {temperature:>11} {row['rule']:18} {percent:>20} {where:>7} {passes:>11}  {depths}"
