"""Other engines on the same weights: transformers' `generate`, plain, assisted by the same draft, and by prompt lookup.

They run in the same process with the same threads, dtype and token ids, greedy or sampled as forerun is, and end of
text is off, so every side decodes the same number of tokens. Their clock is the streamer `generate` calls with every
block of new tokens. What comes before the first block (reading the prompt, for assisted generation also the draft's
reading of it and a first draft) is not counted as decoding; forerun's draft reads the prompt while it decodes, and
is charged for it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

from forerun.bench.llamacpp import INSTALL_LLAMA_CPP, LLAMA_CPP
from forerun.bench.variants import Sample
from forerun.bench.weights import bytes_per_pass
from forerun.errors import MissingDependencyError, ParameterError
from forerun.extras import install_line

PEERS = (LLAMA_CPP, "transformers", "assisted", "prompt-lookup")
NUM_TUNING_PROMPTS = 2
NUM_TUNING_TOKENS = 48


@dataclass(frozen=True, slots=True)
class Setting:
    """How assisted generation or prompt lookup drafts: tokens per round, how that number moves, and the confidence
    below which the assistant stops (0: never). transformers' defaults are 20, constant, 0.4."""

    num_tokens: int
    schedule: str = "constant"
    confidence: float = 0.0


ASSISTED_SETTINGS = (
    Setting(2),
    Setting(3),
    Setting(4),
    Setting(6),
    Setting(5, "heuristic_transient"),
    Setting(20, "constant", 0.4),
)
LOOKUP_SETTINGS = (Setting(3), Setting(5), Setting(10))


class NothingDecodedError(RuntimeError):
    """A whole text came in the first block, so there is no time between tokens to measure."""


class Clock:
    """The streamer: notes when each block of tokens arrived. `generate` puts the prompt first."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.counts: list[int] = []

    def put(self, tokens: Any) -> None:
        """A block of new token ids."""
        self.times.append(perf_counter())
        self.counts.append(int(tokens.numel()))

    def end(self) -> None:
        """The text is complete."""


class TransformersVariant:
    """One way of calling transformers' `generate`; `settings` are tried in `prepare`, and the fastest is used."""

    is_peer = True
    drafter: str | None = None
    k = 0

    def __init__(
        self,
        name: str,
        model: Any,
        arguments: Callable[[Setting | None], dict[str, Any]],
        settings: Sequence[Setting] = (),
        temperature: float = 0.0,
    ) -> None:
        self.name = name
        self._model, self._arguments, self._settings = model, arguments, settings
        self._temperature = temperature
        self._chosen: Setting | None = settings[0] if settings else None
        self._tried: list[dict[str, Any]] = []

    def prepare(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> None:
        """Warm up; where there are settings, use the one that is fastest on the workload's shortest two prompts."""
        shortest = sorted(prompts, key=len)[:NUM_TUNING_PROMPTS]
        self.generate(shortest[0], min(num_tokens, 8))
        self._tried = []
        if len(self._settings) < 2:
            return
        budget = min(num_tokens, NUM_TUNING_TOKENS)
        times: dict[Setting, list[float]] = {}
        for prompt in shortest:
            for setting in self._settings:
                self._chosen = setting
                with suppress(NothingDecodedError):
                    ms = self.generate(prompt, budget).ms_per_token
                    times.setdefault(setting, []).append(ms)
        means = {setting: sum(found) / len(found) for setting, found in times.items()}
        self._tried = [{**asdict(setting), "ms_per_token": mean} for setting, mean in means.items()]
        self._chosen = min(means, key=means.__getitem__, default=self._settings[0])

    def generate(self, prompt: Sequence[int], num_tokens: int) -> Sample:
        import torch

        clock = Clock()
        ids = torch.tensor([list(prompt)], device=self._model.device)
        sampling = {"temperature": self._temperature, "top_k": 0, "top_p": 1.0} if self._temperature > 0 else {}
        with torch.inference_mode():
            start = perf_counter()
            out = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_tokens,
                do_sample=self._temperature > 0,
                streamer=clock,
                **sampling,
                **self._arguments(self._chosen),
            )
        tokens = tuple(int(token) for token in out[0, len(prompt) :].tolist())
        if len(tokens) != num_tokens or sum(clock.counts[1:]) != num_tokens:
            raise RuntimeError(f"{len(tokens)} tokens came back where {num_tokens} were asked for")
        if clock.counts[1] == num_tokens:
            raise NothingDecodedError(f"all {num_tokens} tokens came in the first block; give more --max-tokens")
        first, last = clock.times[1], clock.times[-1]
        return Sample(tokens, clock.counts[1], first - start, last - start, len(clock.counts) - 2)

    def describe(self) -> dict[str, Any]:
        told = {"dtype": str(getattr(self._model, "dtype", "unknown")).removeprefix("torch.")}
        if not self._settings:
            return told
        chosen = asdict(self._chosen) if self._chosen is not None else None
        return {**told, "setting": chosen, "tried": self._tried}


