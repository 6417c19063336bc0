"""Fixtures of the model tests: a cache of their own, and no way out of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.models.fake_hub import FakeHub, running_hub


@pytest.fixture
def forerun_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty FORERUN_HOME. Hub and package index are unreachable unless a test provides its own."""
    for name in list(os.environ):
        if name.startswith(("HF_", "PIP_", "FORERUN_")) or name in (
            "TRANSFORMERS_OFFLINE",
            "HUGGING_FACE_HUB_TOKEN",
        ):
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    monkeypatch.setenv("FORERUN_HOME", str(home))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    # huggingface_hub read the suite's HF_HUB_OFFLINE=1 when it was imported
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return home


@pytest.fixture
def hub(forerun_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A stand-in Hub that HF_ENDPOINT points to."""
    with running_hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        # huggingface_hub hands over 10 MB at a time; the stand-in's files are smaller than that
        monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 10_000)
        yield server
