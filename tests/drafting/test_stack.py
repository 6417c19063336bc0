"""Stacks: what they offer, whom they ask, how a draft model goes on behind given tokens, and what that leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.helpers import complete, run
from tests.verification.laws import reference_probs

from forerun.control import FixedLength
from forerun.drafting import Drafter, LookupDrafter, ModelDrafter, NoDrafter, StackDrafter, SuffixDrafter
from forerun.engine import Engine
from forerun.errors import ContractError, ParameterError
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams
from forerun.types import Draft, Plan, Prospect, Round

SIZE = 8
PROMPT = [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2, 3]
"""A match of 8 behind it, so that a suffix draft is sure enough to be extended."""


def target() -> ToyModel:
    return ToyModel.random(SIZE, order=2, seed=3, spread=2.0)


class Watched(ToyModel):
    """Counts every call that could cost something."""

    def __init__(self) -> None:
        super().__init__(lambda tokens: target().logits(tokens) + noise().logits(tokens), SIZE)
        self.calls: list[str] = []
        self.fed: list[list[tuple[int, ...]]] = []

    def begin(self, *args: Any) -> None:
        self.calls.append("begin")
        super().begin(*args)

    def forward(self, spans: Any) -> Any:
        self.calls.append("forward")
        self.fed.append([tuple(span.tokens) for span in spans])
        return super().forward(spans)

    def keep(self, *args: Any) -> None:
        self.calls.append("keep")
        super().keep(*args)

    def fork(self, *args: Any) -> None:
        self.calls.append("fork")
        super().fork(*args)


def noise() -> ToyModel:
    return ToyModel.random(SIZE, order=3, seed=5, spread=0.5)


class Choosing(FixedLength):
    """The named source where it is offered, k tokens; what was offered, drafted and came of it is kept."""

    def __init__(self, k: int, *sources: str | None, **more: Any) -> None:
        super().__init__(k)
        self.sources, self.more = sources, more
        self.offered: list[list[Prospect]] = []
        self.rounds: list[Round] = []
        self.num_rounds = 0

    def plan(self, sequences: Any, prospects: Any, load: Any) -> list[Plan]:
        self.offered += [list(one) for one in prospects]
        wanted = self.sources[self.num_rounds % len(self.sources)]
        self.num_rounds += 1
        return [
            Plan(self.k, wanted, **self.more)
            if wanted is None or any(one.source == wanted for one in offered)
            else Plan(0)
            for offered in prospects
        ]

    def update(self, rounds: Any, step: Any) -> None:
        self.rounds += rounds


class Recording(StackDrafter):
    """Keeps every draft with the text it followed."""

    drafted: list[tuple[list[int], Any, Draft]]

    def propose(self, sequences: Any, plans: Any) -> Any:
        drafts = super().propose(sequences, plans)
        self.drafted = getattr(self, "drafted", [])
        self.drafted += [
            (list(sequence.tokens), sequence.params, draft) for sequence, draft in zip(sequences, drafts, strict=True)
        ]
        return drafts


def stack(model: Any = None, **more: Any) -> Recording:
    by_model = ModelDrafter(Watched() if model is None else model, **{"start_after": 0, **more})
    return Recording([SuffixDrafter(), by_model])


def play(drafter: Drafter, policy: FixedLength, prompt: list[int] = PROMPT, **params: Any) -> Any:
    engine = Engine(target(), drafter, policy)
    sequence = engine.add(prompt, SamplingParams(**{"max_tokens": 40, **params}))
    run(engine)
    return sequence


# -- what is offered ---------------------------------------------------------------------------------------------------


def test_all_sources_and_their_extensions_are_offered() -> None:
    policy = Choosing(4, None)
    play(stack(), policy, temperature=0)
    suffix, model, both = policy.offered[0]
    assert [suffix.source, model.source, both.source] == ["suffix", "model", "suffix+model"]
    assert suffix.longest == suffix.num_free > both.num_free > 0
    assert both.longest == model.longest == 39
    assert (both.num_unread, model.num_unread) == (len(PROMPT) - 1,) * 2
    assert both.expected == suffix.expected[: both.num_free]
    assert np.prod(both.expected) >= 0.3 > np.prod(suffix.expected[: both.num_free + 1])
    assert both.context == suffix.context == "8+"
    names = {tuple(one.source for one in offered) for offered in policy.offered}
    assert ("model",) in names  # later, where nothing matches


def test_weak_matches_are_not_extended_and_neither_are_sources_without_an_estimate() -> None:
    policy = Choosing(4, None)
    play(stack(), policy, [1, 2, 3, 1], temperature=0, max_tokens=1)
    assert [one.source for one in policy.offered[0]] == []  # the first token is the last: nothing fits before it
    policy = Choosing(4, None)
    play(stack(), policy, [1, 2, 3, 1], temperature=0)
    assert [one.source for one in policy.offered[0]] == ["suffix", "model"]
    policy = Choosing(4, None)
    play(StackDrafter([LookupDrafter(), ModelDrafter(Watched(), start_after=0)]), policy, temperature=0)
    assert [one.source for one in policy.offered[0]] == ["lookup", "model"]


@pytest.mark.parametrize("make", [list, lambda: [SuffixDrafter(), SuffixDrafter()], lambda: [NoDrafter()]])
def test_sources_need_names_of_their_own(make: Any) -> None:
    with pytest.raises(ParameterError, match="sources"):
        StackDrafter(make())


@pytest.mark.parametrize("name", ["heads", "model+suffix", "suffix+suffix", "suffix+", "+model", "suffix+model+model"])
def test_an_unknown_source_is_refused(name: str) -> None:
    engine = Engine(target(), stack(), FixedLength(2))
    engine.policy.plan = lambda *args: [Plan(2, name)]  # type: ignore[method-assign]
    engine.add(PROMPT, SamplingParams(max_tokens=4))
    with pytest.raises(ContractError, match="sources are"):
        engine.step()


# -- who is asked ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [FixedLength(0), Choosing(4, "suffix"), Choosing(0, "model")], ids=repr)
def test_a_draft_model_that_no_plan_asks_does_nothing_at_all(policy: FixedLength) -> None:
    model = Watched()
    sequence = play(stack(model), policy, temperature=0)
    assert model.calls == []
    assert model.num_sequences == 0
    assert (sequence.statistics.num_proposed > 0) is (policy.k > 0)


def test_an_extension_that_is_all_suffix_costs_no_pass() -> None:
    model = Watched()
    play(stack(model), Choosing(1, "suffix+model"), temperature=0)
    assert "forward" not in model.calls


def test_each_source_is_asked_once_for_a_batch() -> None:
    model = Watched()
    drafter = stack(model)
    asked: list[tuple[str, int]] = []
    for name, verb in (("suffix", "propose"), ("model", "extend")):
        source = drafter.sources[name]
        plain = getattr(source, verb)

        def counted(sequences: Any, *rest: Any, name: str = name, plain: Any = plain) -> Any:
            asked.append((name, len(sequences)))
            return plain(sequences, *rest)

        setattr(source, verb, counted)
    engine = Engine(target(), drafter, FixedLength(3))
    wanted = ["suffix", "suffix+model", "model", None, "suffix+model"]
    engine.policy.plan = lambda sequences, *args: [Plan(3, wanted[i]) for i in range(5)]  # type: ignore[method-assign]
    for i in range(5):
        engine.add([*PROMPT, *([6] * i), *PROMPT], SamplingParams(max_tokens=20, temperature=0))
    engine.step()
    assert asked == [("suffix", 4), ("model", 3)]
    assert model.calls.count("forward") == 3  # as many as the longest needs, for all together
    sources = [draft.source for _, _, draft in drafter.drafted]
    assert sources == ["suffix", "suffix+model", "model", "suffix", "suffix+model"]


# -- behind given tokens -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [{}, {"temperature": 0.7, "top_p": 0.9}, {"temperature": 0}], ids=str)
@pytest.mark.parametrize("sources", [("suffix+model",), ("suffix+model", "model", "suffix")], ids=str)
def test_rows_of_q_are_the_draft_models_own_whatever_was_rejected_before(params: Any, sources: Any) -> None:
    """The cache rolls back over fixed tokens as over drawn ones: else q would be exact and worse: no law shows that."""
    model, num_checked, num_extended = Watched(), 0, 0
    drafter = stack(model)
    for seed in range(4):
        play(drafter, Choosing(5, *sources), [(token + seed) % SIZE for token in PROMPT], max_tokens=60, **params)
    for text, given, draft in drafter.drafted:
        kind = "sampled" if given.seed is None and given.temperature > 0 else "deterministic"
        drawn = draft.tokens[draft.num_free :]
        assert draft.kind == (kind if drawn and draft.source != "suffix" else "deterministic")
        assert (draft.num_free > 0) is (draft.source == "suffix+model" and bool(draft.tokens))
        num_extended += bool(draft.num_free and drawn)
        for node, q in enumerate(draft.rows or ()):
            if node < draft.num_free:
                assert q.prob(draft.tokens[node]) == 1.0
                assert sum(q.probs) == 1.0
                continue
            logits = model.logits((*text, *draft.tokens[:node]))
            expected = reference_probs(logits.tolist(), given.temperature, given.top_k, given.top_p, given.min_p)
            np.testing.assert_allclose(q.probs, expected, rtol=1e-12, atol=1e-15)
            num_checked += 1
        if kind == "deterministic" and given.temperature == 0 and draft.source != "suffix":
            for node, token in enumerate(drawn, start=draft.num_free):
                assert token == int(np.argmax(model.logits((*text, *draft.tokens[:node]))))
                num_checked += 1
    assert num_checked > 50
    assert num_extended > 5


@pytest.mark.parametrize(
    "params",
    [{"temperature": 0}, {"seed": 7}, {"seed": 8, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
     {"temperature": 0, "bad_words": [[2, 3], [5]], "logit_bias": {1: 2.0}}],
    ids=str,
)  # fmt: skip
def test_a_model_that_goes_on_for_itself_is_always_right(params: dict[str, Any]) -> None:
    """Each row behind fixed tokens is the target's own, drawn with the number of its own place."""
    policy = Choosing(6, "suffix+model")
    for seed in range(6):
        play(stack(target()), policy, [(token + seed) % SIZE for token in PROMPT], max_tokens=60, **params)
    extended = [one for one in policy.rounds if one.num_free and one.num_accepted >= one.num_free < one.num_proposed]
    assert len(extended) > 3
    assert all(one.num_accepted == one.num_proposed for one in extended)


