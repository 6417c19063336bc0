"""cases.md C28, C29, C30 (whole kinds) for every drafter that copies text: suffix, lookup, and a stack of both with a
draft model."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.helpers import complete, run

from forerun.control import FixedLength
from forerun.drafting import Drafter, LookupDrafter, ModelDrafter, StackDrafter, SuffixDrafter
from forerun.drafting import occurrences as occurrences_module
from forerun.engine import Engine, Scheduler
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams
from forerun.types import Plan

SIZE = 16


def target() -> ToyModel:
    return ToyModel.random(SIZE, order=2, seed=3, spread=2.0)


class Following(FixedLength):
    """k tokens of the source named, where it is offered."""

    def __init__(self, k: int, source: str) -> None:
        super().__init__(k)
        self.source = source

    def plan(self, sequences: Any, prospects: Any, load: Any) -> list[Plan]:
        return [
            Plan(self.k, self.source) if any(one.source == self.source for one in offered) else Plan(self.k)
            for offered in prospects
        ]


def stack() -> Drafter:
    return StackDrafter([SuffixDrafter(), LookupDrafter(3, 1), ModelDrafter(ToyModel.random(SIZE, order=1, seed=9))])


KINDS: dict[str, tuple[Callable[[], Drafter], Callable[[int], FixedLength]]] = {
    "suffix": (SuffixDrafter, FixedLength),
    "lookup": (lambda: LookupDrafter(3, 1), FixedLength),
    "frequent lookup": (lambda: LookupDrafter(3, 1, "frequent"), FixedLength),
    "stack": (stack, FixedLength),
    "stack, suffix": (stack, lambda k: Following(k, "suffix")),
    "stack, lookup": (stack, lambda k: Following(k, "lookup")),
    "stack, model": (stack, lambda k: Following(k, "model")),
    "stack, suffix and model": (stack, lambda k: Following(k, "suffix+model")),
}
FROM_TEXT = {name: kind for name, kind in KINDS.items() if name != "stack, model"}


# -- C28: what a request leaves behind ---------------------------------------------------------------------------------


def state(thing: Any, depth: int = 4) -> list[str]:
    """Every container below an object that still holds something."""
    found = []
    for name, value in vars(thing).items():
        if name in ("sources", "_extenders"):
            found += [one for source in value.values() for one in state(source, depth - 1)]
        elif name in ("_texts", "_caches", "_found", "_records", "_drafted", "_sharing", "_broken") and len(value):
            found.append(f"{type(thing).__name__}.{name}")
    return found


POEM = [int(i) for i in np.random.default_rng(0).integers(0, SIZE, 400)]
LIST = [*range(SIZE), *range(10), 3, 4, *range(SIZE), 5, 3, 4, *range(10)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 4}], ids=str)
@pytest.mark.parametrize("before", ["long", "short", "cancelled", "beside"])
def test_c28_a_request_drafts_the_same_whatever_came_before(kind: str, before: str, params: dict[str, Any]) -> None:
    make, policy = KINDS[kind]
    drafter = make()
    engine = Engine(target(), drafter, policy(4))
    other = engine.add(LIST[::-1] if before == "short" else POEM, SamplingParams(max_tokens=40, **params))
    if before == "cancelled":
        for _ in range(3):
            engine.step()
        engine.cancel(other.sequence_id)
    if before != "beside":
        run(engine)
        assert not state(drafter)
    second = engine.add(LIST, SamplingParams(max_tokens=60, **params))
    run(engine)
    fresh, _ = complete(target(), LIST, make(), 4, engine={}, max_tokens=60, **params)
    if kind.startswith("stack,"):
        alone = Engine(target(), make(), policy(4))
        fresh = alone.add(LIST, SamplingParams(max_tokens=60, **params))
        run(alone)
    assert second.tokens == fresh.tokens
    assert second.statistics.rounds == fresh.statistics.rounds
    assert second.statistics.num_proposed > 0
    assert not state(drafter)


def view(tokens: list[int], sequence_id: int = 0) -> Any:
    noise = SimpleNamespace(kind="deterministic")
    return SimpleNamespace(
        sequence_id=sequence_id, tokens=tokens, prompt_length=len(tokens), vocabulary_size=1 << 31, noise=noise
    )


@pytest.mark.parametrize("kind", FROM_TEXT)
def test_c28_what_only_another_request_wrote_is_not_drafted(kind: str) -> None:
    drafter: Any = StackDrafter([SuffixDrafter(), LookupDrafter(3, 1)]) if "stack" in kind else KINDS[kind][0]()
    first, second = view([1, 2, 3, 4, 1, 2, 3], 1), view([9, 1, 2, 3], 2)
    assert drafter.propose([first], [Plan(1)])[0].tokens == (4,)
    assert drafter.prospects([second], [2]) == [[]]
    assert drafter.propose([second], [Plan(2)])[0].tokens == ()
    drafter.release(1)
    assert drafter.propose([view([9, 1, 2, 3], 1)], [Plan(2)])[0].tokens == ()


# -- C29: what it costs ------------------------------------------------------------------------------------------------


class _Work:
    """Adds up the entries made and places looked at of every index that is made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.indexes: list[Any] = []
        make = occurrences_module.make_occurrences

        def counted(*settings: Any) -> Any:
            self.indexes.append(make(*settings))
            return self.indexes[-1]

        monkeypatch.setattr(occurrences_module, "make_occurrences", counted)

    @property
    def entries(self) -> int:
        return sum(index.num_entries for index in self.indexes)

    @property
    def looked_at(self) -> int:
        return sum(index.num_looked_at for index in self.indexes)


