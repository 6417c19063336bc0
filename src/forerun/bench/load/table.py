"""The figures of a load test as a person reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from forerun.bench.load.check import KINDS


def print_load(document: Mapping[str, Any], file: TextIO) -> None:
    """Where it was measured, a line for each level and server, and what is wrong with texts."""
    for line in load_lines(document):
        print(line, file=file)


def load_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """The document in words."""
    machine, probe, load = document["hardware"], document["probe"], document["load"]
    mix, settings = load["mix"], document["settings"]
    yield f"command   {document['command']}"
    yield f"commit    {document['commit']}, {document['date']}"
    yield f"hardware  {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB"
    yield (
        f"memory    {probe['median']:.1f} GB/s (median of {probe['readings']} probes, {probe['low']:.1f} to "
        f"{probe['high']:.1f})"
    )
    yield (
        f"requests  {mix['requests']} different ones, {mix['greedy']} greedy and the others seeded at temperature 1: "
        + ", ".join(f"{count} {kind}" for kind, count in mix["kinds"].items())
        + (f" ({mix['left_out']} too long for the model were left out)" if mix["left_out"] else "")
    )
    yield f"blocks    {settings['minutes']:g} minutes for each level and server, in {settings['rounds']} turns"
    for name, server in load["servers"].items():
        yield f"server    {name}: {server['command']}"
    for clients, level in load["levels"].items():
        yield f"\n{clients} clients"
        yield (
            f"{'server':14} {'tokens/s':>9} {'requests':>8} {'first token ms':>15} {'ms/token':>13} "
            f"{'gap of tokens':>15} {'gap of chunks':>15} {'errors':>6} {'memory MB':>22} {'cores':>11}"
        )
        for name, figure in level["servers"].items():
            yield _row(name, figure)
        for name, figure in level["servers"].items():
            yield f"  {name}: {_texts(figure['texts'])}; {figure['cut']} cut at the end of a block"
            for text in figure["error_examples"]:
                yield f"  {name}, error: {text}"
            for fault in figure["texts"].get("faults", ()):
                yield (
                    f"  {name}, {fault['kind']}: request {fault['request']} ({fault['prompt_kind']}, seed "
                    f"{fault['seed']}, prompt …{fault['prompt'][-40:]!r}), token {fault['token']}, character "
                    f"{fault['position']}: {fault['detail']}"
                )
        for key, found in level.items():
            for name, ratio in found.items() if key != "servers" else ():
                by_block = ", ".join(f"{one:.2f}" for one in ratio["by_block"])
                first = key.removesuffix("_over")
                yield f"  {first} over {name}: {ratio['ratio']:.2f}x tokens/s (by block: {by_block})"
    yield f"\ntexts of forerun against plain decoding: {document['verdict']['texts']}"
    for name, reason in document["not_run"].items():
        yield f"not run: {name}: {reason}"
    if document["interrupted"]:
        yield "interrupted: the figures cover what was measured until then"


def _row(name: str, figure: Mapping[str, Any]) -> str:
    memory, cores = figure["memory_mb"], figure["cpu_cores"]
    told = "-" if memory is None else f"{memory['start']:.0f} {memory['mid']:.0f} {memory['end']:.0f}"
    first = _pair(figure["time_to_first_token_ms"])
    used = "-" if cores["server"] is None else f"{cores['server']:.2f}+{cores['clients']:.2f}"
    return (
        f"{name:14} {figure['tokens_per_s']:9.1f} {figure['requests']:8d} {first:>15} "
        f"{_pair(figure['request_token_ms']):>13} {_pair(figure['token_gap_ms']):>15} "
        f"{_pair(figure['chunk_gap_ms']):>15} {figure['errors']:6d} {told:>22} {used:>11}"
    )


def _pair(found: Mapping[str, Any]) -> str:
    """Median and 99th percentile."""
    return "-" if found["p50"] is None else f"{found['p50']:.0f} / {found['p99']:.0f}"


def _texts(texts: Mapping[str, Any]) -> str:
    if texts["must_equal"]:
        wrong = ", ".join(f"{texts[kind]} {kind}" for kind in KINDS)
        return f"{texts['equal']} of {texts['compared']} texts are plain decoding's ({wrong})"
    return f"{texts['equal']} of {texts['compared']} greedy texts are forerun's"
