"""What tests of the runtimes share: one thread for tiny models, and a tiny native pair."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models.tiny_gguf import write_tiny_pair
from tests.runtime.native_pair import LONG, PROMPTS

from forerun import _native
from forerun.loading import load


@pytest.fixture(autouse=True)
def one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tiny models gain nothing from threads, and lose much where other processes compete for the cores."""
    before = torch.get_num_threads()
    if request.node.get_closest_marker("slow") is None:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """GGUF files of a target, and of a draft that often agrees with it."""
    return write_tiny_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def texts(pair: tuple[Path, Path]) -> Iterator[list[tuple[int, ...]]]:
    """What the target writes to PROMPTS with seed 1."""
    with load(pair[0]) as llm:
        yield [llm.generate(prompt, seed=1, **LONG).tokens for prompt in PROMPTS]


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where a weight is read."""

    class Empty:
        def __init__(self, description: dict[str, Any]) -> None: ...
        def __getattr__(self, name: str) -> Any:
            raise AssertionError("weights were read")

    monkeypatch.setattr(_native, "Decoder", Empty)
