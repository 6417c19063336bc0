"""One block: several requests submitted together, written to the same length, every round of them noted.

The clock is read around the engine's steps. Prompts are read once for the whole cell and their caches forked, so that a
block is decoding from its first step on; what the reading took is noted and added where whole requests are compared.
A draft model reads its part of the prompt inside the block, and is charged for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from forerun.bench.variants import PARTS
from forerun.control.policy import Load, Policy
from forerun.drafting import Drafter
from forerun.drafting.base import SequenceView
from forerun.engine import Engine, Scheduler
from forerun.errors import ForerunError
from forerun.llm import LLM
from forerun.runtime.base import Model
from forerun.runtime.cost import UNUSED, read_tokens
from forerun.runtime.wrapped import WrappedModel
from forerun.sampling import SamplingParams
from forerun.types import Origin, Plan, Prospect, Round, Step


class KeptPrompts(WrappedModel):
    """A model that holds the caches of prompts, and begins a sequence that is said to have one of them from there."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self._kept: dict[tuple[int, ...], tuple[int, float]] = {}  # prompt -> (its cache, seconds it took)
        self._expected: dict[int, tuple[int, ...]] = {}

    def read(self, prompt: Sequence[int]) -> float:
        """Have a prompt read; seconds that took, the first time also if it is asked for again. Its last token is left:
        the row after it is wanted in every block."""
        key = tuple(prompt)
        if key not in self._kept:
            cache = UNUSED - 1 - len(self._kept)
            start = perf_counter()
            read_tokens(self.model, cache, key[:-1])
            self._kept[key] = cache, perf_counter() - start
        return self._kept[key][1]

    def expect(self, sequence_id: int, prompt: Sequence[int]) -> None:
        """The sequence that will be begun under this id has this prompt, which was read."""
        self._expected[sequence_id] = tuple(prompt)

    def begin(self, sequence_id: int) -> None:
        """Announce a sequence, with its prompt's cache if there is one."""
        prompt = self._expected.get(sequence_id)
        if prompt is None:
            self.model.begin(sequence_id)
        else:
            self.model.fork(self._kept[prompt][0], sequence_id, len(prompt) - 1)

    def forget(self, sequence_id: int) -> None:
        """A sequence has ended for good."""
        self._expected.pop(sequence_id, None)

    def drop(self) -> None:
        """Let go of all prompts."""
        for cache, _ in self._kept.values():
            self.model.free(cache)
        self._kept.clear()


@dataclass(frozen=True, slots=True)
class Moment:
    """One step of the engine: when it ended, seconds after the block began; what it took; and for each sequence
    (its number in the block, source, tokens proposed, accepted, emitted, depths examined)."""

    at: float
    step: Step
    rounds: tuple[tuple[int, str, int, int, int, int], ...]


class Recorder:
    """A policy that notes what another one is told."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.heard: list[tuple[Sequence[Round], Step]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def plan(
        self, sequences: Sequence[SequenceView], prospects: Sequence[Sequence[Prospect]], load: Load
    ) -> list[Plan]:
        """The other's plans."""
        return self.policy.plan(sequences, prospects, load)

    def update(self, rounds: Sequence[Round], step: Step) -> None:
        """Note and pass on."""
        self.heard.append((rounds, step))
        self.policy.update(rounds, step)

    def release(self, *sequence_ids: int) -> None:
        """Pass on."""
        self.policy.release(*sequence_ids)