def test_only_what_is_missing_is_fed() -> None:
    model = Watched()
    drafter = stack(model)
    engine = Engine(target(), drafter, Choosing(4, "suffix+model"))
    engine.add(PROMPT, SamplingParams(max_tokens=20, temperature=0))
    engine.step()
    draft = drafter.drafted[0][2]
    num = draft.num_free
    assert 0 < num < 4
    assert model.fed[0] == [(*PROMPT, *draft.tokens[:num])]  # the text and all fixed tokens, in one pass
    assert model.fed[1:] == [[(token,)] for token in draft.tokens[num:-1]]


def test_a_fixed_token_that_the_draft_model_cannot_read_ends_the_draft() -> None:
    drafter = stack(ToyModel.random(4, order=1, seed=1))
    plain = complete(target(), PROMPT, temperature=0, max_tokens=40)[1]
    sequence = play(drafter, Choosing(4, "suffix+model"), temperature=0)
    assert sequence.tokens[len(PROMPT) :] == plain
    prompt = [0, 1, 2, 3, 7, 0, 1, 2, 3, 7, 0, 1, 2, 3]
    drafts = stack(ToyModel.random(7, order=1, seed=1))
    engine = Engine(target(), drafts, Choosing(4, "suffix+model"))
    engine.policy.plan = lambda *args: [Plan(4, "suffix+model")]  # type: ignore[method-assign]
    engine.add(prompt, SamplingParams(max_tokens=20))
    engine.step()
    draft = drafts.drafted[0][2]
    assert draft.tokens[0] == 7
    assert (draft.kind, draft.rows, len(draft.tokens)) == ("deterministic", None, draft.num_free)