TEXTS = {
    "random": lambda length: [int(i) for i in np.random.default_rng(1).integers(0, 50_000, length)],
    "periodic": lambda length: [7, 8] * (length // 2),
    "one token": lambda length: [5] * length,
    "near misses": lambda length: [i % 9 if i % 10 else i for i in range(length)],
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", ["suffix", "lookup", "frequent lookup", "stack"])
def test_c29_work_is_flat_in_the_length_of_the_text(kind: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 12 entries for a token, once; at most 256 places looked at for a question, of which a round has few. The
    index of a long prompt is made of pieces of 4,096 tokens, one a round."""
    work = _Work(monkeypatch)
    for length in (512, 2_048, 8_192, 32_768, 131_072):
        work.indexes.clear()
        drafter = KINDS[kind][0]()
        tokens = TEXTS[text](length)
        num_sources = 2 if kind == "stack" else 1
        for _ in range(-(-length // 4_096)):
            before = work.entries
            drafter.prospects([view(tokens)], [0])
            assert work.entries - before <= num_sources * 12 * 4_096
        assert work.entries <= num_sources * 12 * length
        entries, looked_at = work.entries, work.looked_at
        for step in range(8):
            one = view([*tokens, *range(step)])
            drafter.prospects([one], [8])
            if kind != "stack":  # its model has nothing to say of such ids
                drafter.propose([one], [Plan(8)])
        assert work.entries - entries <= num_sources * 12 * 8
        assert work.looked_at - looked_at <= num_sources * 2 * 256 * 8


@pytest.mark.parametrize("kind", FROM_TEXT)
def test_c29_a_prompt_read_in_pieces_is_indexed_while_it_is_read(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left to be indexed when the first token is written, and nothing is drafted before."""
    work = _Work(monkeypatch)
    make, policy = KINDS[kind]
    engine = Engine(
        ToyModel(lambda tokens: np.eye(SIZE)[(tokens[-1] + 1) % SIZE] * 9, SIZE), make(), policy(4),
        scheduler=Scheduler(max_tokens=2_500),
    )  # fmt: skip
    sequence = engine.add([*range(SIZE)] * 625, SamplingParams(temperature=0, max_tokens=30))  # 10,000 tokens
    entries = []
    while not engine.is_idle:
        before = work.entries
        engine.step()
        entries.append(work.entries - before)
        if len(sequence.tokens) <= 10_000:
            assert sequence.statistics.num_proposed == 0
    assert entries[3:4] == [0]  # three rounds of 4,096 are ahead of four of 2,500
    assert sequence.statistics.num_accepted > 15


# -- C30: edges --------------------------------------------------------------------------------------------------------

PROMPTS: dict[str, list[int]] = {
    "one": [5], "alike": [5, 5, 5], "its end occurred": [3, 14, 15, 9, 6, 3, 14], "a word 40 times": [4] * 40,
    "a word and a space": [4, 1] * 40, "ends with a match": [1, 2, 3, 9, 1, 2, 3], "first id": [0],
    "last id": [SIZE - 1], "overlaps itself": [7, 7, 7, 7], "never twice": [*range(SIZE)],
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 5, "temperature": 1.2}], ids=str)
def test_c30_edges_are_plain_decoding(kind: str, prompt: str, params: dict[str, Any]) -> None:
    make, policy = KINDS[kind]
    plain = complete(target(), PROMPTS[prompt], max_tokens=64, **params)[1]
    for k in (1, 4, 70):
        engine = Engine(target(), make(), policy(k))
        sequence = engine.add(PROMPTS[prompt], SamplingParams(max_tokens=64, **params))
        run(engine)
        assert sequence.tokens[sequence.prompt_length :] == plain
        assert sequence.finish_reason == "length"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 3}, {}], ids=str)
def test_c30_a_draft_token_is_never_committed_unverified(kind: str, k: int, params: dict[str, Any]) -> None:
    rows = np.full((1, SIZE), -50.0)
    rows[0, 2] = 50.0  # the target wants 2, always; text drafts after [5, 5, 5] propose 5
    make, policy = KINDS[kind]
    engine = Engine(ToyModel.by_position(rows), make(), policy(k))
    sequence = engine.add([5, 5, 5], SamplingParams(max_tokens=1 + k, **params))
    run(engine)
    assert sequence.tokens[3:] == [2] * (1 + k)


@pytest.mark.parametrize("kind", FROM_TEXT)
@pytest.mark.parametrize("stop", [None, 3])
def test_c30_without_an_end_of_text_id_and_with_one(kind: str, stop: int | None) -> None:
    make, policy = KINDS[kind]
    eos = [] if stop is None else [stop]
    prompt = [3, 14, 15, 9, 6, 3, 14]
    expected = []
    for drafter, chosen in ((None, None), (make(), policy(4))):
        engine = Engine(target(), drafter, chosen, eos_ids=eos)
        sequence = engine.add(prompt, SamplingParams(temperature=0, max_tokens=50))
        run(engine)
        expected.append((sequence.tokens, sequence.finish_reason))
    assert expected[0] == expected[1]
