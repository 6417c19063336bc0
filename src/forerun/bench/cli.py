"""`forerun bench`: parse, refuse what can be refused before weights load, measure, print, write.

The report goes to standard output, its last line is the document as one line of JSON; progress goes to standard error.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from forerun.bench.models import Loaded, load_all_peers, load_models
from forerun.bench.peers import PEERS, check_peers
from forerun.bench.plot import check_plot, write_plot
from forerun.bench.report import print_report
from forerun.bench.rounds import Prompts, Report
from forerun.bench.run import Settings, bench
from forerun.bench.variants import DRAFTERS, NEED_MODELS
from forerun.bench.workloads import WORKLOADS, load_workload
from forerun.checks import whole
from forerun.errors import ParameterError
from forerun.runtime.cost import ROWS
from forerun.sampling import SamplingParams

INTERRUPTED = 130
MODELS, RUNS, OUTPUT = "Models", "What is measured", "Output"


def _flag(name: str, help: str, panel: str, metavar: str | None = None) -> Any:
    return typer.Option(name, help=help, rich_help_panel=panel, metavar=metavar)


def bench_command(
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
        _flag(
            "--drafters",
            "Some of model,requantised,stack,lookup,suffix: the draft as stored, rounded to 4 bits (native runtime), "
            "with suffix, prompt lookup, suffix matches (default: model,lookup; lookup without --draft)",
            RUNS,
            "LIST",
        ),
    ] = None,
    k: Annotated[str, _flag("--k", "Speculation lengths to try, each 1 or more", RUNS, "LIST")] = "1,2,3,4,5,6",
    max_tokens: Annotated[
        int, _flag("--max-tokens", "Tokens per prompt: 2 or more; end of text is ignored", RUNS)
    ] = 128,
    prompts: Annotated[int, _flag("--prompts", "Prompts per workload: 1 or more", RUNS)] = 6,
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
    settings = Settings(
        workloads=tuple(dict.fromkeys(workloads or WORKLOADS)),
        target=target,
        draft=draft,
        drafters=_drafters(drafters, draft),
        k=_lengths(k),
        max_tokens=max_tokens,
        prompts=prompts,
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
        peers=_items(peers) if peers != "none" else (),
    )
    _check(settings, plot, output)
    tasks = {name: load_workload(name, prompts) for name in settings.workloads}
    loaded = load_models(settings, mirror)
    with loaded.llm as llm:
        ids = {name: [llm.encode(task.prompt) for task in of_workload] for name, of_workload in tasks.items()}
        document = _measure(loaded, settings, ids)
    print_report(document, sys.stdout)
    text = json.dumps(document, allow_nan=False)
    print(text, flush=True)
    if output is not None:
        output.write_text(text + "\n", encoding="utf-8")
    if plot is not None and document["workloads"]:
        write_plot(document, plot)
    if document["interrupted"]:
        raise typer.Exit(INTERRUPTED)


def _items(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item.strip() for item in text.split(",") if item.strip()))


def _lengths(text: str) -> tuple[int, ...]:
    """The speculation lengths of a list, in order."""
    need = "whole numbers of at least 1, for example --k 1,2,4 (plain decoding is always measured)"
    items = _items(text)
    if not items or not all(item.isdecimal() and int(item) >= 1 for item in items):
        raise ParameterError("k", f"{text!r} is not allowed", need)
    return tuple(sorted({int(item) for item in items}))


def _drafters(text: str | None, draft: str | None) -> tuple[str, ...]:
    if text is None:
        return ("model", "lookup") if draft is not None else ("lookup",)
    names = _items(text)
    unknown = next((name for name in names if name not in DRAFTERS), None)
    if unknown is not None or not names:
        raise ParameterError("drafters", f"{unknown or text!r} is not known", f"some of {','.join(DRAFTERS)}")
    return names


def _check(settings: Settings, plot: Path | None, output: Path | None) -> None:
    """Refuse what can be refused before any model is looked at."""
    whole("max_tokens", settings.max_tokens, 2, None, "a whole number of at least 2: decoding begins after the first")
    whole("prompts", settings.prompts, 1, None, "a whole number of at least 1")
    whole("context", settings.context, 1, None, "a whole number of tokens, at least 1")
    whole("rounds", settings.rounds, 1, None, "a whole number of at least 1")
    SamplingParams(temperature=settings.temperature, seed=settings.seed)
    check_peers(settings.peers)
    models = [name for name in settings.drafters if name in NEED_MODELS]
    if models and settings.draft is None:
        raise ParameterError(
            "drafters", f"{models[0]!r} needs a draft model", "give --draft MODEL, or --drafters lookup"
        )
    if settings.draft is not None and not models and "assisted" not in settings.peers:
        raise ParameterError(
            "draft", "would be left unused", "add model, requantised or stack to --drafters, or assisted to --peers"
        )
    for name, path in (("plot", plot), ("output", output)):
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise ParameterError(name, f"{str(path)!r} cannot be written", "name a file in a directory that exists")
    check_plot(plot)


def _measure(loaded: Loaded, settings: Settings, prompts: Prompts) -> dict[str, Any]:
    """Load the peers beside forerun, and run the bench."""
    longest = max(len(prompt) for of_workload in prompts.values() for prompt in of_workload)
    most = max(longest + settings.max_tokens, settings.context + max(ROWS))
    peers, not_run = load_all_peers(settings, loaded, most)
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
