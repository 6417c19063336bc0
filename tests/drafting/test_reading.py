"""A long text, read by the draft model in pieces: `Plan.read` drafts nothing and leaves the text alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.verification.laws import draft_with, engine_law, finish, target_law, violations

from forerun.control import FixedLength
from forerun.drafting import ModelDrafter
from forerun.engine import Engine
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams
from forerun.types import Plan
from forerun.verification import RULES

DENSE = np.random.default_rng(7).integers(1, 9, (2, 2, 2))


class InPieces:
    """Reads `piece` tokens a round while more than that are unread, and then drafts k."""

    def __init__(self, k: int, piece: int) -> None:
        self.k, self.piece, self.num_read = k, piece, 0

    def plan(self, sequences: Any, prospects: Any, load: Any) -> list[Plan]:
        return [self._one(offered) for offered in prospects]

    def _one(self, offered: Any) -> Plan:
        if not offered:
            return Plan()
        if offered[0].num_unread > self.piece:
            self.num_read += 1
            return Plan(source="model", read=self.piece)
        return Plan(self.k, "model")

    def update(self, rounds: Any, step: Any) -> None:
        pass

    def release(self, *sequence_ids: int) -> None:
        pass


class Fed(ToyModel):
    """Notes how many tokens each pass was fed."""

    fed: list[int]

    def forward(self, spans: Any) -> Any:
        self.fed.append(sum(len(span.tokens) for span in spans))
        return super().forward(spans)


def toy(seed: int, kind: type[ToyModel] = ToyModel) -> Any:
    made = kind.random(12, order=2, seed=seed, spread=2.0)
    made.fed = []  # type: ignore[attr-defined]
    return made


def write(policy: Any, drafter: Any, prompts: list[list[int]], **params: Any) -> list[list[int]]:
    engine = Engine(toy(1), drafter, policy)
    sequences = [engine.add(prompt, SamplingParams(max_tokens=60, **params)) for prompt in prompts]
    finish(engine)
    return [sequence.tokens for sequence in sequences]


@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize("piece", [1, 2])
def test_the_law_is_the_targets(rule: str, piece: int) -> None:
    made: list[InPieces] = []

    def policy(k: int) -> InPieces:
        made.append(InPieces(k, piece))
        return made[-1]

    prompt = [1, 0, 1, 1, 0]
    law = engine_law(
        DENSE[0], draft_with(DENSE[1]), 2, [(prompt, {"max_tokens": 5})], rules=RULES[rule], make_policy=policy
    )
    assert not violations(law, target_law(DENSE[0], prompt, 5))
    assert all(one.num_read for one in made)


@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 4}])
@pytest.mark.parametrize("window", [None, 24])
@pytest.mark.parametrize("piece", [1, 5, 16])
def test_texts_are_plain_decodings(params: dict[str, Any], window: int | None, piece: int) -> None:
    prompts = [[i % 12 for i in range(40)], [3], [i * 5 % 12 for i in range(33)]]
    policy = InPieces(3, piece)
    plain = write(FixedLength(0), None, prompts, **params)
    assert write(policy, ModelDrafter(toy(2), window), prompts, **params) == plain
    assert bool(policy.num_read) == (window is None or piece < window // 2)  # a window begins with half of it


def test_a_pass_reads_no_more_than_a_piece_and_no_token_twice() -> None:
    draft = toy(1, Fed)  # the target itself: every draft is accepted
    policy = InPieces(3, 8)
    (tokens,) = write(policy, ModelDrafter(draft), [[i % 12 for i in range(100)]], temperature=0)
    assert max(draft.fed) <= 8 + 1
    assert policy.num_read >= 12
    assert sum(draft.fed) <= len(tokens)  # the last draft token of a round is fed in the next, and no token again


class Always:
    """Asks for a piece in every round, whatever there is."""

    def __init__(self, piece: int) -> None:
        self.piece = piece

    def plan(self, sequences: Any, prospects: Any, load: Any) -> list[Plan]:
        return [Plan(source="model", read=self.piece) for _ in sequences]

    def update(self, rounds: Any, step: Any) -> None:
        pass

    def release(self, *sequence_ids: int) -> None:
        pass


def test_a_piece_ends_before_the_last_token() -> None:
    """Whose row is wanted when the draft begins: fed now, it would have to be fed again."""
    draft = toy(2, Fed)
    (tokens,) = write(Always(1000), ModelDrafter(draft), [[1, 2, 3, 4, 5]], temperature=0)
    assert draft.fed[0] == 5  # the prompt, but not the token that was just written
    assert draft.fed[1:] == [1] * (len(draft.fed) - 1)
    assert sum(draft.fed) < len(tokens) - 1


def test_nothing_is_read_where_nothing_can_be_drafted_any_more() -> None:
    draft = toy(2, Fed)
    write_two = Engine(toy(1), ModelDrafter(draft), Always(1))
    write_two.add([1, 2, 3, 4], SamplingParams(max_tokens=2, temperature=0))
    finish(write_two)
    assert draft.fed == []  # after the first token one is left, which the target writes itself


class Told(InPieces):
    """Notes the rounds in which less was read than was said to be unread."""

    def __init__(self, k: int, piece: int, draft: Fed) -> None:
        super().__init__(k, piece)
        self.draft, self.wanted, self.short = draft, 0, list[tuple[int, int]]()

    def plan(self, sequences: Any, prospects: Any, load: Any) -> list[Plan]:
        plans = super().plan(sequences, prospects, load)
        self.wanted = min(self.piece, prospects[0][0].num_unread) if plans[0].read else 0
        return plans

    def update(self, rounds: Any, step: Any) -> None:
        if self.wanted and self.draft.fed[-1] < self.wanted:
            self.short.append((self.wanted, self.draft.fed[-1]))


@pytest.mark.parametrize("window", [24, 40, 41])
@pytest.mark.parametrize("prompt_length", [3, 33])
def test_what_is_said_to_be_unread_can_be_read_where_a_window_is_nearly_full(window: int, prompt_length: int) -> None:
    """Else a policy that reads first what it is told of reads nothing, and drafts nothing, until the window slides."""
    draft = toy(1, Fed)
    policy = Told(3, 5, draft)
    write(policy, ModelDrafter(draft, window), [[i % 12 for i in range(prompt_length)]], temperature=0)
    assert policy.short == []
    assert policy.num_read or prompt_length <= 5
