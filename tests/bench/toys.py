"""A bench over toy models: scripted clocks, and a target with a draft that often agrees with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from forerun.bench.probe import BandwidthProbe
from forerun.bench.rounds import Measurement, Session
from forerun.bench.run import Settings
from forerun.bench.variants import Sample
from forerun.llm import LLM
from forerun.runtime.toy import ToyModel

SIZE = 11
PROMPTS = {"chat": [[1, 2, 3], [4, 5]], "edit": [[6, 7, 8, 9, 6, 7, 8], [3, 1, 3, 1, 3]]}
TABLE = np.random.default_rng(5).normal(0.0, 3.0, (SIZE, SIZE))


def target() -> ToyModel:
    return ToyModel.from_table(TABLE, context_length=200)


def draft() -> ToyModel:
    return ToyModel.from_table(TABLE + np.random.default_rng(6).normal(0.0, 1.0, TABLE.shape), context_length=200)


def toy_llm() -> LLM:
    return LLM(target())


def quick_probe() -> BandwidthProbe:
    return BandwidthProbe(num_threads=1, num_bytes=1 << 12, seconds=0.0)


def steady_probe() -> BandwidthProbe:
    """One that always reads 20 GB/s."""
    probe = quick_probe()
    probe.measure = lambda: 20.0  # type: ignore[method-assign]
    return probe


def settings(**changed: Any) -> Settings:
    values: dict[str, Any] = {
        "workloads": ("chat", "edit"), "target": "toy", "draft": "toy-draft", "drafters": ("model", "lookup"),
        "k": (1, 3), "max_tokens": 12, "prompts": 2, "rounds": 2, "temperature": 0.0, "seed": None, "device": "cpu",
        "dtype": "float32", "draft_vocabulary": None, "draft_min_confidence": 0.0, "strict": False, "peers": (),
        "runtime": "auto", "draft_runtime": "auto", "draft_context": None,
        "context": 20,
    }  # fmt: skip
    return Settings(**{**values, **changed})


class Scripted:
    """A variant that takes a given time per token and writes what it is told to; it can fail at a given call."""

    drafter: str | None = None
    k = 0

    def __init__(
        self, name: str, ms: float = 10.0, *, is_peer: bool = True, fails_at: int | None = None, log: Any = None
    ) -> None:
        self.name, self.ms, self.is_peer, self._fails_at = name, ms, is_peer, fails_at
        self.calls = 0
        self._log = log if log is not None else []

    def prepare(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> None:
        self._log.append((self.name, "prepare"))

    def generate(self, prompt: Sequence[int], num_tokens: int) -> Sample:
        self.calls += 1
        self._log.append((self.name, tuple(prompt)))
        if self.calls == self._fails_at:
            raise MemoryError("no room")
        return sample(self.ms, num_tokens)

    def describe(self) -> dict[str, Any]:
        setting = {"num_tokens": self.calls, "schedule": "constant", "confidence": 0.0}
        return {"setting": setting, "tried": [{**setting, "ms_per_token": self.ms}]}


def sample(ms: float, num_tokens: int = 11, first_s: float = 0.5, tokens: Sequence[int] | None = None) -> Sample:
    """`num_tokens` tokens at `ms` per decoded token."""
    text = tuple(tokens) if tokens is not None else tuple(range(num_tokens))
    return Sample(text, 1, first_s, first_s + ms * (len(text) - 1) / 1e3, num_passes=len(text) - 1)


def session_of(times: dict[str, list[list[float]]], probe: float = 30.0) -> Session:
    """times[variant][prompt][round] in ms per token."""
    session = Session(probes=[probe])
    for name, by_prompt in times.items():
        for prompt, by_round in enumerate(by_prompt):
            for number, ms in enumerate(by_round):
                session.measurements.append(Measurement("chat", prompt, number, name, sample(ms), probe))
    return session
