"""Which runtime serves which model, and pairs of both: text is the target's own, whoever drafts.

Over the numpy decoder, so that the choice alone is tested here.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models.tiny_gguf import write_tiny_gguf
from tests.runtime.as_gguf import write_gguf
from tests.runtime.numpy_decoder import NumpyDecoder, NumpyMatrix
from tests.runtime.tiny import tiny

from forerun import LLM, _native
from forerun.drafting import ModelDrafter, StackDrafter
from forerun.errors import (
    FileFormatError,
    ForerunError,
    MissingDependencyError,
    ParameterError,
    UnknownModelError,
    UnsupportedModelError,
)
from forerun.loading import load
from forerun.models.progress import SilentProgress
from forerun.runtime import select
from forerun.runtime.base import Model
from forerun.runtime.native import NativeModel
from forerun.runtime.select import choose
from forerun.runtime.torch import TorchModel
from forerun.types import Span


@pytest.fixture(autouse=True)
def in_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "Decoder", NumpyDecoder, raising=False)
    monkeypatch.setattr(_native, "PackedMatrix", NumpyMatrix, raising=False)
    monkeypatch.setattr(select, "_DRIVERS", ())


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    """(path, kind) of models that differ in who can serve them."""
    folder = tmp_path_factory.mktemp("choice")
    tiny("llama").save_pretrained(folder / "directory")
    tiny("gpt2").save_pretrained(folder / "odd")
    odd = {"blk.1.ffn_down.weight": "TQ2_0"}
    wide = tiny("llama", intermediate_size=256)
    return {
        "served": (write_gguf(folder / "served.gguf", tiny("qwen2"), "qwen2"), "gguf"),
        "odd type": (write_gguf(folder / "odd.gguf", wide, "llama", types=odd), "gguf"),
        "odd family": (write_gguf(folder / "odd-family.gguf", tiny("llama"), "starcoder2"), "gguf"),
        "nobody's": (write_gguf(folder / "nobody.gguf", tiny("llama"), "odd-family"), "gguf"),
        "directory": (folder / "directory", "transformers"),
        "odd directory": (folder / "odd", "transformers"),
    }


@pytest.mark.parametrize(
    "name, settings, runtime, reason",
    [
        ("served", {}, "native", ""),
        ("served", {"device": "cpu", "strict": True, "context_length": 20}, "native", ""),
        ("served", {"runtime": "native"}, "native", ""),
        ("served", {"runtime": "native", "dtype": "bfloat16"}, "native", ""),
        ("served", {"runtime": "torch"}, "torch", ""),
        ("served", {"dtype": "bfloat16"}, "torch", ""),
        ("served", {"device": "cuda:1"}, "torch", ""),
        ("odd type", {}, "torch", "blk.1.ffn_down.weight .* stored as TQ2_0"),
        ("odd type", {"runtime": "native"}, "native", ""),  # whose check says what it cannot do
        ("odd family", {}, "torch", "architecture 'starcoder2'"),
        ("directory", {}, "torch", ""),
        ("directory", {"runtime": "native"}, "native", ""),
        ("directory", {"quantize": "q8_0"}, "native", ""),
        ("directory", {"requantise": True}, "native", ""),
    ],
)
def test_who_serves_what(
    files: dict[str, tuple[Path, str]], name: str, settings: dict[str, Any], runtime: str, reason: str
) -> None:
    chosen = choose(*files[name], **settings)
    assert chosen.runtime == runtime
    assert re.search(reason, chosen.reason) if reason else not chosen.reason
    assert ("strict" in chosen.settings) == (runtime == "torch")


@pytest.mark.parametrize(
    "name, settings, message",
    [
        ("served", {"runtime": "fast"}, "runtime: 'fast' is not allowed. one of auto, native, torch"),
        ("directory", {"quantize": "q4", "runtime": "torch"}, "quantize: needs the native runtime"),
        ("directory", {"quantize": "q4", "dtype": "float32"}, "quantize: needs the native runtime"),
        ("directory", {"quantize": "q5"}, "quantize: 'q5' is not allowed. one of q4, q8_0, bf16"),
        ("odd directory", {"quantize": "q4"}, "quantize: needs the native runtime.*model type 'gpt2'"),
        ("odd type", {"requantise": True}, "requantise: needs the native runtime.*TQ2_0"),
        ("served", {"requantise": True, "runtime": "torch"}, "requantise: needs the native runtime"),
    ],
)
def test_what_no_runtime_can_do_is_refused(
    files: dict[str, tuple[Path, str]], name: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ParameterError, match=message):
        choose(*files[name], **settings)


def test_what_neither_serves_is_refused_by_both_reasons(files: dict[str, tuple[Path, str]]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"nor is it by the native runtime: the architecture 'odd-family'"):
        choose(*files["nobody's"]).check()


def test_a_cuda_device_is_asked_for_only_where_there_is_a_driver(
    files: dict[str, tuple[Path, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert choose(*files["served"]).runtime == "native"
    monkeypatch.setattr(select, "_DRIVERS", (str(tmp_path / "absent"), str(tmp_path)))
    assert choose(*files["served"]).runtime == "torch"
    assert choose(*files["served"], device="cpu").runtime == "native"


def test_a_file_that_nobody_can_read_is_refused_by_what_is_wrong_with_it(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\3\0\0\0 and no more")
    with pytest.raises(FileFormatError):
        choose(broken, "gguf").check()
    with pytest.raises(UnknownModelError):
        choose(tmp_path / "absent.gguf", "gguf").check()


def test_without_the_compiled_module(files: dict[str, tuple[Path, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    from forerun.runtime import native

    real = importlib.util.find_spec
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: None if name == "forerun._native" else real(name))
        with pytest.raises(MissingDependencyError, match="not built"):
            importlib.reload(native)
    importlib.reload(native)

    def missing(path: Path, **settings: object) -> None:
        raise MissingDependencyError("the native runtime is not built", "forerun._native is missing")

    monkeypatch.setattr(native, "check_native_model", missing)
    chosen = choose(*files["served"])
    assert (chosen.runtime, chosen.reason) == ("torch", "the native runtime is not built. forerun._native is missing")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny target and a draft of the same vocabulary, perturbed from it."""
    folder = tmp_path_factory.mktemp("pair")
    target = write_tiny_gguf(folder / "target.gguf", seed=3)
    return target, write_tiny_gguf(folder / "draft.gguf", seed=3, perturb=0.3)


