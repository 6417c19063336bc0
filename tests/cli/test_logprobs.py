"""`--logprobs` and `--prompt-logprobs`: a table beside the text, figures in JSON, the same with drafts and without."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from tests.cli.conftest import Invoke
from tests.cli.toys import toy_llm

from forerun.cli.logprobs import print_logprobs
from forerun.types import TokenLogprob

GREEDY = ("hello", "--target", "toy", "--temperature", "0", "--max-tokens", "10")
DRAFTED = ("--draft", "toy-draft", "--k", "3")
ENTRY = {"token", "logprob", "rank", "top"}


def document_of(invoke: Invoke, *args: str) -> dict[str, Any]:
    result = invoke("generate", *args, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("kind", [(), ("--logprobs-kind", "processed")])
def test_json_has_one_entry_for_each_token(invoke: Invoke, kind: tuple[str, ...]) -> None:
    flags = ("hello", "--target", "toy", "--seed", "4", "--max-tokens", "10", "--top-k", "3", "--logprobs", "2", *kind)
    plain, drafted = document_of(invoke, *flags), document_of(invoke, *flags, *DRAFTED)
    assert plain["tokens"] == drafted["tokens"] == [entry["token"] for entry in plain["logprobs"]]
    for one, other in zip(plain["logprobs"], drafted["logprobs"], strict=True):
        assert set(one) == ENTRY
        assert one["logprob"] == pytest.approx(other["logprob"], abs=1e-9)
        assert one["logprob"] <= 0
        assert one["token"] in [entry["token"] for entry in one["top"]]
        assert [entry["token"] for entry in one["top"]] == [entry["token"] for entry in other["top"]]
    in_three = all(sum(math.exp(entry["logprob"]) for entry in one["top"]) > 0.5 for one in plain["logprobs"])
    assert in_three or not kind


def test_nothing_is_reported_unasked(invoke: Invoke) -> None:
    assert not {"logprobs", "prompt_logprobs"} & set(document_of(invoke, *GREEDY))
    assert "logprob" not in invoke("generate", *GREEDY).stderr


def test_no_alternatives(invoke: Invoke) -> None:
    found = document_of(invoke, *GREEDY, "--logprobs", "0")["logprobs"]
    assert [entry["top"] for entry in found] == [[]] * 10
    assert [entry["rank"] for entry in found] == [1] * 10


def test_the_prompt_is_scored_as_the_python_api_scores_it(invoke: Invoke) -> None:
    found = document_of(invoke, *GREEDY, *DRAFTED, "--prompt-logprobs", "1")["prompt_logprobs"]
    with toy_llm() as llm:
        expected = llm.generate("hello", temperature=0, max_tokens=10, prompt_logprobs=1).prompt_logprobs
    assert expected is not None
    assert found[0] is None
    assert expected[0] is None
    pairs = list(zip(found[1:], expected[1:], strict=True))
    assert [one["token"] for one, _ in pairs] == list(b"ello")
    for one, other in pairs:
        assert other is not None
        assert one["logprob"] == pytest.approx(other.logprob)


@pytest.mark.parametrize("drafter", [(), DRAFTED])
def test_the_text_is_untouched_and_the_table_beside_it(invoke: Invoke, drafter: tuple[str, ...]) -> None:
    bare = invoke("generate", *GREEDY, *drafter)
    result = invoke("generate", *GREEDY, *drafter, "--logprobs", "2", "--prompt-logprobs", "0")
    assert result.stdout == bare.stdout
    lines = result.stderr.splitlines()
    found = document_of(invoke, *GREEDY, *drafter, "--logprobs", "2")["logprobs"]
    mean = sum(entry["logprob"] for entry in found) / 10
    start = lines.index(f"tokens: mean {mean:.3f} over 10 tokens")
    assert lines[start + 1].split() == ["token", "id", "logprob", "rank", "alternatives"]
    for line, entry in zip(lines[start + 2 :], found, strict=False):
        (other,) = [top for top in entry["top"] if top["token"] != entry["token"]]
        assert line.split("  ")[0].strip() == repr(chr(entry["token"]))
        assert f"{entry['logprob']:.3f}" in line
        assert line.rstrip().endswith(f"{chr(other['token'])!r} {other['logprob']:.3f}")
    heads = [line for line in lines if line.startswith("prompt: ")]
    assert len(heads) == 1
    assert heads[0].endswith("over 4 tokens")


def test_scoring_alone(invoke: Invoke) -> None:
    result = invoke("generate", "hello", "--target", "toy", "--max-tokens", "0", "--prompt-logprobs", "1")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "over 4 tokens" in result.stderr


def test_every_text_has_its_table(invoke: Invoke) -> None:
    result = invoke("generate", *GREEDY, "--n", "2", "--logprobs", "0", "--prompt-logprobs", "0")
    lines = [line for line in result.stderr.splitlines() if line.startswith(("--", "tokens: ", "prompt: "))]
    assert [line.split(":")[0] for line in lines] == ["-- text 1 of 2", "tokens", "-- text 2 of 2", "tokens", "prompt"]


def test_chat_has_them_too(invoke: Invoke) -> None:
    result = invoke("chat", *GREEDY[1:], "--logprobs", "1", input="hello\n")
    assert result.exit_code == 0
    assert "over 10 tokens" in result.stderr


class Tokens:
    vocabulary_size = 4

    def token_bytes(self, token: int) -> bytes:
        return [b":smile:", b"\xf0\x9f", b"\x1b[31m", "\u00e9[red]".encode()][token]


def test_a_token_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    entries = [TokenLogprob(i, -1.0, 1, ((0, -0.5), (i, -1.0))) for i in range(5)]
    print_logprobs("tokens", [None, *entries], Tokens())  # type: ignore[arg-type]
    shown = [line.split("  ")[0] for line in capsys.readouterr().err.splitlines()[2:]]
    assert shown == ["':smile:'", r"b'\xf0\x9f'", r"'\x1b[31m'", "'\u00e9[red]'", "<4>"]


def test_what_has_no_entries_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    print_logprobs("prompt", [None], None)
    print_logprobs("tokens", None, None)
    assert capsys.readouterr().err == "prompt: no token has one\n"
