"""Cells: their definitions, blocks of toys whose right answers are known, runs, and files of runs."""

from __future__ import annotations

import io
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.bench.toys import draft, steady_probe, target

from forerun.bench.cells import __main__ as pool_command
from forerun.bench.cells import run as cell_run
from forerun.bench.cells.adversary import AdversarialDraft
from forerun.bench.cells.batches import KeptPrompts, Recorder, block_of, run_block
from forerun.bench.cells.contenders import COLD, WARM, Contender, contenders, fixed, unfixed
from forerun.bench.cells.definitions import CELLS, Cell, choose_cells, task_sets
from forerun.bench.cells.pool import append, entries_like, line_of, pooled, read_lines
from forerun.bench.cells.run import Measuring, run_cell
from forerun.bench.cells.table import print_cells
from forerun.bench.summary import PLAIN
from forerun.bench.workloads import WORKLOADS
from forerun.control.policy import FixedLength
from forerun.drafting import LookupDrafter, ModelDrafter
from forerun.drafting.scripted import LiarDrafter, OracleDrafter, record
from forerun.errors import FileFormatError, InputError, ParameterError
from forerun.llm import LLM
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams

PROMPTS = [[1, 2, 3], [4, 5, 6, 7]]
CELL = Cell("toy", "chat", 0.0, 2, 8)
ABOUT = {"run": "r1", "target": "t", "draft": "d", "num_tokens": 24, "sampling": {"seed": None}, "commit": "abc"}


