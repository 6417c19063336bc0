"""A draft model's window: what its caches hold, what that costs, and that the text never shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import complete, run

from forerun.control import FixedLength
from forerun.drafting import ModelDrafter
from forerun.drafting.caches import common_length
from forerun.engine import Engine, Scheduler
from forerun.errors import ParameterError
from forerun.runtime.base import Rows
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams
from forerun.types import Plan, Prospect, Span

SIZE = 12


def target(seed: int = 4) -> ToyModel:
    return ToyModel.random(SIZE, order=2, seed=seed, spread=2.0)


class Watched(ToyModel):
    """Remembers the longest cache it ever held and every pass; its rows are the target's, or a stranger's."""

    def __init__(self, context_length: int | None = None, seed: int = 4) -> None:
        super().__init__(target(seed)._logits_of, SIZE, context_length)
        self.longest, self.passes = 0, list[list[Span]]()

    def forward(self, spans: Sequence[Span]) -> Rows:
        rows = super().forward(spans)
        self.longest = max(self.longest, *(len(tokens) for tokens in self._cached.values()))
        self.passes.append(list(spans))
        return rows

    def fork(self, source: int, target: int, length: int) -> None:
        super().fork(source, target, length)
        self.longest = max(self.longest, length)


class Checked(ModelDrafter):
    """Compares every q with the model's own row after some suffix of the text, at most a window long."""

    num_checked = 0

    def propose(self, sequences: Any, plans: Any) -> Any:
        drafts = super().propose(sequences, plans)
        for sequence, draft in zip(sequences, drafts, strict=True):
            assert len(draft.tokens) <= plans[sequences.index(sequence)].shape
            for node, q in enumerate(draft.rows or ()):
                start, _ = self._caches.extent(sequence.sequence_id)
                seen = [*sequence.tokens[start:], *draft.tokens[:node]]
                assert 1 <= len(seen) <= (self.window or 10**9)
                logits = self.model.logits(seen)  # type: ignore[attr-defined]
                weights = np.exp(logits - logits.max())
                np.testing.assert_allclose(q.probs, weights / weights.sum(), rtol=1e-12, atol=1e-15)
                self.num_checked += 1
        return drafts


@settings(max_examples=60, deadline=None)
@given(
    window=st.integers(1, 40),
    k=st.integers(1, 9),
    prompt=st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=90),
    seed=st.one_of(st.none(), st.integers(0, 99)),
    own=st.booleans(),
    stranger=st.booleans(),
)
def test_no_cache_is_ever_longer_than_the_window(
    window: int, k: int, prompt: list[int], seed: int | None, own: bool, stranger: bool
) -> None:
    params: dict[str, Any] = {"max_tokens": 70, "seed": seed}
    draft = Watched(window if own else None, 1 if stranger else 4)
    drafter = Checked(draft, None if own else window)
    sequence, tokens = complete(target(), prompt, drafter, k, **params)
    assert draft.longest <= window
    assert sequence.statistics.num_proposed > 0
    assert drafter.num_checked > 0 or seed is not None
    if seed is not None:
        assert tokens == complete(target(), prompt, **params)[1]
    assert draft.num_sequences == 0


