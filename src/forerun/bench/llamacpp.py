"""llama.cpp on the same GGUF file, plain, through llama-cpp-python's low-level calls: the baseline on a CPU.

Its best settings are looked for: every thread of the process, flash attention on or off, whichever is faster here.
Greedy and sampled tokens are chosen from its logits outside it, in numpy, which costs it about a tenth of a
millisecond a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from forerun.bench.curves import context_tokens, row_tokens
from forerun.bench.variants import Sample
from forerun.errors import MissingDependencyError, UnsupportedModelError

LLAMA_CPP = "llama.cpp"
INSTALL_LLAMA_CPP = "pip install llama-cpp-python (minutes: it is compiled)"
NUM_TUNING_TOKENS = 32
NUM_BATCH = 512


@dataclass(frozen=True, slots=True)
class LlamaSetting:
    """What llama.cpp leaves to its user: fused attention, and the type of its key-value cache stays float16."""

    flash_attention: bool


SETTINGS = (LlamaSetting(True), LlamaSetting(False))


class LlamaCppVariant:
    """llama.cpp's own decoding of one file. `prepare` tries each setting on the shortest prompt and keeps the best."""

    name, is_peer, k = LLAMA_CPP, True, 0
    drafter: str | None = None

    def __init__(self, path: Path, num_threads: int, context_length: int, temperature: float = 0.0) -> None:
        self._library = _library()
        self._path, self._num_threads, self._context_length = path, num_threads, context_length
        self._temperature = temperature
        self._model = self._load_model()
        self._contexts = {setting: self._make_context(setting) for setting in SETTINGS}
        self._chosen = SETTINGS[0]
        self._tried: list[dict[str, Any]] = []
        self._random = np.random.default_rng(0)

    def prepare(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> None:
        shortest = min(prompts, key=len)
        budget = min(num_tokens, NUM_TUNING_TOKENS)
        times: dict[LlamaSetting, list[float]] = {setting: [] for setting in SETTINGS}
        for _ in range(2):
            for setting in SETTINGS:
                self._chosen, self._length = setting, 0
                times[setting].append(self.generate(shortest, budget).ms_per_token)
        self._tried = [{**asdict(setting), "ms_per_token": min(found)} for setting, found in times.items()]
        self._chosen = min(SETTINGS, key=lambda setting: min(times[setting]))

    def generate(self, prompt: Sequence[int], num_tokens: int) -> Sample:
        self.clear()
        start = perf_counter()
        tokens = [self._choose(self.feed(prompt))]
        first_s = perf_counter() - start
        while len(tokens) < num_tokens:
            tokens.append(self._choose(self.feed(tokens[-1:])))
        return Sample(tuple(tokens), 1, first_s, perf_counter() - start, num_tokens - 1)

    def describe(self) -> dict[str, Any]:
        return {"setting": asdict(self._chosen), "tried": self._tried, "threads": self._num_threads}

    def begin_passes(self, context: int) -> None:
        """Cache `context` tokens, to time passes behind them (see `bench.curves`)."""
        self.clear()
        self.feed(context_tokens(context, self._vocabulary_size))

    def run_pass(self, rows: int) -> None:
        self._before_pass = self._length
        self.feed(row_tokens(rows, self._vocabulary_size), rows)

    def undo_pass(self) -> None:
        self._forget(self._before_pass)

    def end_passes(self) -> None:
        self.clear()

    # -- llama.cpp's calls --------------------------------------------------------------------------------------------

    def feed(self, tokens: Sequence[int], num_rows: int = 1) -> np.ndarray:
        """Feed tokens behind what is cached; logits of the last `num_rows` tokens [num_rows, vocab] (a view).

        ValueError unless those rows are all in the last batch: llama.cpp keeps no others."""
        in_last = (len(tokens) - 1) % NUM_BATCH + 1
        if not 0 < num_rows <= in_last:
            raise ValueError(f"{num_rows} rows of {len(tokens)} tokens, of which {in_last} are in the last batch")
        context, at = self._contexts[self._chosen], self._length
        for begin in range(0, len(tokens), NUM_BATCH):
            piece = tokens[begin : begin + NUM_BATCH]
            is_last = begin + NUM_BATCH >= len(tokens)
            batch = self._batch
            batch.n_tokens = len(piece)
            for i, token in enumerate(piece):
                batch.token[i], batch.pos[i], batch.n_seq_id[i] = int(token), at + begin + i, 1
                batch.seq_id[i][0] = 0
                batch.logits[i] = 1 if is_last and i >= len(piece) - num_rows else 0
            status = self._library.llama_decode(context, batch)
            if status:
                raise RuntimeError(f"llama_decode returned {status}")
        self._length = at + len(tokens)
        pointer = self._library.llama_get_logits(context)
        return np.ctypeslib.as_array(pointer, shape=(num_rows, self._vocabulary_size))

    def clear(self) -> None:
        """Forget what is cached."""
        self._forget(0)

    def _forget(self, length: int) -> None:
        library = self._library
        library.llama_memory_seq_rm(library.llama_get_memory(self._contexts[self._chosen]), -1, length, -1)
        self._length = length

    def _load_model(self) -> Any:
        library = self._library
        library.llama_backend_init()
        parameters = library.llama_model_default_params()
        parameters.n_gpu_layers = 0
        model = library.llama_model_load_from_file(str(self._path).encode(), parameters)
        if not model:
            raise RuntimeError(f"llama.cpp cannot load {self._path.name}")
        self._vocabulary_size = int(library.llama_vocab_n_tokens(library.llama_model_get_vocab(model)))
        self._batch = library.llama_batch_init(NUM_BATCH, 0, 1)
        self._length = self._before_pass = 0
        return model

    def _make_context(self, setting: LlamaSetting) -> Any:
        library = self._library
        parameters = library.llama_context_default_params()
        parameters.n_ctx = self._context_length
        parameters.n_batch = parameters.n_ubatch = NUM_BATCH
        parameters.n_threads = parameters.n_threads_batch = self._num_threads
        flash = "LLAMA_FLASH_ATTN_TYPE_ENABLED" if setting.flash_attention else "LLAMA_FLASH_ATTN_TYPE_DISABLED"
        if hasattr(parameters, "flash_attn_type"):
            parameters.flash_attn_type = getattr(library, flash)
        else:
            parameters.flash_attn = setting.flash_attention
        context = library.llama_init_from_model(self._model, parameters)
        if not context:
            raise RuntimeError("llama.cpp could not make a context")
        return context

    def _choose(self, rows: np.ndarray) -> int:
        logits = rows[-1]
        if self._temperature == 0:
            return int(logits.argmax())
        noise = self._random.gumbel(size=logits.shape)
        return int((logits / self._temperature + noise).argmax())


def load_llamacpp(path: Path, kind: str, num_tokens: int, temperature: float = 0.0) -> LlamaCppVariant:
    """llama.cpp over a target's file, with as many threads as the native runtime has and room for `num_tokens`."""
    if kind != "gguf":
        raise UnsupportedModelError(f"{path.name} is no GGUF file", "llama.cpp reads no other", "give a GGUF target")
    from forerun import _native

    return LlamaCppVariant(path, _native.num_threads(), num_tokens, temperature)


def _library() -> Any:
    try:
        import llama_cpp
    except ImportError as error:
        raise MissingDependencyError("llama-cpp-python is not installed", str(error), INSTALL_LLAMA_CPP) from error
    quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(quiet, None)
    _KEPT.append(quiet)
    return llama_cpp


_KEPT: list[Any] = []
"""Callbacks that llama.cpp holds: they must live as long as the process."""