def load_peers(
    names: Sequence[str],
    target: tuple[Path, str],
    draft: tuple[Path, str] | None,
    dtype: Any,
    device: str,
    temperature: float = 0.0,
    load: Callable[[Path, str, Any, str], Any] | None = None,
) -> tuple[list[TransformersVariant], dict[str, str]]:
    """(variants that can run, reasons why the others cannot). `target` and `draft` are (path, kind) as resolved."""
    load = load_plain if load is None else load
    variants: list[TransformersVariant] = []
    reasons: dict[str, str] = {}
    if "assisted" in names and draft is None:
        reasons["assisted"] = "it needs a draft model (--draft)"
    wanted = [name for name in names if name not in reasons]
    if not wanted:
        return variants, reasons
    try:
        model = load(*target, dtype, device)
    except Exception as error:
        return variants, {**reasons, **dict.fromkeys(wanted, reason_of(error))}
    for name in wanted:
        try:
            assistant = load(*draft, dtype, device) if name == "assisted" and draft is not None else None
            variants.append(_variant(name, model, assistant, temperature))
        except Exception as error:
            reasons[name] = reason_of(error)
    return variants, reasons


def _variant(name: str, model: Any, assistant: Any, temperature: float) -> TransformersVariant:
    if name == "assisted":

        def assisted(setting: Setting | None) -> dict[str, Any]:
            config = assistant.generation_config  # where `generate` reads the assistant's settings
            if setting is not None:
                config.num_assistant_tokens = setting.num_tokens
                config.num_assistant_tokens_schedule = setting.schedule
                config.assistant_confidence_threshold = setting.confidence
            return {"assistant_model": assistant}

        return TransformersVariant(name, model, assisted, ASSISTED_SETTINGS, temperature)
    if name == "prompt-lookup":

        def lookup(setting: Setting | None) -> dict[str, Any]:
            return {"prompt_lookup_num_tokens": setting.num_tokens if setting is not None else 10}

        return TransformersVariant(name, model, lookup, LOOKUP_SETTINGS, temperature)
    return TransformersVariant(name, model, lambda setting: {}, (), temperature)


def load_plain(path: Path, kind: str, dtype: Any, device: str) -> Any:
    """A transformers model as it is, with the weights that forerun reads: a GGUF is dequantised to `dtype`, where the
    target has none (it is native) to what the CPU computes fast."""
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.utils import logging

    if dtype is None:
        from forerun.runtime.torch.load import choose_device, choose_dtype

        dtype = choose_dtype("auto", None, choose_device("cpu"))
    if device == "cpu":
        require_memory(bytes_per_pass(path, kind, int(getattr(dtype, "itemsize", 4))) or 0)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = _from_gguf(path, dtype) if kind == "gguf" else None
    if model is None:
        where, extra = (path.parent, {"gguf_file": path.name}) if kind == "gguf" else (path, {})
        model = AutoModelForCausalLM.from_pretrained(where, dtype=dtype, local_files_only=True, **extra)
    model.to(device).eval().requires_grad_(False)
    # A fresh configuration: no end of text, and none of the penalties that some models' own would add.
    model.generation_config = GenerationConfig(eos_token_id=None, pad_token_id=0, use_cache=True)
    gc.collect()
    return model


def _from_gguf(path: Path, dtype: Any) -> Any:
    """By forerun's reader, which needs a tenth of the time and memory of transformers'; None if it is not for it."""
    import torch
    from transformers import AutoModelForCausalLM

    from forerun.models.gguf import open_gguf
    from forerun.runtime.torch import gguf

    with open_gguf(path) as file:
        if not gguf.is_read(file):
            return None
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(gguf.config_of(file), dtype=dtype)
        gguf.fill(model, file, dtype, lambda num_bytes: None)
    return model


def require_memory(num_bytes: int, meminfo: Path = Path("/proc/meminfo")) -> None:
    """MemoryError if weights of `num_bytes` clearly do not fit: the system would end the whole bench instead."""
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError, IndexError):
        return
    if 1.2 * num_bytes > free:
        raise MemoryError(
            f"its weights need about {num_bytes / 1e9:.1f} GB beside forerun's; {free / 1e9:.1f} GB are free"
        )


def check_peers(names: Sequence[str], draft: str | None) -> None:
    """Refuse what could only be told as not run once everything else was measured: unknown names, packages that are
    not installed (MissingDependencyError), and assisted generation without a draft."""
    for name in names:
        if name not in PEERS:
            raise ParameterError("peers", f"{name!r} is not known", f"none, or some of {','.join(PEERS)}")
    if "assisted" in names and draft is None:
        raise ParameterError("peers", "assisted needs a draft model", "give --draft MODEL, or leave it out")
    if LLAMA_CPP in names and find_spec("llama_cpp") is None:
        raise MissingDependencyError(
            "the peer llama.cpp needs llama-cpp-python", "it is not installed",
            f"{INSTALL_LLAMA_CPP}, or leave llama.cpp out of --peers",
        )  # fmt: skip
    for package in ("torch", "transformers"):
        others = [name for name in names if name != LLAMA_CPP]
        if others and find_spec(package) is None:
            raise MissingDependencyError(
                f"the peer {others[0]} needs {package}", "it is not installed", install_line("torch")
            )


def reason_of(error: Exception) -> str:
    """An error in one line, for what was not run."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"
