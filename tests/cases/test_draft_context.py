"""cases.md C25, the whole kind: the draft model's context is shorter than the target's, or lowered by the user.

Its cache slides: drafting never stops, no cache is longer than the context, and no text shows it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from tests.cases.tools import outcome, streamed
from tests.cli.conftest import Invoke
from tests.helpers import complete, run

from forerun.control import FixedLength
from forerun.drafting import ModelDrafter
from forerun.engine import Engine, Scheduler
from forerun.errors import ContextLengthError
from forerun.llm import LLM
from forerun.runtime.base import Rows
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams
from forerun.types import Span

SIZE, CONTEXT, K = 12, 256, 4
PROMPTS = (200, 255, 256, 257, 1500)
MODES = ({"temperature": 0}, {"seed": 7}, {"seed": 7, "temperature": 1.3, "top_k": 4, "repetition_penalty": 1.2})


class Bounded(ToyModel):
    """Knows the longest cache it ever held, of all sequences together too."""

    longest = most = 0

    def forward(self, spans: Sequence[Span]) -> Rows:
        rows = super().forward(spans)
        lengths = [len(tokens) for tokens in self._cached.values()]
        self.longest, self.most = max(self.longest, *lengths), max(self.most, sum(lengths))
        return rows


def target() -> ToyModel:
    return ToyModel.random(SIZE, order=2, seed=6, spread=2.0, context_length=2048)


def draft(context_length: int | None, seed: int = 6) -> Bounded:
    return Bounded(ToyModel.random(SIZE, order=2, seed=seed, spread=2.0)._logits_of, SIZE, context_length)


def prompt_of(length: int) -> list[int]:
    return [(i * i + i // 3) % SIZE for i in range(length)]


@pytest.mark.parametrize("params", MODES, ids=str)
@pytest.mark.parametrize("is_own", [True, False], ids=["own context", "lowered"])
@pytest.mark.parametrize("length", PROMPTS)
def test_c25_a_full_context_slides_and_the_text_is_the_same(length: int, is_own: bool, params: dict[str, Any]) -> None:
    prompt = prompt_of(length)
    plain = LLM(target()).generate(prompt, max_tokens=200, **params)
    for seed in (6, 1):  # the target's own rows, and a stranger's
        model = draft(CONTEXT if is_own else 2048, seed)
        llm = LLM(target(), None, ModelDrafter(model, None if is_own else CONTEXT), FixedLength(K))
        result = streamed(llm, prompt, max_tokens=200, **params)
        assert outcome(result) == outcome(plain)
        assert model.longest <= CONTEXT
        rounds = result.speculation.rounds
        # The first token's round has no draft, and the last one's if there is no room for any: neither is proposed,
        # nor rejected.
        assert sum(times for (proposed, _), times in rounds.items() if proposed == 0) <= 2
        assert rounds[0, 0] >= 1
        if seed == 6 and "repetition_penalty" not in params:
            assert result.speculation.acceptance_rate == 1.0
            assert rounds[K, K] >= 38
        # The next short request drafts as if nothing had been.
        short = llm.generate([1, 2, 3], max_tokens=50, **params)
        alone = LLM(target(), None, ModelDrafter(draft(None, seed)), FixedLength(K))
        assert short.speculation.rounds == alone.generate([1, 2, 3], max_tokens=50, **params).speculation.rounds
        assert model.num_sequences == 0


@pytest.mark.parametrize("length", PROMPTS)
def test_c25_sampled_without_a_seed(length: int) -> None:
    model = draft(CONTEXT)
    sequence, tokens = complete(target(), prompt_of(length), ModelDrafter(model), K, max_tokens=200)
    assert len(tokens) == 200
    assert sequence.finish_reason == "length"
    assert sequence.statistics.acceptance_rate == 1.0  # two tokens are all that either model looks at
    assert model.longest <= CONTEXT


def test_c25_positions_and_depths_are_counted_where_they_were_drafted() -> None:
    """Acceptance by depth speaks of proposed tokens alone, through every begin anew."""
    sequence, _ = complete(target(), prompt_of(300), ModelDrafter(draft(64, seed=1)), K, seed=1, max_tokens=400)
    statistics = sequence.statistics
    assert len(statistics.acceptance_by_depth) == K
    assert statistics.num_emitted == 400
    assert statistics.num_accepted < statistics.num_proposed
    assert sum(statistics.rounds.values()) == statistics.num_rounds
    assert Counter(proposed for proposed, _ in statistics.rounds.elements())[0] <= 2


def test_c25_a_batch_whose_members_slide_at_their_own_time() -> None:
    prompts = [prompt_of(length) for length in PROMPTS]
    plain = [complete(target(), prompt, max_tokens=80, seed=2)[1] for prompt in prompts]
    model = draft(CONTEXT)
    engine = Engine(target(), ModelDrafter(model), FixedLength(K), scheduler=Scheduler(max_sequences=3))
    made = [engine.add(prompt, SamplingParams(max_tokens=80, seed=2)) for prompt in prompts]
    run(engine)
    assert [sequence.tokens[sequence.prompt_length :] for sequence in made] == plain
    assert model.longest <= CONTEXT
    assert model.most <= 3 * CONTEXT  # never a cache as long as the target's


def test_c25_the_targets_context_still_ends_the_text() -> None:
    model = draft(CONTEXT)
    small = ToyModel.random(SIZE, order=2, seed=6, spread=2.0, context_length=600)
    plain = complete(small, prompt_of(500), temperature=0)[1]
    sequence, tokens = complete(small, prompt_of(500), ModelDrafter(model), 8, temperature=0)
    assert tokens == plain
    assert len(tokens) == 100
    assert sequence.finish_reason == "length"
    with pytest.raises(ContextLengthError):
        complete(small, prompt_of(600), ModelDrafter(model), 8, max_tokens=1)


# -- the command line --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [3, 20, 31, 32, 33, 100])
def test_c25_draft_ctx_is_honoured(invoke: Invoke, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = {"toy": 0, "toy-draft": 0}
    forward = ToyModel.forward

    def watched(self: ToyModel, spans: Sequence[Span]) -> Rows:
        name = "toy" if self.capabilities.context_length == 4096 else "toy-draft"
        rows = forward(self, spans)
        longest[name] = max(longest[name], *(len(tokens) for tokens in self._cached.values()))
        return rows

    monkeypatch.setattr(ToyModel, "forward", watched)
    args = ("generate", "a" * length, "--target", "toy", "--max-tokens", "60", "--seed", "3", "--json")
    plain = json.loads(invoke(*args).stdout)
    result = invoke(*args, "--draft", "toy-draft", "--k", "3", "--draft-ctx", "32")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["text"] == plain["text"]
    assert longest["toy"] >= length + 59
    assert 0 < longest["toy-draft"] <= 32
    assert len(found["speculation"]["acceptance_by_depth"]) == 3
    unlimited = json.loads(invoke(*args, "--draft", "toy-draft", "--k", "3").stdout)
    assert unlimited["text"] == plain["text"]


@pytest.mark.parametrize("value", ["0", "-3", "x"])
def test_c25_contexts_that_are_none_are_refused(invoke: Invoke, value: str) -> None:
    result = invoke("generate", "hello", "--target", "toy", "--draft", "toy-draft", "--draft-ctx", value)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--draft-ctx" in result.stderr