def params(num_tokens: int = 24, **given: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": num_tokens, "ignore_eos": True, **given})


def make() -> Any:
    return ModelDrafter(draft()), FixedLength(2)


def toy_sides(*more: Contender) -> list[Contender]:
    return [*unfixed(make), fixed("lookup", 4, LookupDrafter()), *more]


# -- definitions ----------------------------------------------------------------------------------------------------


def test_twelve_cells_span_what_was_promised() -> None:
    cells = list(CELLS.values())
    assert len(cells) == 12
    assert {cell.workload for cell in cells} == {
        "humaneval", "chat", "edit", "json", "summarise", "creative", "random",
    }  # fmt: skip
    assert all(cell.workload in WORKLOADS and cell.name == name for name, cell in CELLS.items())
    temperatures = [cell.temperature for cell in cells]
    assert (min(temperatures), max(temperatures)) == (0.0, 1.2)
    assert {cell.sequences for cell in cells} >= {1, 2, 4, 8, 16}
    assert {cell.context for cell in cells} == {512, 2048}
    assert {cell.draft for cell in cells} == {"given", "noise", "liar"}


def test_cells_are_chosen_by_name() -> None:
    assert choose_cells("all") == tuple(CELLS.values())
    assert [cell.name for cell in choose_cells("random, chat,random")] == ["random", "chat"]
    for wrong in ("", "chats", "chat,nothing"):
        with pytest.raises(ParameterError, match=r"cells: .*all, or some of humaneval,"):
            choose_cells(wrong)


@pytest.mark.parametrize(
    ("num_tasks", "sequences", "num_sets", "lengths"), [(12, 1, 3, 3), (12, 8, 3, 2), (12, 16, 3, 1), (2, 1, 5, 2)]
)
def test_sets_of_tasks(num_tasks: int, sequences: int, num_sets: int, lengths: int) -> None:
    sets = task_sets(num_tasks, sequences, num_sets)
    assert [len(together) for together in sets] == [sequences] * lengths
    assert all(0 <= task < num_tasks for together in sets for task in together)
    used = Counter(task for together in sets for task in together)
    assert max(used.values()) <= -(-lengths * sequences // num_tasks), "spread over all tasks"


# -- blocks ---------------------------------------------------------------------------------------------------------


def test_a_block_writes_what_the_engine_writes_and_counts_it() -> None:
    llm = LLM(target())
    texts = record(target(), PROMPTS, 24)
    block = run_block(llm, OracleDrafter(texts), FixedLength(3), PROMPTS, params())
    # A first step reads the prompts; then 23 tokens of each text in rounds of four, all of them accepted.
    assert (block.num_first, block.num_decoded) == (2, 46)
    assert block.rounds == Counter({("scripted", 3, 3, 3): 10, ("scripted", 2, 2, 2): 2})
    assert block.origins == Counter(drafted=34, bonus=12)
    assert block.decode_s > 0
    assert block.read_s == 0
    assert block.tokens_per_s == pytest.approx(46 / block.decode_s)
    liar = run_block(llm, LiarDrafter(texts), FixedLength(3), PROMPTS, params())
    assert liar.origins["drafted"] == 0
    assert liar.origins["recovered"] >= 40
    assert llm.engine.target.num_sequences == 0  # type: ignore[attr-defined]


def test_kept_prompts_are_read_once_and_change_no_text() -> None:
    model = target()
    llm, kept = LLM(model), KeptPrompts(model)
    for prompt in PROMPTS:
        assert kept.read(prompt) >= 0
    again = kept.read(PROMPTS[0])
    assert model.num_fed == 2 + 3, "the last token of each prompt is left"
    plain = run_block(llm, None, FixedLength(0), PROMPTS, params(), kept)
    assert model.num_fed == 5 + 2 * 24, "one token for each that is written"
    assert plain.read_s == pytest.approx(again + kept.read(PROMPTS[1]))
    assert (plain.num_first, plain.num_decoded) == (2, 46)
    assert plain.whole_tokens_per_s == pytest.approx(48 / (plain.read_s + plain.first_s + plain.decode_s))

    texts = record(target(), PROMPTS, 24)
    seen: dict[int, list[int]] = {}

    class Watching(OracleDrafter):
        def propose(self, sequences: Any, plans: Any) -> Any:
            seen.update({sequence.sequence_id: list(sequence.tokens) for sequence in sequences})
            return super().propose(sequences, plans)

    run_block(llm, Watching(texts), FixedLength(3), PROMPTS, params(), kept)
    written = sorted(seen.values())
    assert [text[: len(prompt)] for text, prompt in zip(written, PROMPTS, strict=True)] == PROMPTS
    assert all(
        text[len(prompt) :] == list(texts[tuple(prompt)])[: len(text) - len(prompt)]
        for text, prompt in zip(written, PROMPTS, strict=True)
    )
    kept.drop()
    assert model.num_sequences == 0


def test_a_block_goes_to_a_file_and_back() -> None:
    block = run_block(LLM(target()), ModelDrafter(draft()), FixedLength(3), PROMPTS, params())
    again = block_of(json.loads(json.dumps(block.to_dict())))
    assert again.rounds == block.rounds
    assert again.origins == block.origins
    assert again.tokens_per_s == block.tokens_per_s
    assert again.parts == pytest.approx(block.parts, abs=1e-6)


def test_a_recorder_passes_everything_on() -> None:
    class Told(FixedLength):
        heard = 0

        def update(self, rounds: Any, step: Any) -> None:
            self.heard += len(rounds)

    policy = Told(2)
    block = run_block(LLM(target()), ModelDrafter(draft()), policy, PROMPTS, params())
    assert policy.heard == block.rounds.total() + 2, "the rounds of the first step too"
    assert Recorder(policy).k == 2
    assert [moment.at for moment in block.moments] == sorted(moment.at for moment in block.moments)
    assert sum(emitted for moment in block.moments for *_, emitted, _ in moment.rounds) == block.num_decoded + 2


# -- adversarial drafts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["noise", "liar"])
def test_adversarial_drafts_make_the_models_passes_and_are_of_no_use(kind: Any) -> None:
    # A vocabulary large enough that noise does not hit by chance.
    table = np.random.default_rng(3).normal(0.0, 6.0, (300, 300))
    model, own = ToyModel.from_table(table), ToyModel.from_table(table)
    prompts = [[1, 2, 3], [200, 100]]
    real = run_block(LLM(model), ModelDrafter(own), FixedLength(2), prompts, params())
    num_passes, own.num_forwards = own.num_forwards, 0
    block = run_block(LLM(model), ModelDrafter(AdversarialDraft(own, kind)), FixedLength(2), prompts, params())
    assert real.origins["recovered"] == 0
    assert block.origins["drafted"] <= 2
    assert own.num_forwards > num_passes > 0, "every pass is paid for"
    assert block.num_decoded == real.num_decoded


def test_a_liar_is_as_sure_as_its_model() -> None:
    from forerun.types import Span

    table = np.random.default_rng(3).normal(0.0, 6.0, (10, 10))
    for kind in ("noise", "liar"):
        liar = AdversarialDraft(ToyModel.from_table(table), kind)  # type: ignore[arg-type]
        liar.begin(0)
        rows = liar.forward([Span(0, 0, [1, 2, 3], 2)])
        assert rows.matrix.shape == (2, 10)
        if kind == "liar":
            np.testing.assert_allclose(np.sort(rows.matrix), np.sort(table[[2, 3]]), rtol=1e-6)
            assert all(rows.matrix[i].argmax() == (table[i + 2].argmax() + 5) % 10 for i in range(2))


# -- runs -----------------------------------------------------------------------------------------------------------


def run(sides: list[Contender] | None = None, turns: int = 4, **given: Any) -> Any:
    return run_cell(
        LLM(target()), sides if sides is not None else toy_sides(), [PROMPTS, PROMPTS[::-1]], params(),
        Measuring(steady_probe(), 1e9, most_turns=turns, **given),
    )  # fmt: skip


def test_every_side_meets_every_set_of_prompts_between_two_probes() -> None:
    found = run()
    names = Counter((entry.contender, entry.prompts) for entry in found.entries)
    assert set(names.values()) == {2}
    assert {name for name, _ in names} == {PLAIN, COLD, WARM, "lookup k=4"}
    assert len(found.probes) == len(found.entries) + 1
    readings = [reading for _, reading in found.probes]
    assert [entry.probes_gb_s for entry in found.entries] == list(pairwise(readings))


def test_plain_and_adaptive_sides_come_up_between_the_fixed_ones() -> None:
    sides = [*unfixed(make), *(fixed("lookup", k, LookupDrafter()) for k in range(1, 9))]
    for turn in range(6):
        order = [side.name for side in cell_run._order(sides, turn)]
        assert order.count(PLAIN) == order.count(COLD) == order.count(WARM) == 2
        assert {name for name in order if "lookup" in name} == {f"lookup k={k}" for k in range(1, 9)}
        first = order.index(PLAIN)
        assert order.index(PLAIN, first + 1) - first > 4
    places = [[s.name for s in cell_run._order(sides, turn)].index(PLAIN) for turn in range(6)]
    assert set(places) == {0, 1, 2}, "none of them always comes first"


def test_a_cold_policy_is_new_in_every_block_and_a_warm_one_stays() -> None:
    made: list[Any] = []

    def counting() -> Any:
        made.append(make())
        return made[-1]

    sides = unfixed(counting)
    assert len(made) == 1, "the warm one"
    run(sides, turns=3)
    assert len(made) == 1 + 1 + 3, "warming up, and a new one in each turn"
    assert sides[2].make() is made[0]


def test_hopeless_choices_take_no_further_part(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def fake(llm: Any, drafter: Any, policy: Any, *rest: Any) -> Any:
        clock[0] += 1
        block = run_block(llm, drafter, policy, *rest)
        from dataclasses import replace

        return replace(block, decode_s=4.0 if policy.k == 9 else 1.2 if policy.k == 5 else 1.0)

    monkeypatch.setattr(cell_run, "run_block", fake)
    sides = [*unfixed(make), *(fixed("lookup", k, LookupDrafter()) for k in (4, 5, 9))]
    found = run(sides, turns=6)
    assert found.dropped == {"lookup k=9": 1, "lookup k=5": 4}, "half as fast after a turn, a tenth after two of all"
    assert sum(entry.contender == "lookup k=9" for entry in found.entries) == 1
    assert sum(entry.contender == "lookup k=4" for entry in found.entries) == 6
    later = run(sides, turns=1, earlier=[entry for entry in found.entries if entry.turn < 3])
    assert {entry.prompts for entry in later.entries} == {1}, "after three turns the second prompts are next"
    monkeypatch.setattr(cell_run, "FINALISTS", 2)
    assert run(sides, turns=1, earlier=found.entries).dropped == {"lookup k=9": 0}
    monkeypatch.setattr(cell_run, "FINALISTS", 1)
    last = run(sides, turns=1, earlier=found.entries)
    assert last.dropped == {"lookup k=9": 0, "lookup k=5": 0}
    assert [entry.contender for entry in last.entries if "lookup" in entry.contender] == ["lookup k=4"]


def test_an_interrupted_cell_keeps_what_it_has() -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        if what == "turn 2: plain":
            raise KeyboardInterrupt

    found = run(report=interrupt)
    assert found.interrupted
    assert 4 <= len(found.entries) < 8


def test_a_cell_ends_when_its_time_is_up() -> None:
    found = run_cell(LLM(target()), toy_sides(), [PROMPTS], params(), Measuring(steady_probe(), 0.0))
    assert len(found.entries) == 4, "one turn is always measured"


def test_a_cell_without_room_is_refused() -> None:
    with pytest.raises(InputError, match=r"24 tokens do not fit behind the prompts of toy.*20.*40"):
        cell_run.check_prompts("toy", [[[1] * 20]], 24, 40)
    cell_run.check_prompts("toy", [[[1] * 16]], 24, 40)


def test_contenders_without_a_draft_model_copy() -> None:
    names = [side.name for side in contenders(None, make)]
    assert names[:3] == [PLAIN, COLD, WARM]
    assert "lookup k=12" in names
    assert not any(name.startswith("model") for name in names)
    with_model = [side.name for side in contenders(draft(), make)]
    assert "model k=5" in with_model
    assert len(set(with_model)) == len(with_model)


# -- files of runs --------------------------------------------------------------------------------------------------


def line(**changed: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(line_of(run(), CELL, {**ABOUT, **changed})))
    return found


def test_runs_of_a_file_are_pooled_and_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    for name in ("r1", "r2"):
        append(path, line(run=name))
    with path.open("a", encoding="utf-8") as file:
        file.write('{"kind": "forerun-cell-run", "cel')  # stopped while it wrote
    lines = read_lines(path)
    assert [one["run"] for one in lines] == ["r1", "r2"]
    (figures,) = pooled(lines)["cells"].values()
    assert figures["runs"] == 2
    assert figures["contenders"][PLAIN]["blocks"] == 8
    assert figures["blocks"] == 32
    alone = pooled(lines[:1])["cells"]["toy"]
    assert alone["contenders"][PLAIN]["blocks"] == 4


def test_a_run_behind_one_that_was_cut_short_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    append(path, line(run="r1"))
    whole = path.read_text(encoding="utf-8")
    for cut in ('{"kind": "forerun-cell-run", "cel', '{"ki', whole[:-2]):  # stopped while it wrote
        path.write_text(whole + cut, encoding="utf-8")
        append(path, line(run="r2"))
        assert [one["run"] for one in read_lines(path)] == ["r1", "r2"]
    path.write_text(whole[:-1], encoding="utf-8")  # an editor took the last end of a line
    append(path, line(run="r2"))
    assert [one["run"] for one in read_lines(path)] == ["r1", "r2"]


def test_nothing_of_somebody_elses_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("one\ntwo", encoding="utf-8")
    append(path, line())
    assert path.read_text(encoding="utf-8").startswith("one\ntwo\n{")


def test_runs_that_are_not_alike_are_kept_apart() -> None:
    found = pooled([line(), line(target="other"), line(num_tokens=48), line()])
    assert len(found["cells"]) == 3
    assert [figures["runs"] for figures in found["cells"].values()] == [2, 1, 1]
    stored, rounded = ({"drafters": (name,), "rounds": 1} for name in ("model", "requantised"))
    found = pooled([line(settings=one) for one in (stored, rounded, {**stored, "rounds": 2})])
    assert [figures["runs"] for figures in found["cells"].values()] == [2, 1], "one draft model at two prices"


@pytest.mark.parametrize("text", ["no json\n", '{"kind": "else"}\n', '{"kind": "forerun-cell-run", "entries": [{}]}\n'])
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FileFormatError, match="line 1 of"):
        read_lines(path)


def test_the_pooling_command_prints_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, page = tmp_path / "cells.jsonl", tmp_path / "page.html"
    append(path, line())
    pool_command.main([str(path), "--report", str(page)])
    printed = capsys.readouterr().out.rstrip("\n").split("\n")
    document = json.loads(printed[-1])
    assert list(document["cells"]) == ["toy"]
    assert any(row.startswith("|adaptive warm") for row in printed)
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    "words,message",
    [
        (["none.jsonl"], "No such file"),
        (["odd.jsonl"], "is not a run of a cell"),
        (["odd.jsonl", "--report", "no/such/place.html"], "cannot be written"),
    ],
)
def test_the_pooling_command_refuses_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("odd.jsonl").write_text("{}\n", encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        pool_command.main(words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_the_table_shows_every_contender_and_claim() -> None:
    file = io.StringIO()
    print_cells(pooled([line()]), file)
    text = file.getvalue()
    for needed in (
        "toy: chat, temperature 0.0, 2 at once of 24 tokens behind 8", "|lookup k=4", "|adaptive cold",
        "no cell's 99 % interval lies below 0.98x plain:", "at least 0.95x the best fixed choice",
    ):  # fmt: skip
        assert needed in text


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileFormatError, match="is no text"):
        read_lines(path)


def test_only_blocks_of_the_same_kind_of_run_tell_what_is_hopeless() -> None:
    cell, about = CELLS["humaneval"], {"target": "t", "draft": "d", "sampling": {"seed": None}, "num_tokens": 96}
    found = run(turns=1)
    lines = [
        line_of(found, cell, about),
        line_of(found, cell, {**about, "draft": "another"}),
        line_of(found, CELLS["chat"], about),
    ]
    assert len(entries_like(lines, cell, about)) == len(found.entries)
    assert entries_like(lines, cell, {**about, "num_tokens": 24}) == []
