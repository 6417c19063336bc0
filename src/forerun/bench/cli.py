"""`forerun bench`: parse, refuse what can be refused before weights load, measure, print, write.

The report goes to standard output, its last line is the document as one line of JSON; progress goes to standard error.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from forerun.bench.cells.definitions import CELLS
from forerun.bench.flags import ACCEPTANCE, LOAD_ROUNDS, adjusted, is_given, modes_of
from forerun.bench.load.run import LoadSettings, measure_load
from forerun.bench.load.table import print_load
from forerun.bench.models import Loaded, load_all_peers, load_models, models_of
from forerun.bench.modes import Bench, Printer, measure_mode
from forerun.bench.page.page import check_page, write_page
from forerun.bench.peers import PEERS, check_peers
from forerun.bench.plot import check_plot, write_plot
from forerun.bench.report import print_report
from forerun.bench.rounds import Prompts, Report
from forerun.bench.run import Settings, bench
from forerun.bench.variants import ADAPTIVE, DRAFTERS
from forerun.bench.workloads import WORKLOADS, load_workload
from forerun.checks import listed, some_of, whole, writable
from forerun.errors import ParameterError
from forerun.runtime.cost import ROWS
from forerun.sampling import SamplingParams

INTERRUPTED, DIFFERENT = 130, 1
MODELS, RUNS, MODES, OUTPUT = "Models", "What is measured", "Measured instead of workloads", "Output"


def _flag(name: str, help: str, panel: str, metavar: str | None = None) -> Any:
    return typer.Option(name, help=help, rich_help_panel=panel, metavar=metavar)


def bench_command(
    context_of_flags: typer.Context,
    target: Annotated[str, _flag("--target", "The target model", MODELS, "MODEL")],
    workloads: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORKLOAD]...", help=f"Any of {', '.join(WORKLOADS)} (default: all)", show_default=False
        ),
    ] = None,
    draft: Annotated[str | None, _flag("--draft", "The draft model, of the same vocabulary", MODELS, "MODEL")] = None,
    drafters: Annotated[
        str | None,
        typer.Option(
            "--drafters",
            "--drafter",
            rich_help_panel=RUNS,
            metavar="LIST",
            help=f"Some of {','.join(DRAFTERS)}: the draft as stored, rounded to 4 bits (native runtime), going on "
            "where suffix ends, two that copy earlier text, suffix and the draft (as stored, if both are there) under "
            "the adaptive policy (default: model,lookup; lookup without --draft)",
        ),
    ] = None,
    k: Annotated[
        str,
        _flag(
            "--k", "Speculation lengths to try, each 1 or more; one with --depth (8) or --acceptance (4)", RUNS, "LIST"
        ),
    ] = "1,2,3,4,5,6",
    max_tokens: Annotated[
        int,
        _flag(
            "--max-tokens", "Tokens per prompt: 2 or more; modes have their own default; end of text is ignored", RUNS
        ),
    ] = 128,
    prompts: Annotated[
        int,
        _flag(
            "--prompts", "Prompts per workload (sets of them in --cells: 3; requests in --load: 256): 1 or more", RUNS
        ),
    ] = 6,
    rounds: Annotated[int, _flag("--rounds", "Times every prompt meets every variant: 1 or more", RUNS)] = 1,
    context: Annotated[
        int, _flag("--context", "Cached tokens behind which t(rows) is measured: 1 or more", RUNS)
    ] = 128,
    temperature: Annotated[float, _flag("--temperature", "0 or more; 0 is greedy", RUNS)] = 0.0,
    seed: Annotated[int | None, _flag("--seed", "Makes sampled texts comparable", RUNS)] = None,
    device: Annotated[str, _flag("--device", "auto, cpu, cuda or cuda:N", MODELS)] = "auto",
    dtype: Annotated[str, _flag("--dtype", "auto, float32, bfloat16 or float16, for all models", MODELS)] = "auto",
    quantize: Annotated[
        str | None, _flag("--quantize", "Round the target's float weights to q4, q8_0 or bf16", MODELS, "FORM")
    ] = None,
    runtime: Annotated[str, _flag("--runtime", "native, torch or auto, as for generate", MODELS)] = "auto",
    draft_runtime: Annotated[str, _flag("--draft-runtime", "The same, for the draft model", MODELS)] = "auto",
    draft_context: Annotated[
        int | None, _flag("--draft-ctx", "Latest tokens that the draft model sees: 1 or more", MODELS, "N")
    ] = None,
    draft_vocabulary: Annotated[
        int | None, _flag("--draft-vocabulary", "Let the draft model propose only the N most used tokens", MODELS, "N")
    ] = None,
    draft_min_confidence: Annotated[
        float, _flag("--draft-min-confidence", "End a draft early below this confidence, 0 to 1", MODELS, "P")
    ] = 0.0,
    strict: Annotated[bool, _flag("--strict", "Pad every pass to one shape: text equal bit for bit", MODELS)] = False,
    peers: Annotated[str, _flag("--peers", f"none, or some of {','.join(PEERS)}", RUNS, "LIST")] = "none",
    cells: Annotated[
        str | None,
        _flag(
            "--cells",
            f"Measure that adaptive drafting is never slower: all, or some of {', '.join(CELLS)}",
            MODES,
            "LIST",
        ),
    ] = None,
    minutes: Annotated[
        float,
        _flag("--minutes", "About how long each cell takes, each depth and pattern, or each server of a level", MODES),
    ] = 5.0,
    append: Annotated[
        Path | None,
        _flag(
            "--append",
            "Keep the cells' blocks in a file of JSON lines, and pool them with those it has",
            MODES,
            "FILE.jsonl",
        ),
    ] = None,
    phases: Annotated[
        bool, _flag("--phases", "Follow steps of load (1, 8, 1, 12 requests) and of content", MODES)
    ] = False,
    depth: Annotated[
        str | None,
        _flag("--depth", "Measure copying drafters behind so many tokens, for example 512,2048,8192", MODES, "LIST"),
    ] = None,
    pattern: Annotated[str, _flag("--pattern", "What those tokens are: some of random,periodic", MODES, "LIST")] = (
        "random,periodic"
    ),
    acceptance: Annotated[
        bool, _flag("--acceptance", "Tabulate acceptance by workload and temperature", MODES)
    ] = False,
    load: Annotated[
        str | None,
        _flag(
            "--load",
            "Servers under so many clients, every text compared with plain decoding's: 1,4,16,64",
            MODES,
            "LIST",
        ),
    ] = None,
    servers: Annotated[
        list[str] | None,
        _flag(
            "--server",
            "forerun, or NAME=COMMAND with {port} in it (also {clients}, {context}, {target}, {draft}, {python}), or "
            "NAME=URL, with pid=N behind it if known; of several each has its turn (default: forerun)",
            MODES,
            "SERVER",
        ),
    ] = None,
    texts: Annotated[
        Path | None,
        _flag(
            "--texts", "Keep plain texts here for the next load test; --minutes 0 does only that", MODES, "FILE.jsonl"
        ),
    ] = None,
    report: Annotated[
        Path | None, _flag("--report", "Write a self-contained page with all figures and plots", OUTPUT, "FILE.html")
    ] = None,
    plot: Annotated[Path | None, _flag("--plot", "Write a picture of the speed-ups", OUTPUT, "FILE.png")] = None,
    output: Annotated[Path | None, _flag("--output", "Write the document to a file too", OUTPUT, "FILE.json")] = None,
    mirror: Annotated[
        bool | None,
        _flag("--mirror/--no-mirror", "Allow missing models to come from the package-index mirror", MODELS),
    ] = None,
) -> None:
    """Compare plain decoding, every drafter at every k, and peers, in interleaved rounds on real workloads.

    The last line of standard output is one JSON document.
    """
    modes = modes_of(context_of_flags, {
        "cells": cells, "minutes": minutes, "append": append, "phases": phases, "depth": depth, "pattern": pattern,
        "acceptance": acceptance, "load": load,
    })  # fmt: skip
    wanted = adjusted(modes, context_of_flags, {"drafters": drafters, "k": k, "prompts": prompts, "draft": draft})
    if modes.load:
        whole("prompts", wanted["prompts"], 1, None, "a whole number of at least 1")
        _writable({"output": output, "texts": texts})
        names = tuple(servers or ["forerun"])
        asked_for = LoadSettings(
            target, draft, modes.load, names, minutes, _rounds(context_of_flags, rounds, len(names)), wanted["prompts"],
            wanted["drafters"], draft_context, draft_vocabulary, None if texts is None else str(texts),
        )  # fmt: skip
        with _progress() as tell:
            found = measure_load(asked_for, _command(), tell, mirror)
        _finish(found, print_load, output)
        if found["verdict"]["texts"] == "different":
            raise typer.Exit(DIFFERENT)
        return
    settings = Settings(
        workloads=tuple(dict.fromkeys(workloads or WORKLOADS)),
        target=target,
        draft=draft,
        drafters=wanted["drafters"] or _drafters(drafters, draft),
        k=_lengths(wanted["k"]),
        max_tokens=max_tokens,
        prompts=wanted["prompts"],
        rounds=rounds,
        temperature=temperature,
        seed=seed,
        device=device,
        dtype=dtype,
        quantize=quantize,
        draft_vocabulary=draft_vocabulary,
        draft_min_confidence=draft_min_confidence,
        strict=strict,
        runtime=runtime,
        draft_runtime=draft_runtime,
        draft_context=draft_context,
        context=context,
        peers=listed(peers) if peers != "none" else (),
    )
    _check(settings, {"plot": plot, "output": output, "append": append, "report": report})
    check_plot(plot)
    check_page(report)
    asked = modes.name
    if asked is None and settings.drafters == (ADAPTIVE,) and is_given(context_of_flags, "k"):
        raise ParameterError("k", "adaptive chooses it every round", "leave it out, or add another drafter")
    tasks = {name: load_workload(name, settings.prompts) for name in settings.workloads if asked in (None, ACCEPTANCE)}
    loaded = load_models(settings, mirror)
    with loaded.llm as llm:
        ids = {name: [task.encode(llm) for task in of_workload] for name, of_workload in tasks.items()}
        show: Printer = print_report
        if asked is None:
            document = _measure(loaded, settings, ids)
        else:
            most = max_tokens if is_given(context_of_flags, "max_tokens") else None
            with _progress() as tell:
                document, show = measure_mode(Bench(loaded, settings, _command(), tell), modes, ids, most)
    _finish(document, show, output, plot, report)


def _finish(
    document: dict[str, Any], show: Printer, output: Path | None, plot: Path | None = None, page: Path | None = None
) -> None:
    """Print the document and write what was asked for."""
    show(document, sys.stdout)
    text = json.dumps(document, allow_nan=False)
    print(text, flush=True)
    if output is not None:
        output.write_text(text + "\n", encoding="utf-8")
    if plot is not None and document["workloads"]:
        write_plot(document, plot)
    if page is not None:
        write_page(document, page)
    if document["interrupted"]:
        raise typer.Exit(INTERRUPTED)


def _rounds(context: Any, given: int, num_servers: int) -> int:
    """Turns of a load test: two where several servers alternate, unless told."""
    whole("rounds", given, 1, None, "a whole number of at least 1")
    return given if is_given(context, "rounds") or num_servers == 1 else LOAD_ROUNDS


def _lengths(text: str) -> tuple[int, ...]:
    """The speculation lengths of a list, in order."""
    need = "whole numbers of at least 1, for example --k 1,2,4 (plain decoding is always measured)"
    items = listed(text)
    if not items or not all(item.isdecimal() and int(item) >= 1 for item in items):
        raise ParameterError("k", f"{text!r} is not allowed", need)
    return tuple(sorted({int(item) for item in items}))


def _drafters(text: str | None, draft: str | None) -> tuple[str, ...]:
    if text is None:
        return ("model", "lookup") if draft is not None else ("lookup",)
    return some_of("drafters", text, DRAFTERS)


def _check(settings: Settings, written: Mapping[str, Path | None]) -> None:
    """Refuse what can be refused before any model is looked at."""
    whole("max_tokens", settings.max_tokens, 2, None, "a whole number of at least 2: decoding begins after the first")
    whole("prompts", settings.prompts, 1, None, "a whole number of at least 1")
    whole("context", settings.context, 1, None, "a whole number of tokens, at least 1")
    whole("rounds", settings.rounds, 1, None, "a whole number of at least 1")
    SamplingParams(temperature=settings.temperature, seed=settings.seed)
    check_peers(settings.peers, settings.draft)
    models = models_of(settings.drafters, settings.draft)
    if models and settings.draft is None:
        raise ParameterError(
            "drafters", f"{models[0]!r} needs a draft model", "give --draft MODEL, or --drafters lookup"
        )
    if settings.draft is not None and not models and "assisted" not in settings.peers:
        raise ParameterError(
            "draft", "would be left unused", "add model, requantised or adaptive to --drafters, or assisted to --peers"
        )
    _writable(written)


def _writable(written: Mapping[str, Path | None]) -> None:
    for name, path in written.items():
        if path is not None:
            writable(name, path)


def _measure(loaded: Loaded, settings: Settings, prompts: Prompts) -> dict[str, Any]:
    """Load the peers beside forerun, and run the bench."""
    longest = max(len(prompt) for of_workload in prompts.values() for prompt in of_workload)
    most = max(longest + settings.max_tokens, settings.context + max(ROWS))
    peers, not_run = load_all_peers(settings, loaded, most)
    for name, reason in not_run.items():  # now, while the run can still be ended, and at its end once more
        print(f"not run: {name}: {reason}", file=sys.stderr, flush=True)
    with _progress() as report:
        return bench(
            loaded.llm, loaded.drafts, settings, prompts,
            weights=loaded.weights(settings), peers=peers, not_run=not_run, command=_command(), report=report,
        )  # fmt: skip


@contextmanager
def _progress() -> Iterator[Report]:
    """Progress on standard error, drawn between measurements only: no thread runs beside them."""
    if not sys.stderr.isatty():
        last = [""]

        def tell(what: str, done: int, total: int) -> None:
            stage = what.partition(":")[0]
            if stage != last[0]:
                print(f"{done}/{total} {stage}", file=sys.stderr, flush=True)
                last[0] = stage

        yield tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True) as bar:
        task = bar.add_task("")

        def draw(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total, refresh=True)

        yield draw


def _command() -> str:
    return shlex.join(["forerun", *sys.argv[1:]])