@pytest.mark.parametrize("window", [8, 16, 64, 256])
@pytest.mark.parametrize("prompt_length", [3, 100, 3000])
def test_long_texts_cost_no_more_than_the_window(window: int, prompt_length: int) -> None:
    """Beside what every draft costs, about one more token is read for each one written where drafts are short, two
    where they are a quarter of the window or would be more; of the prompt, half a window."""
    prompt = [(7 * i + i // 5) % SIZE for i in range(prompt_length)]
    for k in (1, window // 4, window // 2, 2 * window):
        draft = Watched()
        sequence, _ = complete(target(), prompt, ModelDrafter(draft, window), k, temperature=0, max_tokens=600)
        statistics = sequence.statistics
        fed_anyway = statistics.num_proposed + statistics.num_rounds  # drafts, and a token of the target's each round
        again = draft.num_fed - fed_anyway - min(prompt_length, window)
        assert again <= (1.0 + 4 / window if k == 1 else 2.1) * statistics.num_emitted
        assert max(len(spans[0].tokens) for spans in draft.passes) <= max(min(prompt_length, window), window // 2) + 1
        assert max(len(spans[0].tokens) for spans in draft.passes[1:]) <= (window + 1) // 2


def test_a_window_wide_enough_for_what_the_model_looks_at_drafts_as_well_as_all_of_it() -> None:
    prompt = [1, 2, 3] * 30
    whole, _ = complete(target(), prompt, ModelDrafter(target()), 4, temperature=0, max_tokens=200)
    assert whole.statistics.acceptance_rate == 1.0
    for window in (4, 7, 32):
        sequence, _ = complete(target(), prompt, ModelDrafter(target(), window), 4, temperature=0, max_tokens=200)
        assert sequence.statistics.acceptance_rate == 1.0


def test_short_texts_know_nothing_of_the_window() -> None:
    passes = []
    for window in (None, 40):
        draft = Watched()
        complete(target(), [1, 2, 3], ModelDrafter(draft, window), 4, temperature=0, max_tokens=37)
        passes.append([(span.start, list(span.tokens), span.num_rows) for spans in draft.passes for span in spans])
    assert passes[0] == passes[1]


def test_a_window_and_a_context_of_its_own() -> None:
    assert ModelDrafter(Watched(50)).window == 50
    assert ModelDrafter(Watched(50), 20).window == 20
    assert ModelDrafter(Watched(50), 90).window == 50
    assert ModelDrafter(Watched(), 90).window == 90
    assert ModelDrafter(Watched()).window is None


@pytest.mark.parametrize("setting", [{"window": 0}, {"window": 2.5}, {"window": True}, {"start_after": -1}])
def test_settings_that_are_none_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=next(iter(setting))):
        ModelDrafter(Watched(), **setting)


@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 5}])
def test_a_batch_of_windows(params: dict[str, Any]) -> None:
    """Sequences of other lengths slide in rounds of their own, and leave nothing behind."""
    prompts = [[i, i + 1] * (1 + 9 * i) for i in range(5)]
    plain = [complete(target(), prompt, max_tokens=60, **params)[1] for prompt in prompts]
    draft = Watched()
    engine = Engine(target(), ModelDrafter(draft, 20), FixedLength(3), scheduler=Scheduler(3))
    made = [engine.add(prompt, SamplingParams(max_tokens=60, **params)) for prompt in prompts]
    run(engine)
    assert [sequence.tokens[sequence.prompt_length :] for sequence in made] == plain
    assert draft.longest <= 20
    assert draft.num_sequences == 0


