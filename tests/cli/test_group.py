"""The group: version, unknown names, commands that are imported late, and `pull` and `models`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import pytest
import typer
from tests.cli.conftest import Invoke

from forerun.models.registry import entries
from forerun.models.store import ModelFiles
from forerun.version import __version__


def test_version(invoke: Invoke) -> None:
    assert invoke("--version").stdout == f"forerun {__version__}\n"


@pytest.mark.parametrize("args", [(), ("--help",), ("-h",)])
def test_help_lists_every_command(invoke: Invoke, args: tuple[str, ...]) -> None:
    result = invoke(*args)
    assert result.exit_code == 0
    for name in ("generate", "chat", "pull", "models", "plan", "bench"):
        assert f" {name} " in result.stdout


@pytest.mark.parametrize(
    "name, hint",
    [("genrate", "generate"), ("model", "models"), ("bnch", "bench"), ("zzz", "the commands are generate")],
)
def test_an_unknown_command_gets_near_matches(invoke: Invoke, name: str, hint: str) -> None:
    result = invoke(name, "x")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: there is no command '{name}'. ")
    assert hint in result.stderr


@pytest.mark.parametrize("name", ["audit", "train"])
def test_commands_of_later_versions_are_absent(invoke: Invoke, name: str) -> None:
    result = invoke(name)
    assert result.exit_code == 2
    assert f"there is no command '{name}'" in result.stderr


@pytest.mark.parametrize("args", [("--bogus",), ("generate",), ("pull",), ("models", "extra")])
def test_usage_errors_name_the_help(invoke: Invoke, args: tuple[str, ...]) -> None:
    result = invoke(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert "--help" in result.stderr


def test_bench_is_imported_when_it_runs(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[str, int]] = []

    def bench_command(workload: str, rounds: Annotated[int, typer.Option("--rounds", help="How often")] = 1) -> None:
        """Measure."""
        runs.append((workload, rounds))

    module = ModuleType("forerun.bench.cli")
    module.bench_command = bench_command  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "forerun.bench.cli", module)
    assert invoke("bench", "edit", "--rounds", "3").exit_code == 0
    assert runs == [("edit", 3)]
    assert "How often" in invoke("bench", "--help").stdout
    assert invoke("bench", "edit", "--echo", "1").stderr.startswith("error: --echo: not built yet")
    assert "No such option: --logprobs" in invoke("bench", "edit", "--logprobs", "1").stderr
    assert "No such option: --top-logprobs" in invoke("bench", "edit", "--top-logprobs", "1").stderr
    assert "forerun bench --help" in invoke("bench", "--nothing").stderr


# -- models and pull -------------------------------------------------------------------------------------------------


def test_models_lists_the_registry(invoke: Invoke) -> None:
    result = invoke("models")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()[1:]
    assert [line.split()[0] for line in lines] == [entry.name for entry in entries()]
    assert all("Apache-2.0" in line and " no " in line for line in lines)


def test_models_in_json(invoke: Invoke) -> None:
    listed = json.loads(invoke("models", "--json").stdout)
    assert [model["name"] for model in listed] == [entry.name for entry in entries()]
    keys = {"name", "description", "parameters", "file", "size", "sha256", "licence", "sources", "cached", "path"}
    assert all(set(model) == keys for model in listed)
    assert not any(model["cached"] for model in listed)


@pytest.fixture
def pulled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """What `pull` asked `resolve` for; it "fetches" 3 bytes."""
    from forerun.models import pull

    asked: list[dict[str, Any]] = []

    def resolve(name: str, *, progress: Any, **settings: Any) -> ModelFiles:
        asked.append({"name": name, **settings})
        progress.start(3, name)
        progress.advance(3)
        progress.note("tried one source [odd]")
        progress.finish()
        return ModelFiles(name, tmp_path / "m.gguf", "gguf", "hub:a/b", "MIT")

    monkeypatch.setattr(pull, "resolve", resolve)
    return asked


def test_pull_prints_the_path(invoke: Invoke, pulled: list[dict[str, Any]], tmp_path: Path) -> None:
    monkeypatched = invoke("models")  # the toys of `invoke` are in place before ours
    assert monkeypatched.exit_code == 0
    result = invoke("pull", "some-model", "--mirror")
    assert result.stdout == f"{tmp_path / 'm.gguf'}\n"
    for fact in ("source: hub:a/b", "licence: MIT", "tried one source [odd]", "3/3 bytes"):
        assert fact in result.stderr
    assert pulled == [{"name": "some-model", "mirror": True, "offline": False}]


def test_pull_in_json(invoke: Invoke, pulled: list[dict[str, Any]], tmp_path: Path) -> None:
    document = json.loads(invoke("pull", "some-model", "--offline", "--json").stdout)
    assert document == {
        "name": "some-model",
        "path": str(tmp_path / "m.gguf"),
        "kind": "gguf",
        "source": "hub:a/b",
        "licence": "MIT",
    }
    assert pulled == [{"name": "some-model", "mirror": None, "offline": True}]


def test_pull_of_an_unknown_name_has_near_matches(invoke: Invoke) -> None:
    result = invoke("pull", "qwen2.5-coder")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "did you mean" in result.stderr
    assert "qwen2.5-coder-0.5b" in result.stderr


def test_pull_offline_says_what_is_missing(invoke: Invoke) -> None:
    result = invoke("pull", "smollm2-135m", "--offline")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "smollm2-135m is not in the cache" in result.stderr
