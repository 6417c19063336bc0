"""One server over tiny GGUF models with speculation for most tests, and the plain model that it must equal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.models.tiny_gguf import write_tiny_gguf
from tests.server.serving import Serving

from forerun.llm import LLM
from forerun.loading import load


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(target, draft), which agree often."""
    folder = tmp_path_factory.mktemp("models")
    target = write_tiny_gguf(folder / "target.gguf", seed=1, context_length=512)
    return target, write_tiny_gguf(folder / "draft.gguf", seed=1, perturb=0.1, context_length=512)


@pytest.fixture(scope="session")
def plain(models: tuple[Path, Path]) -> Iterator[LLM]:
    """The target alone."""
    with load(models[0]) as llm:
        yield llm


@pytest.fixture(scope="session")
def served(models: tuple[Path, Path]) -> Iterator[Serving]:
    """The target with its draft, served."""
    with Serving(load(models[0], draft=models[1], k=3, drafter="stack"), max_requests=64) as serving:
        yield serving