def test_confidences_are_of_the_tokens_the_model_drew() -> None:
    model, seen = Watched(), []

    def gate(confidences: Any) -> bool:
        seen.append(tuple(confidences))
        return len(seen) % 3 != 0

    policy = Choosing(6, "suffix+model", "model", gate=gate)
    drafter = stack(model)
    play(drafter, policy, max_tokens=80)
    assert set(map(len, seen)) >= {1, 2}
    for text, _, draft in drafter.drafted:
        if draft.source in ("model", "suffix+model"):
            assert len(draft.confidences) == len(draft.tokens) - draft.num_free
            for i, confidence in enumerate(draft.confidences):
                logits = model.logits((*text, *draft.tokens[: draft.num_free + i]))
                assert confidence == pytest.approx(max(reference_probs(logits.tolist())))
    by_text = {len(text): draft for text, _, draft in drafter.drafted}
    length, num_cut = len(PROMPT), 0
    for one in policy.rounds:
        draft = by_text.get(length, Draft())
        examined = one.num_accepted + (one.num_accepted < one.num_proposed)
        assert one.num_free == draft.num_free
        if one.num_proposed == len(draft.tokens):  # not cut by the end of the text
            assert one.confidences == draft.confidences
        num_cut += one.num_free > 0 and examined <= one.num_free < len(draft.tokens)
        length += one.num_emitted
    assert (
        num_cut > 0
    )  # rejected among the fixed tokens: what the model drew was not examined, and is told all the same


