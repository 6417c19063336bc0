"""What of a plan's figures is noise, or rests on too little, said in words beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from forerun.bench.doubts import MIN_PROMPTS, SPREAD
from forerun.bench.summary import is_noise


def doubts(document: Mapping[str, Any], plain_round_ms: Sequence[float]) -> Iterator[str]:
    """The doubts about a plan that was measured. `plain_round_ms`: a plain round on each prompt, at one speed."""
    num_prompts = len(plain_round_ms)
    if num_prompts < MIN_PROMPTS:
        told = "1 prompt tells" if num_prompts == 1 else f"{num_prompts} prompts tell"
        yield f"{told} little about others: --num-prompts {MIN_PROMPTS} or more, or more prompts of yours"
    low, high = min(plain_round_ms), max(plain_round_ms)
    if high > SPREAD * low:
        yield (
            f"a plain round took {low:.1f} to {high:.1f} ms on different prompts, at one speed of the machine: "
            f"measured differences below {100 * (high / low - 1):.0f} % mean nothing"
        )
    for part in ("predicted", "measured"):
        noisy = [
            f"{name} k = {', '.join(ks)}"
            for name, found in document[part].items()
            if (ks := [k for k, one in found.items() if is_noise(one["speedup"], one["tokens_per_pass"])])
        ]
        if noisy:
            yield (
                f"noise: {part} speed-ups above the tokens of a round (a pass of more rows is not cheaper than one of "
                f"a single row): {'; '.join(noisy)}"
            )