@dataclass(frozen=True, slots=True)
class Block:
    """What one block came to. Decoding is what follows the first step: `num_decoded` tokens in `decode_s`. `first_s` is
    that step, `read_s` what reading the block's prompts took when they were read. `rounds` counts decoding rounds by
    (source, proposed, accepted, depths examined), `origins` decoded tokens by where they came from. `moments` are all
    steps, the first one too: between it and the next lies what a draft model reads."""

    num_first: int
    num_decoded: int
    read_s: float
    first_s: float
    decode_s: float
    rounds: Counter[tuple[str, int, int, int]]
    origins: Counter[Origin]
    parts: dict[str, float]
    moments: tuple[Moment, ...] = field(default=(), compare=False)

    @property
    def tokens_per_s(self) -> float:
        """Decoding only."""
        return self.num_decoded / self.decode_s

    @property
    def whole_tokens_per_s(self) -> float:
        """All tokens over all seconds, reading the prompts included."""
        return (self.num_first + self.num_decoded) / (self.read_s + self.first_s + self.decode_s)

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object, without its moments."""
        return {
            "num_first": self.num_first,
            "num_decoded": self.num_decoded,
            "read_s": self.read_s,
            "first_s": self.first_s,
            "decode_s": self.decode_s,
            "rounds": [[*key, times] for key, times in sorted(self.rounds.items())],
            "origins": dict(self.origins),
            "parts": {name: round(seconds, 6) for name, seconds in self.parts.items()},
        }


def block_of(found: dict[str, Any]) -> Block:
    """The block that `Block.to_dict` wrote."""
    rounds: Counter[tuple[str, int, int, int]] = Counter()
    for source, proposed, accepted, examined, times in found["rounds"]:
        rounds[str(source), int(proposed), int(accepted), int(examined)] += int(times)
    return Block(
        int(found["num_first"]), int(found["num_decoded"]), float(found["read_s"]), float(found["first_s"]),
        float(found["decode_s"]), rounds, Counter(found["origins"]), dict(found["parts"]),
    )  # fmt: skip


def run_block(
    llm: LLM,
    drafter: Drafter | None,
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    kept: KeptPrompts | None = None,
) -> Block:
    """Submit `prompts` together and step until every one has `params.max_tokens` tokens. `kept` is the target with
    prompts that were read (see `KeptPrompts`); without it every prompt is read in the block, `first_s` ends when the
    last of them has its first token, and `read_s` is 0."""
    engine = llm.engine
    recorder = Recorder(policy)
    own = Engine(
        engine.target if kept is None else kept, drafter, recorder,
        vocabulary_size=engine.vocabulary_size, eos_ids=tuple(engine.eos_ids), scheduler=Scheduler(len(prompts)),
    )  # fmt: skip
    numbers: dict[int, int] = {}
    origins: Counter[Origin] = Counter()
    begun, moments = list[Moment](), list[Moment]()
    waiting, num_first, first_s = set[int](), 0, 0.0
    try:
        for prompt in prompts:
            sequence = own.add(prompt, params)
            numbers[sequence.sequence_id] = len(numbers)
            if kept is not None:
                kept.expect(sequence.sequence_id, prompt)
        waiting |= numbers.keys()
        start = perf_counter()
        while not own.is_idle:
            deltas = own.step()
            at = perf_counter() - start
            for delta in deltas:
                if delta.error is not None:
                    raise delta.error
                if delta.finish_reason not in (None, "length"):
                    raise ForerunError(f"a text ended with {delta.finish_reason!r} before its length was reached")
                if waiting:
                    num_first += len(delta.tokens)
                else:
                    origins.update(delta.origins)
            (begun if waiting else moments).extend(_moments(recorder, numbers, at))
            if waiting:
                waiting -= {delta.sequence_id for delta in deltas if delta.tokens}
                first_s = at if not waiting else first_s
    finally:
        own.cancel_all()
        if kept is not None:
            for sequence_id in numbers:
                kept.forget(sequence_id)
    decode_s = perf_counter() - start - first_s
    read_s = 0.0 if kept is None else sum(kept.read(prompt) for prompt in prompts)
    return Block(
        num_first, origins.total(), read_s, first_s, decode_s, _rounds(moments), origins, _parts(moments),
        (*begun, *moments),
    )  # fmt: skip


def _moments(recorder: Recorder, numbers: dict[int, int], at: float) -> list[Moment]:
    found = [
        Moment(
            at, step,
            tuple(
                (numbers[r.sequence_id], r.source, r.num_proposed, r.num_accepted, r.num_emitted, len(r.widths))
                for r in rounds
            ),
        )
        for rounds, step in recorder.heard
    ]  # fmt: skip
    recorder.heard.clear()
    return found


def _rounds(moments: Sequence[Moment]) -> Counter[tuple[str, int, int, int]]:
    return Counter(
        (source, proposed, accepted, examined)
        for moment in moments
        for _, source, proposed, accepted, _, examined in moment.rounds
    )


def _parts(moments: Sequence[Moment]) -> dict[str, float]:
    """Seconds by what they went to."""
    return {part: sum(getattr(moment.step, f"{part}_s") for moment in moments) for part in PARTS}
