"""cases.md C24, C25 and C26 on GGUF files in the native runtime: padded vocabularies, drafts of a shorter context, and
texts that fill the context. What the toys of the neighbouring files show must hold for real rows and caches too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models.tiny_gguf import write_tiny_gguf
from typer.testing import CliRunner

from forerun.cli import app
from forerun.drafting import ModelDrafter
from forerun.errors import ContextLengthError, ParameterError
from forerun.loading import load
from forerun.models.gguf import open_gguf
from forerun.runtime.native import NativeModel

REAL, PADDING, CONTEXT = 600, 64, 256
MODES: tuple[dict[str, Any], ...] = ({"temperature": 0}, {"seed": 4}, {"seed": 4, "temperature": 1.4, "top_k": 30})


def prefer_padding(path: Path) -> Path:
    """Make the head like a padded id best of all, wherever the text is: its weights are the final norm's sign, scaled
    up, and the final hidden state's first number is made large by a bias of the last layer."""
    with open_gguf(path) as file:
        head, norm = file.tensors["output.weight"], file.tensors["output_norm.weight"]
        hidden = head.shape[1]
        rows = np.array(file.dequantise("output.weight"))
    data = bytearray(path.read_bytes())
    rows[REAL:] = 0
    rows[REAL + 10 :: 2] = 50 * np.sign(rows[0])  # opposite signs beside each other: one of them is always liked
    rows[REAL + 11 :: 2] = -50 * np.sign(rows[0])
    data[head.offset : head.offset + head.num_bytes] = rows.astype(np.float32).tobytes()
    assert (head.type_name, norm.shape) == ("F32", (hidden,))
    path.write_bytes(data)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Targets and drafts of one vocabulary, with and without rows beyond it; padded ones like padded ids best."""
    folder = tmp_path_factory.mktemp("files")
    made = {"bare": write_tiny_gguf(folder / "bare.gguf", seed=3, tied=False)}
    made["bare draft"] = write_tiny_gguf(folder / "bare-draft.gguf", seed=3, tied=False, perturb=0.2)
    for name, settings in {
        "padded": {"padding": PADDING},
        "padded draft": {"padding": PADDING, "perturb": 0.2},
        "padded more": {"padding": 2 * PADDING, "perturb": 0.2},
    }.items():
        path = folder / f"{name.replace(' ', '-')}.gguf"
        made[name] = prefer_padding(write_tiny_gguf(path, seed=3, tied=False, **settings))
    made["short draft"] = write_tiny_gguf(folder / "short.gguf", seed=3, tied=False, perturb=0.2, context_length=48)
    return made


# -- C24: padded vocabularies ------------------------------------------------------------------------------------------


def test_c24_the_padded_rows_are_the_likeliest(files: dict[str, Path]) -> None:
    """So that the tests below could fail."""
    with load(files["padded"]) as llm:
        model = llm.engine.target
        assert (type(model), model.capabilities.vocabulary_size) == (NativeModel, REAL + PADDING)
        from forerun.types import Span

        model.begin(-1)
        rows = model.forward([Span(-1, 0, [5, 6, 7, 300], 4)]).matrix
        assert (rows.argmax(axis=1) >= REAL).all()
        model.free(-1)


PAIRS = [
    ("padded", "bare draft"),
    ("bare", "padded draft"),
    ("padded", "padded draft"),
    ("padded draft", "padded more"),
]


@pytest.mark.parametrize("settings", [{}, {"draft_vocabulary": 300}, {"draft_requantise": True}], ids=str)
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_c24_padded_files_never_show(
    pair: tuple[str, str], settings: dict[str, Any], files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    proposed: set[int] = set()
    propose = ModelDrafter.propose

    def watched(self: ModelDrafter, *args: Any) -> Any:
        drafts = propose(self, *args)
        proposed.update(token for draft in drafts for token in draft.tokens)
        return drafts

    monkeypatch.setattr(ModelDrafter, "propose", watched)
    target, draft = (files[name] for name in pair)
    with load(target) as plain, load(target, draft=draft, k=3, **settings) as llm:
        for params in (*MODES, {}):
            found = llm.generate([5, 6, 7, 300], max_tokens=40, ignore_eos=True, logprobs=2, **params)
            assert max(found.tokens) < REAL
            assert all(np.isfinite(entry.logprob) for entry in found.logprobs or ())
            if params:
                expected = plain.generate([5, 6, 7, 300], max_tokens=40, ignore_eos=True, logprobs=2, **params)
                assert (found.tokens, found.logprobs) == (expected.tokens, expected.logprobs)
    assert proposed
    assert max(proposed) < REAL


def test_c24_real_rows_of_padded_and_bare_files_agree(files: dict[str, Path]) -> None:
    """The same target with and without padding writes the same text."""
    with load(files["bare"]) as bare, load(files["padded"]) as padded:
        for params in MODES:
            one, other = (llm.generate([5, 6], max_tokens=30, ignore_eos=True, **params) for llm in (bare, padded))
            assert one.tokens == other.tokens


# -- C25: drafts of a shorter context ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def texts(files: dict[str, Path]) -> Iterator[dict[tuple[int, int], tuple[int, ...]]]:
    """What the target writes, by prompt length and mode."""
    with load(files["bare"]) as llm:
        yield {
            (length, i): llm.generate(prompt_of(length), max_tokens=60, ignore_eos=True, **params).tokens
            for length in LENGTHS
            for i, params in enumerate(MODES)
        }


LENGTHS = (3, 44, 47, 48, 49, 150)


def prompt_of(length: int) -> list[int]:
    return [(7 * i + i // 5) % REAL for i in range(length)]


@pytest.mark.parametrize("settings", [{}, {"draft_context": 48}, {"draft_context": 1}, {"draft_context": 9}], ids=str)
@pytest.mark.parametrize("length", LENGTHS)
def test_c25_a_short_draft_slides_and_its_cache_stays_short(
    length: int, settings: dict[str, Any], files: dict[str, Path], texts: dict[tuple[int, int], tuple[int, ...]]
) -> None:
    draft = files["bare draft" if settings else "short draft"]
    limit = settings.get("draft_context", 48)
    with load(files["bare"], draft=draft, k=4, **settings) as llm:
        model, longest = llm.engine.drafter.model, [0]
        forward = model.forward

        def watched(spans: Any) -> Any:
            rows = forward(spans)
            longest[0] = max(longest[0], *(model.length(span.sequence_id) for span in spans))
            return rows

        model.forward = watched
        for i, params in enumerate(MODES):
            result = llm.generate(prompt_of(length), max_tokens=60, ignore_eos=True, **params)
            assert result.tokens == texts[length, i]
            rounds = result.speculation.rounds
            assert sum(times for (num, _), times in rounds.items() if num == 0) <= 2  # the first, and the last
        assert 0 < longest[0] <= limit
        assert (model.cache_bytes, llm.engine.target.cache_bytes) == (0, 0)


# -- C26: the target's context -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", ["none", "bare draft", "short draft"])
@pytest.mark.parametrize("budget", [{}, {"max_tokens": 100}], ids=str)
def test_c26_a_text_ends_at_exactly_the_context(draft: str, budget: dict[str, Any], files: dict[str, Path]) -> None:
    drafted = {} if draft == "none" else {"draft": files[draft], "k": 8}
    with load(files["bare"]) as unlimited, load(files["bare"], context_length=64, **drafted) as llm:
        for length in (1, 50, 60, 62, 63):
            for params in MODES:
                result = llm.generate(prompt_of(length), ignore_eos=True, **params, **budget)
                expected = unlimited.generate(prompt_of(length), ignore_eos=True, max_tokens=64 - length, **params)
                assert (result.tokens, result.finish_reason) == (expected.tokens, "length")
        for length in (64, 65, 500):
            with pytest.raises(ContextLengthError, match=f"{length} tokens and the context holds 64"):
                llm.generate(prompt_of(length), **budget)
        assert llm.engine.target.cache_bytes == 0
        assert llm.engine.is_idle


def test_c26_the_files_own_context_is_the_limit(files: dict[str, Path]) -> None:
    with load(files["bare"]) as llm:
        result = llm.generate(prompt_of(CONTEXT - 2), ignore_eos=True, seed=1)
        assert (len(result.tokens), result.finish_reason) == (2, "length")
        with pytest.raises(ContextLengthError, match=f"holds {CONTEXT}"):
            llm.generate(prompt_of(CONTEXT))
    with pytest.raises(ParameterError, match=f"context_length: {CONTEXT + 1}"):
        load(files["bare"], context_length=CONTEXT + 1)


@pytest.mark.parametrize("drafted", [(), ("--draft", "bare draft"), ("--draft", "short draft", "--draft-ctx", "20")])
def test_c26_on_the_command_line(drafted: tuple[str, ...], files: dict[str, Path]) -> None:
    more = [str(files.get(word, word)) for word in drafted]
    common = ["generate", "--target", str(files["bare"]), "--context-length", "64", "--runtime", "native", *more]
    found = CliRunner().invoke(app, [*common, "a", "--ignore-eos", "--seed", "1", "--json"])
    document = json.loads(found.stdout)
    assert (found.exit_code, document["finish_reason"]) == (0, "length")
    assert document["usage"]["prompt_tokens"] + document["usage"]["completion_tokens"] == 64
    refused = CliRunner().invoke(app, [*common, "qz" * 60])
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "the context holds 64" in refused.stderr
