"""Toy models that `forerun.load` finds by name, so that the whole command line runs in milliseconds, without weights.

`patch` replaces the files, tokenizers and runtimes below `forerun.loading.load`, never `load` itself: every setting
still passes through the real one.

    toy         a random text of letters; `toy-draft` agrees with it most of the time
    toy-slow    the same, 30 ms a pass; says "begun" on standard error at 8 tokens
    toy-stuck   the same, but a pass of 8 tokens or more never ends: it says "begun", and "asked" after a Ctrl-C
    toy-phrase  a fixed text with accents, an emoji, and a terminal escape
    toy-small   `toy` with a context of 24 tokens
    toy-nan     `toy`, but NaN once 8 tokens are cached
    toy-crash   `toy`, but a RuntimeError there; toy-contract: a ContractError; toy-torchless: its runtime is missing
    toy-foreign `toy`, but not for the native runtime
    toy-odd     another vocabulary; toy-new: an unsupported architecture; toy-raw: no chat template
"""

from __future__ import annotations

import codecs
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from forerun.errors import (
    ContractError,
    MissingDependencyError,
    PromptError,
    UnsupportedModelError,
    VocabularyMismatchError,
)
from forerun.llm import LLM
from forerun.models import pull
from forerun.models.store import ModelFiles
from forerun.runtime.toy import ToyModel

EOS = 256
SIZE = 257
LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz ", dtype=np.uint8)
PHRASE = "na\u00efve \x1b[31m\U0001f642 caf\u00e9\n".encode()


class ByteTokenizer:
    """Token ids are bytes; 256 ends the text."""

    vocabulary_size = SIZE
    eos_ids = (EOS,)
    chat_template: str | None = None
    parts = SimpleNamespace(control_ids=frozenset({EOS}), added_ids=frozenset({EOS}))

    def __init__(self, has_template: bool = True) -> None:
        self.has_template = has_template

    def encode(self, text: str, **settings: bool) -> list[int]:
        return list(text.encode())

    def token_bytes(self, token: int) -> bytes:
        return b"" if token == EOS else bytes([token])

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        if not self.has_template:
            raise PromptError("this model has no chat template", "", "use forerun generate without --chat")
        return self.encode("".join(f"<{m['role'][0]}>{m['content']}" for m in messages) + "<a>")

    def detokenizer(self, **settings: bool) -> ByteDetokenizer:
        return ByteDetokenizer()


class ByteDetokenizer:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        return "" if token == EOS else self._decoder.decode(bytes([token]))

    def finish(self) -> str:
        return self._decoder.decode(b"", True)


def toy_model(name: str, context_length: int | None = None) -> ToyModel:
    """The model called `name`, with its trouble."""
    if name == "toy-torchless":
        raise MissingDependencyError("torch is not installed", "", "pip install torch")
    context_length = context_length or (24 if name == "toy-small" else 4096)
    return ToyModel(_phrase if name == "toy-phrase" else _letters(name), SIZE, context_length)


def toy_llm(name: str = "toy") -> LLM:
    """The target that `--target NAME` loads, decoding plainly."""
    return LLM(toy_model(name), ByteTokenizer())  # type: ignore[arg-type]


def plain_text(prompt: str = "hello", max_tokens: int = 40, **params: Any) -> str:
    """What plain greedy decoding of `toy` writes, by the Python API."""
    with toy_llm() as llm:
        return llm.generate(prompt, temperature=0, max_tokens=max_tokens, **params).text


def patch(setitem: Callable[[Any, str, Any], None], setattr_: Callable[[Any, str, Any], None]) -> None:
    """Put the toys where `forerun.loading.load` looks; the arguments are those of monkeypatch, or plain ones."""
    tokenizer = ModuleType("forerun.models.tokenizer")
    tokenizer.load_tokenizer = lambda path: ByteTokenizer(path.name != "toy-raw")  # type: ignore[attr-defined]
    vocabulary = ModuleType("forerun.models.vocabulary")
    vocabulary.require_same_vocabulary = lambda target, draft: None  # type: ignore[attr-defined]
    runtime = ModuleType("forerun.runtime.torch")
    runtime.check_torch_model = _check  # type: ignore[attr-defined]
    runtime.load_torch_model = _load  # type: ignore[attr-defined]
    native = ModuleType("forerun.runtime.native")
    native.check_native_model = _check_native  # type: ignore[attr-defined]
    native.load_native_model = _load  # type: ignore[attr-defined]
    for module in (tokenizer, vocabulary, runtime, native):
        setitem(sys.modules, module.__name__, module)
    real = pull.resolve

    def resolve(name: str, **settings: Any) -> ModelFiles:
        if name.startswith("toy"):
            return ModelFiles(name, Path(name), "gguf", "local", None)
        return real(name, **{**settings, "offline": True})

    setattr_(pull, "resolve", resolve)


def _check(path: Path, **settings: Any) -> None:
    if path.name == "toy-odd":
        raise VocabularyMismatchError("draft and target disagree about token 7", "'a' against 'b'")
    if path.name == "toy-new":
        raise UnsupportedModelError("the architecture 'mamba' is not served", "", "served are: llama, qwen2")


def _check_native(path: Path, **settings: Any) -> None:
    if path.name == "toy-foreign":
        raise UnsupportedModelError("tensors of type Q2_K are not served natively")
    _check(path)


def _load(path: Path, *, context_length: int | None = None, **settings: Any) -> ToyModel:
    return toy_model(path.name, context_length)


def _letters(name: str) -> Callable[[tuple[int, ...]], np.ndarray]:
    def logits_of(tokens: tuple[int, ...]) -> np.ndarray:
        if (name == "toy-slow" and len(tokens) == 8) or (name == "toy-stuck" and len(tokens) >= 8):
            print("begun", file=sys.stderr, flush=True)
        if name == "toy-slow":
            time.sleep(0.03)
        if len(tokens) >= 8:
            if name == "toy-stuck":
                _wait_for_ever()
            if name == "toy-nan":
                return np.full(SIZE, np.nan)
            if name == "toy-crash":
                raise RuntimeError("boom\nin two lines")
            if name == "toy-contract":
                raise ContractError("the toy broke its protocol")
        row = np.full(SIZE, -40.0)
        row[LETTERS] = np.random.default_rng(tokens[-2:]).normal(0.0, 4.0, len(LETTERS))
        if name == "toy-draft":
            row[LETTERS] += np.random.default_rng((9, *tokens[-2:])).normal(0.0, 1.0, len(LETTERS))
        return row

    return logits_of


def _wait_for_ever() -> None:
    has_said = False
    while True:
        time.sleep(0.01)
        interrupts = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
        if not has_said and getattr(interrupts, "requested", False):
            has_said = True
            print("asked", file=sys.stderr, flush=True)


def _phrase(tokens: tuple[int, ...]) -> np.ndarray:
    """The byte after `tokens`; a one-token prompt begins the phrase."""
    row = np.full(SIZE, -40.0)
    row[PHRASE[(len(tokens) - 1) % len(PHRASE)]] = 0.0
    return row