# -- where no source is named ------------------------------------------------------------------------------------------


def test_the_source_with_most_expected_tokens_drafts() -> None:
    drafter = stack()
    play(drafter, Choosing(4, None), temperature=0)
    first = drafter.drafted[0][2]
    assert first.source == "suffix"  # a match of 8 promises more than the prior of a model
    weak = stack()
    play(weak, Choosing(4, None), [1, 2, 3, 1], temperature=0)
    assert weak.drafted[0][2].source == "model"


def test_a_source_that_does_badly_is_left_and_every_sequence_finds_out_for_itself() -> None:
    class Hopeless(ToyModel):
        def __init__(self) -> None:
            super().__init__(lambda tokens: -target().logits(tokens) * 9, SIZE)

    drafter = stack(Hopeless())
    policy = Choosing(2, None)
    engine = Engine(target(), drafter, policy)
    for _ in range(2):
        drafter.drafted = []
        sequence = engine.add([1, 2, 3, 1, 2, 4, 1, 2], SamplingParams(max_tokens=60, seed=5))
        run(engine)
        sources = [draft.source for _, _, draft in drafter.drafted]
        assert sources[0] == "model"
        offered = [any(one.source == "suffix" for one in one_round) for one_round in policy.offered]
        later = [source for source, is_offered in zip(sources[8:], offered[8:], strict=False) if is_offered]
        assert len(later) > 10
        assert set(later) == {"suffix"}  # also where a match promises little
        policy.offered.clear()
        assert sequence.sequence_id not in drafter._records
    assert not drafter._drafted


def test_a_stack_of_one_is_that_one() -> None:
    for make in (SuffixDrafter, LookupDrafter):
        alone = play(make(), FixedLength(4), temperature=0)
        stacked = play(StackDrafter([make()]), FixedLength(4), temperature=0)
        assert alone.statistics.rounds == stacked.statistics.rounds


