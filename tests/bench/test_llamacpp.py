"""llama.cpp as a peer, over a scripted library: what it is fed, how it is timed, which setting wins."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from forerun.bench import llamacpp
from forerun.bench.llamacpp import NUM_BATCH, LlamaCppVariant, LlamaSetting, load_llamacpp
from forerun.errors import UnsupportedModelError

SIZE = 7


class Library:
    """Remembers (context, positions, tokens, which logits were asked for) of every batch; after token t comes t + 1."""

    LLAMA_FLASH_ATTN_TYPE_ENABLED, LLAMA_FLASH_ATTN_TYPE_DISABLED = 2, 1

    def __init__(self, status: int = 0) -> None:
        self.fed: list[tuple[int, list[int], list[int], list[int]]] = []
        self.forgotten: list[tuple[int, int]] = []
        self._status = status
        self._logits = np.zeros((NUM_BATCH, SIZE), dtype=np.float32)

    def llama_backend_init(self) -> None: ...

    def llama_model_default_params(self) -> Any:
        return SimpleNamespace()

    def llama_model_load_from_file(self, path: bytes, parameters: Any) -> str:
        assert parameters.n_gpu_layers == 0
        return path.decode()

    def llama_model_get_vocab(self, model: str) -> str:
        return model

    def llama_vocab_n_tokens(self, vocabulary: str) -> int:
        return SIZE

    def llama_batch_init(self, size: int, embeddings: int, sequences: int) -> Any:
        names = ("token", "pos", "n_seq_id", "logits")
        return SimpleNamespace(n_tokens=0, seq_id=[[0] for _ in range(size)], **{name: [0] * size for name in names})

    def llama_context_default_params(self) -> Any:
        return SimpleNamespace(flash_attn_type=-1)

    def llama_init_from_model(self, model: str, parameters: Any) -> int:
        self.parameters = parameters
        return int(parameters.flash_attn_type)

    def llama_get_memory(self, context: int) -> int:
        return context

    def llama_memory_seq_rm(self, memory: int, sequence: int, begin: int, end: int) -> None:
        self.forgotten.append((memory, begin))

    def llama_decode(self, context: int, batch: Any) -> int:
        n = batch.n_tokens
        self.fed.append((context, batch.pos[:n], batch.token[:n], batch.logits[:n]))
        wanted = [token for token, flag in zip(batch.token[:n], batch.logits[:n], strict=True) if flag]
        self._logits[:] = 0
        for row, token in enumerate(wanted):
            self._logits[row, (token + 1) % SIZE] = 1
        return self._status

    def llama_get_logits(self, context: int) -> Any:
        return self._logits.ctypes.data_as(ctypes.POINTER(ctypes.c_float))


def variant(monkeypatch: pytest.MonkeyPatch, **given: Any) -> tuple[LlamaCppVariant, Library]:
    library = Library(**given)
    monkeypatch.setattr(llamacpp, "_library", lambda: library)
    return load_llamacpp(Path("m.gguf"), "gguf", 300), library


def test_each_token_is_fed_once_behind_what_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    peer, library = variant(monkeypatch)
    sample = peer.generate([3, 5, 2], 4)
    assert sample.tokens == (3, 4, 5, 6)
    assert (sample.num_first, sample.num_passes) == (1, 3)
    assert [fed[1:] for fed in library.fed] == [
        ([0, 1, 2], [3, 5, 2], [0, 0, 1]),
        ([3], [3], [1]),
        ([4], [4], [1]),
        ([5], [5], [1]),
    ]
    assert peer.generate([1], 2).tokens == (2, 3), "nothing of the text before is left"
    assert library.fed[-2][1] == [0]
    assert library.parameters.n_ctx == 300


def test_a_long_prompt_goes_in_pieces_and_only_its_last_rows_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    peer, library = variant(monkeypatch)
    rows = peer.feed([i % SIZE for i in range(NUM_BATCH + 9)], 3)
    assert [len(fed[2]) for fed in library.fed] == [NUM_BATCH, 9]
    assert [sum(fed[3]) for fed in library.fed] == [0, 3]
    assert library.fed[1][1][0] == NUM_BATCH
    assert rows.shape == (3, SIZE)


def test_the_faster_setting_is_used_and_both_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    peer, library = variant(monkeypatch)
    clock = [0.0]

    def now() -> float:
        # With fused attention (context 2) a pass takes three ticks, without it one.
        clock[0] += 3.0 if library.fed and library.fed[-1][0] == 2 else 1.0
        return clock[0]

    monkeypatch.setattr(llamacpp, "perf_counter", now)
    peer.prepare([[1, 2, 3, 4], [5, 6]], 20)
    told = peer.describe()
    assert told["setting"] == {"flash_attention": False}
    assert [one["flash_attention"] for one in told["tried"]] == [True, False]
    assert {len(fed[2]) for fed in library.fed} == {2, 1}, "tried on the shortest prompt"
    library.fed.clear()
    peer.generate([1], 3)
    assert {fed[0] for fed in library.fed} == {1}
    assert LlamaSetting(False) == peer._chosen


def test_a_failure_of_llama_cpp_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    peer, _ = variant(monkeypatch, status=1)
    with pytest.raises(RuntimeError, match="llama_decode returned 1"):
        peer.generate([1], 3)


def test_only_gguf_files_are_its_business() -> None:
    with pytest.raises(UnsupportedModelError, match="no GGUF"):
        load_llamacpp(Path("directory"), "transformers", 300)


def test_passes_are_timed_behind_one_context(monkeypatch: pytest.MonkeyPatch) -> None:
    peer, library = variant(monkeypatch)
    peer.begin_passes(40)
    for rows in (4, 1):
        peer.run_pass(rows)
        peer.undo_pass()
    assert [fed[1] for fed in library.fed[1:]] == [[40, 41, 42, 43], [40]]
    assert [sum(fed[3]) for fed in library.fed[1:]] == [4, 1]
    assert [begin for _, begin in library.forgotten] == [0, 40, 40]
    peer.end_passes()
    assert library.forgotten[-1][1] == 0


@pytest.mark.parametrize(("num_tokens", "num_rows"), [(3, 4), (3, 0), (NUM_BATCH + 2, 3)])
def test_rows_that_llama_cpp_does_not_keep_are_refused(
    monkeypatch: pytest.MonkeyPatch, num_tokens: int, num_rows: int
) -> None:
    peer, library = variant(monkeypatch)
    with pytest.raises(ValueError, match="in the last batch"):
        peer.feed([1] * num_tokens, num_rows)
    assert not library.fed