@pytest.mark.parametrize("window", [None, 64])
def test_choices_of_one_prompt_share_what_the_window_holds(window: int | None) -> None:
    """All but the first fork their cache: the prompt's end is read once, also where it is all that is read, and also by
    a later request that goes on from it."""
    prompt = [(5 * i + i // 7) % SIZE for i in range(300)]
    draft = Watched()
    drafter = Checked(draft, window)
    engine = Engine(target(), drafter, FixedLength(3))
    leader = engine.add(prompt, SamplingParams(max_tokens=20))
    others = [engine.add(prompt, leader.params, choice=i, leader=leader) for i in (1, 2)]
    for _ in range(3):
        engine.step()
    others.append(engine.add([*prompt, 1, 2, 3], leader.params))  # its own cache would begin a little later
    run(engine)
    long = [span for spans in draft.passes for span in spans if len(span.tokens) > 16]
    assert [len(span.tokens) for span in long] == [301 if window is None else 32]
    assert sum(sequence.statistics.num_proposed for sequence in (leader, *others)) > 30
    assert drafter.num_checked > 30
    assert draft.num_sequences == 0


def test_a_fork_does_not_begin_later_than_its_own_cache_would() -> None:
    """A short text may share the end that is left of a long one's cache, but its own beginning is worth more."""
    shared = [(5 * i + i // 7) % SIZE for i in range(40)]
    draft = Watched()
    drafter = ModelDrafter(draft, 64)
    engine = Engine(target(), drafter, FixedLength(2))
    engine.add([*([3] * 200), *shared], SamplingParams(max_tokens=80, temperature=0))
    for _ in range(2):
        engine.step()
    short = engine.add([*([3] * 5), *shared], SamplingParams(max_tokens=80, temperature=0))
    for _ in range(2):
        engine.step()
    assert drafter._caches.extent(short.sequence_id)[0] == 0


def test_nobody_waits_for_a_cache_that_will_begin_too_late_for_him() -> None:
    """Two prompts with one beginning, of which the longer one's end alone is read: the shorter one drafts at once."""
    shared = [(5 * i + i // 7) % SIZE for i in range(50)]
    engine = Engine(target(), ModelDrafter(Watched(), 64), FixedLength(2))
    engine.add([*shared, *([3] * 100)], SamplingParams(max_tokens=8, temperature=0))
    short = engine.add(shared, SamplingParams(max_tokens=7, temperature=0))  # 1 with the prompt, then 3 and 3
    run(engine)
    assert sum(times for (proposed, _), times in short.statistics.rounds.items() if proposed == 0) == 1


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("window", [6, 11])
def test_an_interrupted_pass_is_done_again(moment: str, window: int) -> None:
    plain = complete(target(), [1, 2, 3], max_tokens=40, seed=9)[1]
    for at in range(1, 24):

        class Interrupted(Watched):
            when = at

            def forward(self, spans: Sequence[Span]) -> Rows:
                is_now = self.num_forwards == self.when
                if is_now and moment == "before":
                    self.when = -1
                    raise KeyboardInterrupt
                rows = super().forward(spans)
                if is_now:
                    self.when = -1
                    raise KeyboardInterrupt
                return rows

        draft = Interrupted()
        engine = Engine(target(), ModelDrafter(draft, window), FixedLength(3))
        sequence = engine.add([1, 2, 3], SamplingParams(max_tokens=40, seed=9))
        interrupted = 0
        while not engine.is_idle:
            try:
                engine.step()
            except KeyboardInterrupt:
                interrupted += 1
        assert interrupted == 1
        assert sequence.tokens[3:] == plain
        assert draft.longest <= window


@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_beginning_that_was_interrupted_is_done_again(at: int) -> None:
    """The model has begun the text, and the drafter does not know: at first, or where a full cache was begun anew."""

    class Interrupted(Watched):
        num_begun = 0

        def begin(self, sequence_id: int) -> None:
            super().begin(sequence_id)
            self.num_begun += 1
            if self.num_begun == at + 1:
                raise KeyboardInterrupt

    draft = Interrupted()
    engine = Engine(target(), ModelDrafter(draft, 8), FixedLength(2))
    sequence = engine.add([1, 2, 3], SamplingParams(max_tokens=40, seed=9))
    with pytest.raises(KeyboardInterrupt):
        run(engine)
    run(engine)
    assert sequence.tokens[3:] == complete(target(), [1, 2, 3], max_tokens=40, seed=9)[1]
    assert draft.num_begun > 4
    assert draft.num_sequences == 0


def test_a_model_that_can_only_fall_back_to_a_snapshot() -> None:
    """`keep` may leave less than was asked for: what is missing is fed again, windowed or not."""

    class Recurrent(Watched):
        def keep(self, sequence_id: int, length: int, path: tuple[int, ...] = ()) -> None:
            super().keep(sequence_id, length if length == self.length(sequence_id) else length // 4 * 4, path)

    for window in (None, 14):
        drafter = Checked(Recurrent(seed=1), window)
        sequence, _ = complete(target(), [1, 2, 3], drafter, 4, max_tokens=60)
        assert drafter.num_checked > 40
        assert sequence.statistics.histogram[0] > 5  # much was rolled back


@pytest.mark.parametrize("k", [2, 9])
def test_tokens_that_cannot_be_fed_leave_the_window_in_the_end(k: int) -> None:
    """Id 11 has no embedding in the draft model: nothing is drafted while it is in what would be read."""
    wide = ToyModel.by_position(np.eye(SIZE)[[1, 2, 11, *([3, 4, 5] * 30)]] * 30.0)
    narrow = Watched()
    narrow.capabilities = replace(narrow.capabilities, num_embeddings=SIZE - 1)
    sequence, tokens = complete(wide, [7], ModelDrafter(narrow, 10), k, temperature=0, max_tokens=60)
    assert tokens[2] == 11
    assert sequence.statistics.num_proposed > 60
    assert narrow.longest <= 10
    # Once the token is behind it, the cache goes on.
    assert sum(len(spans[0].tokens) == 5 for spans in narrow.passes) <= 30
    alone, _ = complete(wide, [7], ModelDrafter(narrow), k, temperature=0, max_tokens=60)
    assert alone.statistics.num_proposed <= 2 * k


@given(st.lists(st.integers(0, 2), max_size=20), st.lists(st.integers(0, 2), max_size=20), st.integers(0, 20))
def test_common_length(one: list[int], other: list[int], start: int) -> None:
    start = min(start, len(other))
    rest = other[start:]
    expected = next((i for i, (a, b) in enumerate(zip(one, rest, strict=False)) if a != b), min(len(one), len(rest)))
    assert common_length(one, other, start) == expected


class Cut(FixedLength):
    """Five tokens of the text are read first, and after `num_cut` rounds all of it; keeps (length, what was offered)
    of all rounds behind the first draft."""

    def __init__(self, k: int, num_cut: int) -> None:
        super().__init__(k)
        self.num_cut, self.num_rounds = num_cut, 0
        self.offered: list[tuple[int, Prospect]] = []

    def plan(self, sequences: Any, prospects: Any, load: Any) -> list[Plan]:
        if not prospects[0]:
            return super().plan(sequences, prospects, load)
        if self.num_rounds:
            self.offered.append((len(sequences[0].tokens), prospects[0][0]))
        self.num_rounds += 1
        more: dict[str, Any] = {"most_unread": 5} if self.num_rounds <= self.num_cut else {"whole": True}
        return [replace(plan, **more) for plan in super().plan(sequences, prospects, load)]


def test_all_of_a_text_is_offered_while_it_fits_with_a_draft_of_a_quarter() -> None:
    """However much more could be drafted: near the end of a window nobody wants to."""
    policy = Cut(3, 1000)
    prompt = [(7 * i + i // 5) % SIZE for i in range(30)]
    engine = Engine(target(), ModelDrafter(Watched(), 64), policy)
    engine.add(prompt, SamplingParams(max_tokens=90, seed=1))
    run(engine)
    assert {bool(one.num_cut) for _, one in policy.offered} == {True, False}
    for length, one in policy.offered:
        assert bool(one.num_cut) == (length + min(one.longest, 17) - 1 <= 64)
        assert one.num_cut in (0, 25)


@pytest.mark.parametrize("k", [1, 3, 40])
@pytest.mark.parametrize("num_cut", [1, 2, 4])
def test_a_text_that_is_seen_whole_after_all_stays_within_the_window(k: int, num_cut: int) -> None:
    prompt = [(7 * i + i // 5) % SIZE for i in range(30)]
    plain = complete(target(), prompt, max_tokens=90, seed=1)[1]
    draft = Watched(seed=1)  # a stranger's: drafts are rejected, so that rounds are many
    policy = Cut(k, num_cut)
    engine = Engine(target(), Checked(draft, 64), policy)
    sequence = engine.add(prompt, SamplingParams(max_tokens=90, seed=1))
    run(engine)
    assert sequence.tokens[30:] == plain
    assert draft.longest <= 64
    whole = [len(span.tokens) for spans in draft.passes for span in spans if span.start == 0]
    assert sum(30 < num <= 64 for num in whole) >= 1  # all of it was read
    assert any(one.num_cut for _, one in policy.offered[:num_cut])
    assert not any(one.num_cut for _, one in policy.offered[num_cut:])


class Counting(ModelDrafter):
    """Compares what its prospects call unread with what is."""

    num_counted = 0

    def prospects(self, sequences: Any, longest: Any) -> Any:
        found = super().prospects(sequences, longest)
        for sequence, of_one in zip(sequences, found, strict=True):
            cache = self._caches._caches.get(sequence.sequence_id)
            if of_one and cache is not None and cache.tree is None:
                read = cache.start + common_length(cache.tokens, sequence.tokens, cache.start)
                assert of_one[0].num_unread == max(len(sequence.tokens) - 1 - read, 0)
                self.num_counted += 1
        return found


class InTurn:
    """Drafts three rounds in four."""

    def __init__(self) -> None:
        self.fixed, self.num = FixedLength(5), 0

    def plan(self, sequences: Any, prospects: Any, load: Any) -> list[Plan]:
        self.num += 1
        plans = self.fixed.plan(sequences, prospects, load)
        return plans if self.num % 4 else [Plan() for _ in plans]

    def update(self, rounds: Any, step: Any) -> None:
        pass

    def release(self, *sequence_ids: int) -> None:
        pass


def test_drafted_tokens_that_were_rejected_are_unread() -> None:
    """They lie in the cache until it is used again, and what is to be read then is told beforehand."""
    drafter = Counting(ToyModel.random(SIZE, order=2, seed=9, spread=2.0))
    engine = Engine(target(), drafter, InTurn())
    for seed in range(4):
        engine.add([1, 2, 3 + seed], SamplingParams(max_tokens=60, seed=seed))
    run(engine)
    assert drafter.num_counted > 100
