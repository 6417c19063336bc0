"""The load test: levels of clients, servers in turn at each, and what became of every text."""

from __future__ import annotations

import gc
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from forerun import loading
from forerun.bench.hardware import provenance
from forerun.bench.load.block import Block, Turns, run_block
from forerun.bench.load.check import check_all
from forerun.bench.load.client import Answer
from forerun.bench.load.figures import compared_with, level_figures, text_figures
from forerun.bench.load.mix import Ask, make_mix, renderer
from forerun.bench.load.servers import Server, ServerSpec, own_command, parse_server
from forerun.bench.load.texts import Plain, TextFile, identity, missing, write_plain
from forerun.bench.probe import BandwidthProbe, ProbeSummary
from forerun.bench.rounds import Report
from forerun.errors import ForerunError, InputError
from forerun.models.store import ModelFiles, home

PAGE = 256
"""Places of a client's context are a multiple of it."""


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """Everything a load test depends on. `minutes` is for each level and server, in `rounds` turns; `servers` are
    written as in `parse_server`; `texts` keeps plain decoding's texts."""

    target: str
    draft: str | None = None
    levels: tuple[int, ...] = (1, 4, 16, 64)
    servers: tuple[str, ...] = ("forerun",)
    minutes: float = 5.0
    rounds: int = 1
    prompts: int = 256
    drafters: tuple[str, ...] = ()
    draft_context: int | None = None
    draft_vocabulary: int | None = None
    texts: str | None = None

    @property
    def specs(self) -> list[ServerSpec]:
        """The servers. InputError where two have one name."""
        flags = {
            "--draft-ctx": self.draft_context,
            "--draft-vocabulary": self.draft_vocabulary,
            "--draft-requantise": "requantised" in self.drafters,
        }
        own = own_command(self.target, self.draft, flags)
        specs = [parse_server(text, own) for text in self.servers]
        twice = next((name for name, times in Counter(spec.name for spec in specs).items() if times > 1), None)
        if twice is not None:
            raise InputError(f"two servers are called {twice!r}", "", "give each a name of its own: --server NAME=…")
        return specs


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked and what must come of it. `context`: tokens that the longest request needs."""

    asks: Sequence[Ask]
    plain: dict[int, Plain]
    kept: TextFile
    context: int
    num_left_out: int


def measure_load(
    settings: LoadSettings, command: str, report: Report = lambda what, done, total: None, mirror: bool | None = None
) -> dict[str, Any]:
    """The document of a load test. Servers are started afresh for every level and take turns at it; Ctrl-C keeps what
    was measured until then."""
    from forerun.models.pull import resolve

    specs = settings.specs
    files = resolve(settings.target, mirror=mirror)
    draft = None if settings.draft is None else resolve(settings.draft, mirror=mirror)
    if files.kind != "gguf":
        raise InputError(
            f"{settings.target} is no GGUF file",
            "texts are compared with those of the native runtime, which does not depend on who shares its passes",
            "give a GGUF target",
        )
    document: dict[str, Any] = {**provenance(command), "settings": asdict(settings)}
    asked = prepare_texts(settings, files, report, mirror)
    with closing(BandwidthProbe()) as probe:
        test = _Test(settings, specs, asked, probe, report)
        if settings.minutes > 0:
            test.run({"target": files.path, "draft": draft.path if draft is not None else ""})
        readings = test.readings or [probe.measure()]
        document["probe"] = {
            **asdict(ProbeSummary.of(readings)), "readings": len(readings), "threads": probe.num_threads,
        }  # fmt: skip
    test.check_again(settings.target, mirror)
    kinds = Counter(ask.kind for ask in asked.asks)
    document["load"] = {
        "levels": test.levels(),
        "servers": {name: {"command": shlex.join(words)} for name, words in test.commands.items()},
        "mix": {
            "requests": len(asked.asks),
            "left_out": asked.num_left_out,
            "kinds": dict(kinds),
            "greedy": sum(ask.seed is None for ask in asked.asks),
        },
    }
    document["not_run"], document["interrupted"] = test.not_run, test.interrupted
    document["verdict"] = {"texts": test.verdict}
    return document


def prepare_texts(
    settings: LoadSettings,
    files: ModelFiles,
    report: Report = lambda what, done, total: None,
    mirror: bool | None = None,
) -> Asked:
    """The requests that fit the model, and plain decoding's texts of all, from the file or generated now."""
    path = Path(settings.texts) if settings.texts is not None else home() / "bench" / "load-texts.jsonl"
    kept = TextFile(path, identity(files.path))
    with loading.load(settings.target, drafter="none", mirror=mirror) as llm:
        limit = llm.engine.target.capabilities.context_length
        made = make_mix(settings.prompts, renderer(llm.tokenizer))
        needs = [len(llm.encode(ask.prompt)) + ask.max_tokens for ask in made]
        fits = [need for need in needs if limit is None or need <= limit]
        asks = [ask for ask, need in zip(made, needs, strict=True) if limit is None or need <= limit]
        if not asks:
            raise InputError("no request of the mix fits the model", f"its context holds {limit} tokens")
        todo, done = missing(asks, kept), 0

        def keep(ask: Ask, plain: Plain) -> None:
            nonlocal done
            done += 1
            kept.add(ask, plain)
            report("plain texts", done, len(todo))

        write_plain(llm, todo, keep)
    del llm
    gc.collect()
    plain = {index: found for index, ask in enumerate(asks) if (found := kept.get(ask)) is not None}
    return Asked(asks, plain, kept, -(-max(fits) // PAGE) * PAGE, len(made) - len(asks))


class _Test:
    """One run over all levels; blocks are kept, since texts may be looked at twice."""

    def __init__(
        self, settings: LoadSettings, specs: Sequence[ServerSpec], asked: Asked, probe: BandwidthProbe, report: Report
    ) -> None:
        self._settings, self._specs, self._asked, self._probe, self._report = settings, specs, asked, probe, report
        self.readings: list[float] = []
        self.not_run: dict[str, str] = {}
        self.interrupted = False
        self.commands: dict[str, list[str]] = {}
        self._exact: set[str] = set()
        self._blocks: dict[int, dict[str, list[Block]]] = {}
        self._probes: dict[int, dict[str, list[tuple[float, float]]]] = {}

    def run(self, places: Mapping[str, Any]) -> None:
        """All levels."""
        try:
            for place, clients in enumerate(self._settings.levels):
                here = {**places, "clients": clients, "context": clients * self._asked.context}
                self._level(clients, here, place)
                if self.interrupted:
                    break
        except KeyboardInterrupt:
            self.interrupted = True

    def _level(self, clients: int, places: Mapping[str, Any], place: int) -> None:
        settings = self._settings
        blocks = self._blocks.setdefault(clients, {})
        seconds = 60 * settings.minutes / settings.rounds
        total = len(settings.levels) * settings.rounds * len(self._specs)
        done = place * settings.rounds * len(self._specs)
        with ExitStack() as stack:
            servers = [one for spec in self._specs if (one := self._start(stack, spec, places, clients)) is not None]
            turns = {server.name: Turns(len(self._asked.asks)) for server in servers}
            for _ in range(settings.rounds):
                for server in servers:
                    self._report(f"{clients} clients: {server.name}", done, total)
                    done += 1
                    if not server.is_alive:
                        continue
                    before = self._measure()
                    block = run_block(server, self._asked.asks, turns[server.name], clients, seconds)
                    blocks.setdefault(server.name, []).append(block)
                    around = (before, self._measure())
                    self._probes.setdefault(clients, {}).setdefault(server.name, []).append(around)
                    if not server.is_alive:
                        self.not_run[f"{server.name}, {clients} clients"] = f"it ended: {server.said()}"
                    if block.interrupted:
                        self.interrupted = True
                        return

    def _start(self, stack: ExitStack, spec: ServerSpec, places: Mapping[str, Any], clients: int) -> Server | None:
        self._report(f"{clients} clients: starting {spec.name}", 0, 1)
        server = Server(spec, places)
        try:
            stack.enter_context(server)
        except ForerunError as error:
            self.not_run[f"{spec.name}, {clients} clients"] = str(error)
            return None
        self.commands[f"{spec.name}, {clients} clients"] = server.words or [server.url]
        if server.is_exact:
            self._exact.add(spec.name)
        return server

    def _measure(self) -> float:
        found = self._probe.measure()
        self.readings.append(found)
        return found

    # -- what became of it ---------------------------------------------------------------------------------------------

    @property
    def verdict(self) -> str:
        """ "equal" or "different": all texts that must be plain decoding's; "not compared" where none was."""
        found = [
            fault for name in self._exact for server in self._blocks.values()
            for _, fault in check_all(_answers(server.get(name, ())), self._asked.plain)
        ]  # fmt: skip
        if not found:
            return "not compared"
        return "equal" if all(fault is None for fault in found) else "different"

    def check_again(self, target: str, mirror: bool | None) -> None:
        """Generate once more what differed: a text that was kept by another version of forerun accuses nobody."""
        doubted = {
            one.index for name in self._exact for server in self._blocks.values()
            for one, fault in check_all(_answers(server.get(name, ())), self._asked.plain) if fault is not None
        }  # fmt: skip
        if not doubted:
            return
        asks = {self._asked.asks[index].key: index for index in sorted(doubted)}

        def keep(ask: Ask, plain: Plain) -> None:
            self._asked.plain[asks[ask.key]] = plain
            self._asked.kept.add(ask, plain)

        with loading.load(target, drafter="none", mirror=mirror) as llm:
            write_plain(llm, [self._asked.asks[index] for index in sorted(doubted)], keep)

    def levels(self) -> dict[str, Any]:
        """The figures of every level and server."""
        found: dict[str, Any] = {}
        for clients, servers in self._blocks.items():
            figures = {name: self._figures(clients, name, blocks) for name, blocks in servers.items()}
            first = self._specs[0].name
            against = compared_with(figures, first) if first in figures else {}
            found[str(clients)] = {"servers": figures, f"{first}_over": against}
        return found

    def _figures(self, clients: int, name: str, blocks: Sequence[Block]) -> dict[str, Any]:
        figures = level_figures(blocks)
        for block, around in zip(figures["blocks"], self._probes[clients][name], strict=False):
            block["probes"] = list(around)
        checked = check_all(_answers(blocks), self._asked.plain)
        return {**figures, "texts": text_figures(checked, self._asked.asks, name in self._exact)}


def _answers(blocks: Sequence[Block]) -> list[Answer]:
    return [one for block in blocks for one in block.answers]
