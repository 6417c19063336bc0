"""Load tests from the command line to their document, over a real server and over one that lies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.bench.load_fakes import DONE, Fake, Script, chunk, saying, total
from tests.models.tiny_gguf import write_tiny_gguf
from typer.testing import CliRunner

from forerun import loading
from forerun.bench import cli
from forerun.bench.load.mix import Ask, make_mix, renderer
from forerun.bench.load.texts import Plain, TextFile, missing, write_plain
from forerun.errors import ForerunError, InputError, ParameterError

app = typer.Typer()
app.command()(cli.bench_command)
PROMPTS = "20"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("load") / "target.gguf", seed=1, context_length=512)


@pytest.fixture(scope="module")
def texts(target: Path) -> Path:
    """Where plain texts are kept: the first test that asks for them writes them."""
    return target.parent / "texts.jsonl"


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["--load", "2", "--minutes", "0.01", "--prompts", PROMPTS, *arguments])


def document_of(result: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(result.stdout.rstrip("\n").split("\n")[-1])
    return document


def honest(texts: Path) -> Script:
    """Says what plain decoding does, as the file of texts has it."""

    def script(body: dict[str, Any]) -> Any:
        ask = Ask("", body["prompt"], body["max_tokens"], body.get("seed"))
        lines = [json.loads(line) for line in texts.read_text(encoding="utf-8").splitlines()]
        plain = next(line for line in lines if line["ask"] == ask.key)
        yield chunk(plain["text"], plain["finish_reason"], tokens=plain["num_tokens"])
        yield total(plain["num_tokens"])
        yield DONE

    return script


def test_a_server_of_its_own_is_started_loaded_checked_and_ended(target: Path, texts: Path, tmp_path: Path) -> None:
    output = tmp_path / "load.json"
    result = invoke("--target", str(target), "--texts", str(texts), "--output", str(output), "--minutes", "0.03")
    assert result.exit_code == 0, (result.output, result.exception)
    document = document_of(result)
    assert json.loads(output.read_text(encoding="utf-8")) == document
    figure = document["load"]["levels"]["2"]["servers"]["forerun"]
    assert figure["errors"] == 0, figure["error_examples"]
    assert figure["texts"]["must_equal"]
    assert figure["texts"]["compared"] == figure["texts"]["equal"] >= 1
    assert document["verdict"] == {"texts": "equal"}
    assert document["probe"]["readings"] == 2
    assert "serve" in document["load"]["servers"]["forerun, 2 clients"]["command"]
    assert document["load"]["mix"]["left_out"] > 0, "articles do not fit a context of 512"
    assert figure["memory_mb"] is None or figure["memory_mb"]["end"] > 1
    assert "texts are plain decoding's" in result.stdout


def test_a_server_that_loses_tokens_is_found_out(target: Path, texts: Path) -> None:
    fill(target, texts)

    def lying(body: dict[str, Any]) -> Any:
        for piece in honest(texts)(body):
            yield piece.replace(b'"text": "', b'"text": "#')

    with Fake(lying, owner="forerun") as fake:
        result = invoke("--target", str(target), "--texts", str(texts), "--server", f"liar={fake.url}")
    assert result.exit_code == cli.DIFFERENT, (result.output, result.exception)
    document = document_of(result)
    figure = document["load"]["levels"]["2"]["servers"]["liar"]
    assert document["verdict"] == {"texts": "different"}
    assert figure["texts"]["equal"] < figure["texts"]["compared"]
    assert figure["texts"]["faults"][0]["position"] == 0
    assert "differing: request" in result.stdout


def test_servers_take_turns_and_other_peoples_texts_accuse_nobody(target: Path, texts: Path) -> None:
    fill(target, texts)
    with Fake(honest(texts), owner="forerun") as mine, Fake(saying(chunk("no", "stop"), total(1), DONE)) as theirs:
        result = invoke(
            "--target", str(target), "--texts", str(texts), "--server", f"a={mine.url}", "--server", f"b={theirs.url}",
            "--load", "1,2",
        )  # fmt: skip
    assert result.exit_code == 0, (result.output, result.exception)
    document = document_of(result)
    for clients in ("1", "2"):
        level = document["load"]["levels"][clients]
        assert [len(figure["blocks"]) for figure in level["servers"].values()] == [2, 2]
        assert level["servers"]["b"]["texts"]["must_equal"] is False
        assert level["servers"]["b"]["texts"]["equal"] == 0
        assert set(level["a_over"]) <= {"b"}
    assert document["verdict"] == {"texts": "equal"}


def test_a_stale_text_is_generated_again_before_it_accuses(target: Path, texts: Path, tmp_path: Path) -> None:
    fill(target, texts)
    stale = tmp_path / "stale.jsonl"
    lines = [json.loads(line) for line in texts.read_text(encoding="utf-8").splitlines()]
    stale.write_text("".join(json.dumps({**line, "text": "old"}) + "\n" for line in lines) + "half a li", "utf-8")
    with Fake(honest(texts), owner="forerun") as fake:
        result = invoke("--target", str(target), "--texts", str(stale), "--server", f"a={fake.url}")
    assert result.exit_code == 0, (result.output, result.exception)
    assert document_of(result)["verdict"] == {"texts": "equal"}


def test_no_minutes_only_write_the_texts(target: Path, tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    result = invoke("--target", str(target), "--texts", str(path), "--minutes", "0", "--prompts", "3")
    assert result.exit_code == 0, (result.output, result.exception)
    assert document_of(result)["load"]["levels"] == {}
    assert document_of(result)["verdict"] == {"texts": "not compared"}
    assert len(path.read_text(encoding="utf-8").splitlines()) == document_of(result)["load"]["mix"]["requests"]


def test_a_server_that_does_not_start_is_told_and_the_others_are_measured(target: Path, texts: Path) -> None:
    fill(target, texts)
    with Fake(honest(texts), owner="forerun") as fake:
        result = invoke(
            "--target", str(target), "--texts", str(texts), "--server", "b={python} -c {port}+", "--server",
            f"a={fake.url}",
        )  # fmt: skip
    assert result.exit_code == 0, (result.output, result.exception)
    document = document_of(result)
    assert "has ended before it answered" in document["not_run"]["b, 2 clients"]
    assert list(document["load"]["levels"]["2"]["servers"]) == ["a"]
    assert "not run: b" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("--load", "0"), "load"), (("--load", "x"), "load"), (("--load", ""), "load"), (("--server", "x"), "server"),
        (("--max-tokens", "30"), "max_tokens"), (("--cells", "all"), "load"), (("--drafters", "model"), "drafters"),
        (("--rounds", "0"), "rounds"), (("--texts", "/no/such/directory/x"), "texts"),
        (("--prompts", "0"), "prompts"),
    ],
)  # fmt: skip
def test_what_is_refused(arguments: tuple[str, ...], name: str) -> None:
    result = invoke("--target", "nothing", *arguments)
    assert isinstance(result.exception, ParameterError), (result.output, result.exception)
    assert result.exception.name == name


def test_a_workload_is_refused_beside_the_load_test() -> None:
    result = invoke("--target", "nothing", "chat")
    assert isinstance(result.exception, InputError)
    assert "WORKLOAD is not used with --load" in str(result.exception)


def test_flags_of_the_load_test_alone_are_refused_elsewhere() -> None:
    for flag in (("--server", "forerun"), ("--texts", "x.jsonl")):
        result = CliRunner().invoke(app, ["--target", "nothing", *flag])
        assert isinstance(result.exception, ForerunError)
        assert "--load" in str(result.exception)


def test_two_servers_of_one_name_are_refused(target: Path) -> None:
    result = invoke("--target", str(target), "--server", "forerun", "--server", "forerun")
    assert isinstance(result.exception, InputError)
    assert "two servers" in str(result.exception)


def test_plain_texts_are_generates_and_are_kept(target: Path, tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    with loading.load(str(target)) as llm:
        asks = [ask for ask in make_mix(12, renderer(llm.tokenizer)) if ask.kind in ("short", "chat")]
        kept = TextFile(path, "this")
        found: dict[str, Plain] = {}

        def keep(ask: Ask, plain: Plain) -> None:
            found[ask.key] = plain
            kept.add(ask, plain)

        write_plain(llm, asks, keep)
        for ask in asks:
            result = llm.generate(ask.prompt, ask.params)
            plain = found[ask.key]
            assert (plain.text, plain.finish_reason) == (result.text, result.finish_reason)
            assert plain.num_tokens == len(plain.ends) == len(result.tokens)
            assert plain.token_at(0) >= 0
    again = TextFile(path, "this")
    assert [again.get(ask) for ask in asks] == [found[ask.key] for ask in asks]
    assert missing(asks, again) == []
    assert missing(asks * 2, TextFile(path, "another model")) == asks
    assert missing(asks, TextFile(None, "this")) == asks


def fill(target: Path, texts: Path) -> None:
    """Have the file of texts, whichever test comes first."""
    if not texts.exists():
        result = invoke("--target", str(target), "--texts", str(texts), "--minutes", "0")
        assert result.exit_code == 0, (result.output, result.exception)
