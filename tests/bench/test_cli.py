"""`forerun bench`: what it refuses, what it prints, what it writes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.bench.toys import draft, quick_probe, target
from typer.testing import CliRunner

from forerun import loading
from forerun.bench import cli, models, peers, run
from forerun.drafting import ModelDrafter
from forerun.errors import ForerunError, InputError, MissingDependencyError
from forerun.extras import install_line
from forerun.llm import LLM
from forerun.models import pull, tokenizer
from forerun.models.store import ModelFiles


class ModuloTokenizer:
    """Every byte is one of the toy's ten first ids."""

    vocabulary_size = 11
    eos_ids = (10,)

    def encode(self, text: str) -> list[int]:
        return [byte % 10 for byte in text.encode()][:30]

    def encode_chat(self, messages: Any) -> list[int]:
        return self.encode(messages[0]["content"])

    def detokenizer(self, **settings: Any) -> ModuloTokenizer:
        return self

    def add(self, token: int) -> str:
        return str(token)

    def finish(self) -> str:
        return ""


app = typer.Typer()
app.command()(cli.bench_command)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The settings that `forerun.load` got; it returns toys."""
    calls: list[dict[str, Any]] = []

    def load(name: str, **given: Any) -> LLM:
        calls.append({"target": name, **given})
        drafter = ModelDrafter(draft()) if given["draft"] is not None else None
        return LLM(target(), ModuloTokenizer(), drafter)  # type: ignore[arg-type]

    monkeypatch.setattr(loading, "load", load)
    monkeypatch.setattr(pull, "resolve", lambda name, **given: ModelFiles(name, Path(name), "gguf", "local", None))
    monkeypatch.setattr(models, "bytes_per_pass", lambda *given: 1_000_000)
    monkeypatch.setattr(run, "BandwidthProbe", quick_probe)
    return calls


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments)


def document_of(*arguments: str) -> dict[str, Any]:
    """The document of a bench of toys that ran to its end."""
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout.rstrip("\n").split("\n")[-1])
    return document


def refusal(*arguments: str) -> ForerunError:
    result = invoke(*arguments)
    assert isinstance(result.exception, ForerunError), result.output
    return result.exception


def test_the_last_line_is_one_json_document(loaded: list[dict[str, Any]], tmp_path: Path) -> None:
    output, plot = tmp_path / "bench.json", tmp_path / "bench.png"
    result = invoke(
        "chat", "edit", "chat", "--target", "toy", "--draft", "toy-draft", "--k", "2,1,2", "--max-tokens", "8",
        "--prompts", "2", "--strict", "--dtype", "float32", "--draft-vocabulary", "9", "--draft-min-confidence", "0.2",
        "--output", str(output), "--plot", str(plot), "--mirror",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    lines = result.stdout.rstrip("\n").split("\n")
    document = json.loads(lines[-1])
    assert list(document["workloads"]) == ["chat", "edit"]
    assert list(document["workloads"]["edit"]) == ["plain", "model k=1", "model k=2", "lookup k=1", "lookup k=2"]
    assert any(line.startswith("|plain") for line in lines)
    assert json.loads(output.read_text(encoding="utf-8")) == document
    assert plot.read_bytes().startswith(b"\x89PNG")
    (given,) = loaded
    assert given["target"] == "toy"
    wanted = {
        "draft": "toy-draft", "strict": True, "dtype": "float32", "draft_vocabulary": 9, "draft_min_confidence": 0.2,
        "mirror": True,
    }  # fmt: skip
    assert {name: given[name] for name in wanted} == wanted


def test_lookup_alone_without_a_draft(loaded: list[dict[str, Any]]) -> None:
    document = document_of("json", "--target", "toy", "--k", "2", "--max-tokens", "6", "--prompts", "1")
    assert list(document["workloads"]["json"]) == ["plain", "lookup k=2"]
    assert loaded[0]["draft"] is None


def test_text_drafts_alone_and_stacked_on_a_draft_model(loaded: list[dict[str, Any]]) -> None:
    arguments = ("json", "--target", "toy", "--k", "3", "--max-tokens", "20", "--prompts", "1")
    document = document_of(*arguments, "--drafters", "suffix,lookup")
    assert list(document["workloads"]["json"]) == ["plain", "suffix k=3", "lookup k=3"]
    assert loaded[-1]["draft"] is None
    document = document_of(*arguments, "--drafters", "stack", "--draft", "toy-draft")
    figure = document["workloads"]["json"]["stack k=3"]
    assert figure["text"]["differences"] == []
    assert figure["tokens_per_pass"] > 1
    assert loaded[-1]["draft"] == "toy-draft"
    assert list(document["cost_curve"]) == ["target", "model"]


def test_a_draft_as_stored_and_requantised_are_measured_side_by_side(
    loaded: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[dict[str, Any]] = []

    class Second:
        def load(self, progress: Any) -> Any:
            return draft()

    def choose_draft(files: ModelFiles, tokenizer: Any, runtime: str, **given: Any) -> Second:
        assert not loaded, "refused before the target's weights are read"
        chosen.append({"runtime": runtime, **given})
        return Second()

    monkeypatch.setattr(loading, "choose_draft", choose_draft)
    monkeypatch.setattr(tokenizer, "load_tokenizer", lambda path: ModuloTokenizer())
    arguments = ("chat", "--target", "toy", "--draft", "d", "--k", "2", "--max-tokens", "6", "--prompts", "1")
    document = document_of(
        *arguments, "--drafters", "model,requantised", "--draft-ctx", "50", "--draft-runtime", "native", "--runtime",
        "torch",
    )  # fmt: skip
    assert list(document["workloads"]["chat"]) == ["plain", "model k=2", "requantised k=2"]
    assert list(document["cost_curve"]) == ["target", "model", "requantised"]
    (first,), (second,) = loaded, chosen
    assert not first["draft_requantise"]
    assert first["runtime"] == "torch"
    assert first["draft_runtime"] == second["runtime"] == "native"
    assert first["draft_context"] == second["context"] == 50
    assert second["requantise"]

    loaded.clear()
    assert invoke(*arguments, "--drafters", "requantised").exit_code == 0
    assert loaded[0]["draft_requantise"], "alone it needs no second choice"
    assert len(chosen) == 1


@pytest.mark.parametrize(
    ("package", "peer", "line"),
    [
        ("llama_cpp", "llama.cpp", "pip install llama-cpp-python"),
        ("transformers", "prompt-lookup", install_line("torch")),
        ("torch", "transformers", install_line("torch")),
    ],
)
def test_a_peer_whose_package_is_missing_is_refused_before_anything_is_loaded(
    loaded: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, package: str, peer: str, line: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    error = refusal("chat", "--target", "toy", "--peers", peer)
    assert isinstance(error, MissingDependencyError)
    assert line in str(error)
    assert loaded == []


def test_peers_that_cannot_be_loaded_are_told_at_once_and_the_bench_goes_on(
    loaded: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*given: Any) -> Any:
        raise MemoryError("no room")

    monkeypatch.setattr(peers, "load_plain", no_room)
    result = invoke(
        "chat", "--target", "toy", "--draft", "toy-draft", "--k", "1", "--max-tokens", "4", "--prompts", "1", "--peers",
        "transformers,assisted",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout.rstrip("\n").split("\n")[-1])
    assert document["not_run"] == dict.fromkeys(("transformers", "assisted"), "MemoryError: no room")
    assert "not run: transformers" in result.stdout
    told, _, measuring = result.stderr.partition("0/")
    assert "not run: transformers: MemoryError: no room" in told
    assert measuring, "progress comes after it"


def test_a_draft_only_for_the_assisted_peer_is_not_loaded_by_forerun(
    loaded: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*given: Any) -> Any:
        raise MemoryError("no room")

    monkeypatch.setattr(peers, "load_plain", no_room)
    result = invoke(
        "chat", "--target", "toy", "--draft", "toy-draft", "--drafters", "lookup", "--k", "1", "--max-tokens", "4",
        "--prompts", "1", "--peers", "assisted",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert loaded[0]["draft"] is None


@pytest.mark.parametrize(
    "setting", [("--draft-ctx", "9"), ("--draft-vocabulary", "9"), ("--draft-min-confidence", ".1")], ids=lambda s: s[0]
)
def test_settings_of_a_draft_model_reach_load_also_where_no_model_drafts(
    loaded: list[dict[str, Any]], setting: tuple[str, str]
) -> None:
    """It refuses them; dropped here, they would be ignored in silence."""
    invoke("json", "--target", "toy", "--k", "2", "--max-tokens", "6", "--prompts", "1", *setting)
    name = {"--draft-ctx": "draft_context"}.get(setting[0], setting[0].removeprefix("--").replace("-", "_"))
    assert loaded[0][name] == float(setting[1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("poetry",), "poetry"),
        (("chat", "--k", "0"), "k: '0'"),
        (("chat", "--k", "two"), "k: 'two'"),
        (("chat", "--k", ""), "k: ''"),
        (("chat", "--max-tokens", "1"), "max_tokens: 1"),
        (("chat", "--prompts", "0"), "prompts: 0"),
        (("chat", "--rounds", "0"), "rounds: 0"),
        (("chat", "--context", "0"), "context: 0"),
        (("chat", "--temperature", "-1"), "temperature"),
        (("chat", "--seed", "-1"), "seed"),
        (("chat", "--drafters", "model"), "needs a draft model"),
        (("chat", "--drafters", "oracle"), "oracle"),
        (("chat", "--drafters", "requantised"), "needs a draft model"),
        (("chat", "--drafters", "stack"), "needs a draft model"),
        (("chat", "--drafters", "lookup", "--draft", "d"), "unused"),
        (("chat", "--peers", "vllm"), "vllm"),
        (("chat", "--plot", "x.gif"), r"x\.gif"),
        (("chat", "--output", "/no/such/directory/x.json"), "cannot be written"),
        (("chat", "--report", "x.pdf"), r"report: 'x\.pdf' is not a \.html file"),
        (("chat", "--peers", "assisted"), "peers: assisted needs a draft model"),
        (("chat", "--drafters", "adaptive", "--k", "1"), "k: adaptive chooses it every round"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_loaded(
    loaded: list[dict[str, Any]], arguments: tuple[str, ...], message: str
) -> None:
    error = refusal("--target", "toy", *arguments)
    assert isinstance(error, InputError)
    assert re.search(message, str(error)), str(error)
    assert loaded == []


def test_an_interrupted_bench_prints_what_there_is_and_says_so(
    loaded: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [0]
    real = run.ForerunVariant.generate

    def generate(self: Any, prompt: Any, num_tokens: int) -> Any:
        calls[0] += 1
        if calls[0] == 7:
            raise KeyboardInterrupt
        return real(self, prompt, num_tokens)

    monkeypatch.setattr(run.ForerunVariant, "generate", generate)
    result = invoke("chat", "--target", "toy", "--k", "1", "--max-tokens", "4", "--prompts", "3")
    assert result.exit_code == cli.INTERRUPTED
    document = json.loads(result.stdout.rstrip("\n").split("\n")[-1])
    assert document["interrupted"]
    assert document["workloads"]["chat"]["plain"]["runs"] == 2


def test_the_command_is_registered_and_its_help_names_the_workloads() -> None:
    from forerun.cli import app as forerun_app

    result = CliRunner().invoke(forerun_app, ["bench", "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    names = "humaneval, chat, edit, json, summarise, creative, random"
    for word in (names, "--cells", "--peers", "--plot", "--draft-vocabulary"):
        assert word in result.output