def drafts_of(llm: LLM) -> Model:
    """The draft model of a pair as it is loaded by default: one of several sources."""
    drafter = llm.engine.drafter
    assert isinstance(drafter, StackDrafter)
    (found,) = [source.model for source in drafter.sources.values() if isinstance(source, ModelDrafter)]
    return found


KINDS = {"native": NativeModel, "torch": TorchModel}


@pytest.mark.parametrize("runtime, draft_runtime", [("native", "torch"), ("torch", "native"), ("native", "native")])
def test_mixed_pairs_write_the_targets_own_text(pair: tuple[Path, Path], runtime: str, draft_runtime: str) -> None:
    common: dict[str, Any] = {"runtime": runtime, "device": "cpu", "strict": True}
    prompts = [[5, 6, 7], [9] * 12, [30, 31]]
    drafted = {"draft": pair[1], "draft_runtime": draft_runtime, "draft_vocabulary": 500}
    with load(pair[0], **common) as plain, load(pair[0], **common, **drafted) as llm:
        assert type(llm.engine.target) is KINDS[runtime]
        assert type(drafts_of(llm)) is KINDS[draft_runtime]
        for params in ({"temperature": 0}, {"seed": 8, "temperature": 0.7, "top_p": 0.9}):
            expected = plain.generate(prompts, max_tokens=16, ignore_eos=True, **params)
            found = llm.generate(prompts, max_tokens=16, ignore_eos=True, **params)
            assert [result.tokens for result in found] == [result.tokens for result in expected]
            assert sum(result.speculation.num_accepted for result in found) > 0


def test_a_torch_target_with_a_dtype_takes_a_native_draft(pair: tuple[Path, Path]) -> None:
    with load(pair[0], dtype="float32", draft=pair[1], draft_runtime="native") as llm:
        assert type(llm.engine.target) is TorchModel
        assert type(drafts_of(llm)) is NativeModel
    with load(pair[0], dtype="float32", draft=pair[1]) as llm:  # what torch alone has is asked of both
        assert type(drafts_of(llm)) is TorchModel


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"runtime": "native", "dtype": "bfloat16"}, "dtype: 'bfloat16' is for the torch runtime"),
        ({"runtime": "native", "device": "cuda"}, "device: 'cuda' is for the torch runtime"),
        ({"draft_runtime": "fast"}, "draft_runtime: 'fast' is not allowed"),
        ({"draft_runtime": "torch", "draft_requantise": True}, "draft_requantise: needs the native runtime"),
        ({"draft_context": 257}, "draft_context: 257"),
        ({"draft_vocabulary": 601}, "draft_vocabulary: 601"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_weights_load(
    pair: tuple[Path, Path], settings: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(select.Choice, "load", never)
    draft = {} if settings.get("runtime") else {"draft": pair[1]}
    with pytest.raises(ParameterError, match=message):
        load(pair[0], **draft, **settings)


def test_rows_on_two_devices_are_refused(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(select, "_DRIVERS", (str(tmp_path),))
    monkeypatch.setattr(select.Choice, "check", lambda self: None)
    with pytest.raises(ParameterError, match="draft_runtime: 'native' drafts on the CPU"):
        load(pair[0], draft=pair[1], draft_runtime="native")


def test_who_falls_back_to_torch_is_told(files: dict[str, tuple[Path, str]], pair: tuple[Path, Path]) -> None:
    class Noting(SilentProgress):
        def __init__(self) -> None:
            self.notes: list[str] = []

        def note(self, text: str) -> None:
            self.notes.append(text)

    heard = Noting()
    with load(pair[0], draft=pair[1], progress=heard):
        assert heard.notes == []
    with pytest.raises(ForerunError):  # these files have no tokenizer: the note is asked of the choice alone
        load(files["odd type"][0])
    odd = write_tiny_gguf(pair[0].with_name("odd.gguf"), tensor_type="TQ2_0", hidden=256, feed_forward=256)
    with load(odd, draft=pair[1], progress=heard):
        (note,) = heard.notes
    assert note.startswith(f"{odd}: on the torch runtime, since tensor ")
    assert note.endswith("stored as TQ2_0")


@pytest.mark.parametrize("draft_runtime", ["native", "torch"])
def test_a_drafts_cut_head_keeps_what_ends_a_text(pair: tuple[Path, Path], draft_runtime: str) -> None:
    """The last five ids of the vocabulary are special."""
    with load(pair[0], draft=pair[1], draft_vocabulary=100, runtime="native", draft_runtime=draft_runtime) as llm:
        model = drafts_of(llm)
        model.begin(7)
        kept = np.isfinite(model.forward([Span(7, 0, [5], 1)]).matrix[0])
    assert kept.sum() == 100
    assert kept[:95].all()
    assert kept[595:600].all()