# -- Plan.most_unread --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["model", "suffix+model"])
@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 3}], ids=str)
def test_a_cache_begins_anew_with_the_latest_tokens_and_goes_on(source: str, params: dict[str, Any]) -> None:
    """A long text of which a plan lets a draft model read five tokens: those are read, then only what is new."""
    prompt = [*range(SIZE)] * 12 + PROMPT
    plain = complete(target(), prompt, max_tokens=30, **params)[1]
    model = Watched()
    drafter = stack(model)
    policy = Choosing(8, source, most_unread=5)
    sequence = play(drafter, policy, prompt, max_tokens=30, **params)
    assert sequence.tokens[len(prompt) :] == plain
    first = model.fed[0][0]
    num_free = drafter.drafted[0][2].num_free
    text = [*prompt, *drafter.drafted[0][2].tokens]
    assert list(first) == text[len(prompt) - 6 : len(prompt) + num_free]  # five unread, the last, and the fixed ones
    assert all(len(tokens) <= 6 + 8 for fed in model.fed for tokens in fed)
    assert model.calls.count("begin") <= 4
    drafted = [draft for _, _, draft in drafter.drafted if draft.tokens]
    assert len(drafted) >= 4
    assert sequence.statistics.num_accepted > 0
    assert model.num_sequences == 0


class Widening(Choosing):
    """Five tokens of the text are read first, and from the third round on all of it."""

    def plan(self, *given: Any) -> list[Plan]:
        self.more = {"most_unread": 5} if self.num_rounds < 2 else {"whole": True}
        return super().plan(*given)


@pytest.mark.parametrize("source", ["model", "suffix+model"])
@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 3}], ids=str)
def test_a_cache_that_begins_late_begins_anew_with_the_first_token(source: str, params: dict[str, Any]) -> None:
    prompt = [*range(SIZE)] * 12 + PROMPT
    plain = complete(target(), prompt, max_tokens=30, **params)[1]
    model = Watched()
    drafter = stack(model)
    policy = Widening(8, source)
    sequence = play(drafter, policy, prompt, max_tokens=30, **params)
    assert sequence.tokens[len(prompt) :] == plain
    cuts = [one.num_cut for offered in policy.offered for one in offered if one.source == source]
    assert cuts[0] == 0  # nothing was read, so nothing is left out
    assert cuts[1] == len(prompt) - 6
    assert cuts[-1] == 0
    begun_anew = [tokens for fed in model.fed for tokens in fed if len(tokens) > len(prompt)]
    assert len(begun_anew) == 1  # once, and what it holds is the text
    assert list(begun_anew[0][: len(prompt)]) == prompt
    assert sequence.statistics.num_accepted > 0


def test_what_a_draft_model_cannot_hold_is_not_offered_and_not_read() -> None:
    prompt = [*range(SIZE)] * 12 + PROMPT
    model = Watched()
    policy = Widening(4, "model")
    sequence = play(ModelDrafter(model, 40, start_after=0), policy, prompt, temperature=0)
    assert sequence.tokens[len(prompt) :] == complete(target(), prompt, temperature=0, max_tokens=40)[1]
    assert all(one.num_cut == 0 for offered in policy.offered for one in offered)
    assert max(len(tokens) for fed in model.fed for tokens in fed) <= 40


def test_most_unread_of_zero_reads_the_last_token_alone() -> None:
    model = Watched()
    drafter = ModelDrafter(model, start_after=0)
    sequence = play(drafter, Choosing(2, "model", most_unread=0), temperature=0)
    assert sequence.tokens[len(PROMPT) :] == complete(target(), PROMPT, temperature=0, max_tokens=40)[1]
    assert model.fed[0] == [(PROMPT[-1],)]


def test_a_cache_that_is_near_enough_stays() -> None:
    model = Watched()
    play(ModelDrafter(model, start_after=0), Choosing(2, "model", most_unread=len(PROMPT)), temperature=0)
    assert model.calls.count("begin") == 1
    assert model.fed[0] == [tuple(PROMPT)]


def test_the_name_of_each_source_is_on_its_drafts() -> None:
    for make, name in (
        (SuffixDrafter, "suffix"),
        (LookupDrafter, "lookup"),
        (lambda: ModelDrafter(Watched()), "model"),
    ):
        policy = Choosing(3, name)
        play(make(), policy, temperature=0)
        assert {one.source for one in policy.rounds if one.num_proposed} == {name}
        assert {one.source for offered in policy.offered for one in offered} == {name}
