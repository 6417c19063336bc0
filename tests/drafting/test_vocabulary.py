"""Heads cut to the most used tokens: which ones, what their rows are, and that the text never shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases.tools import TorchRows, check_r0, pieces_tokenizer
from tests.helpers import complete
from tests.models.real_files import real_file
from tests.models.tiny_gguf import write_tiny_gguf
from tests.runtime.contract import feed, reference, text

from forerun.control import FixedLength
from forerun.drafting import ModelDrafter
from forerun.drafting.vocabulary import head_ids, most_used
from forerun.errors import ParameterError
from forerun.llm import LLM
from forerun.models.tokenizer import load_tokenizer
from forerun.runtime.cut import CutHead
from forerun.runtime.toy import ToyModel
from forerun.types import Span

SIZE = 20


@given(
    num=st.integers(1, 25),
    counts=st.dictionaries(st.integers(0, 30), st.integers(0, 4)),
    always=st.lists(st.integers(0, 24), max_size=6),
)
def test_most_used_by_its_definition(num: int, counts: dict[int, int], always: list[int]) -> None:
    found = most_used(num, SIZE, counts=counts, always=always)
    order = sorted(range(SIZE), key=lambda i: (i not in always, -counts.get(i, 0), i))
    assert found.tolist() == sorted(order[:num])
    assert found.dtype == np.int64


@pytest.mark.parametrize("num", [0, -1, 1.5, "3", None])
def test_most_used_of_no_number_is_refused(num: Any) -> None:
    with pytest.raises(ParameterError, match="num"):
        most_used(num, SIZE)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_what_ends_a_text_is_always_among_them(kind: str, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_tiny_gguf(tmp_path / "tiny.gguf", kind=kind, padding=40, vocabulary_only=True))
    special = {*tokenizer.eos_ids, *tokenizer.parts.control_ids, *tokenizer.parts.added_ids}
    ids = head_ids(tokenizer, 60)
    assert special < set(ids.tolist())
    ordinary = [i for i in range(600) if i not in special]
    assert set(ids.tolist()) - special == set(ordinary[: 60 - len(special)])
    assert head_ids(tokenizer, 600).tolist() == list(range(600))
    for num in (0, 601):  # never beyond the real vocabulary
        with pytest.raises(ParameterError, match=f"draft_vocabulary: {num}"):
            head_ids(tokenizer, num)


def test_texts_decide_what_is_used() -> None:
    tokenizer = pieces_tokenizer([chr(ord("a") + i) for i in range(26)])
    assert head_ids(tokenizer, 4).tolist() == [0, 1, 2, 26]
    assert head_ids(tokenizer, 4, ["zzzyyx"]).tolist() == [23, 24, 25, 26]
    assert head_ids(tokenizer, 6, ["zz", "zy"]).tolist() == [0, 1, 2, 24, 25, 26]


@pytest.mark.slow
def test_counts_of_a_real_vocabulary() -> None:
    """Programs counted for programs cover more of them than the first ids do; this is the measurement of docs/log.md
    in small."""
    tokenizer = load_tokenizer(real_file("qwen2.5-coder-0.5b"))
    folder = Path(np.__file__).parent
    sources = [path.read_text(encoding="utf-8") for path in sorted((folder / "lib").glob("_*impl.py"))]
    held_out = tokenizer.encode("\n".join(sources[::2]))
    first = set(head_ids(tokenizer, 8192).tolist())
    counted = set(head_ids(tokenizer, 8192, sources[1::2]).tolist())
    share = {
        name: sum(t in ids for t in held_out) / len(held_out) for name, ids in (("first", first), ("own", counted))
    }
    assert share["own"] > share["first"] + 0.02
    assert set(tokenizer.eos_ids) < first & counted


# -- the wrapper -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ToyModel, TorchRows])
def test_a_cut_head_changes_nothing_but_what_it_cut(kind: type[ToyModel]) -> None:
    whole = kind.random(SIZE, order=2, seed=3)
    kept = [19, 3, 4, 11]
    cut = CutHead(kind.random(SIZE, order=2, seed=3), kept)
    tokens = text(cut, 15)
    assert max(tokens) > 11  # what is cut can be fed
    cut.begin(1)
    rows = feed(cut, 1, tokens, [4, 1, 10])
    assert rows.shape == (15, SIZE)
    assert rows.dtype == (np.float64 if kind is ToyModel else np.float32)
    expected = reference(whole, tokens)
    np.testing.assert_array_equal(rows[:, kept], expected[:, kept])
    assert np.isneginf(np.delete(rows, kept, axis=1)).all()
    cut.keep(1, 7)
    assert cut.length(1) == 7
    cut.fork(1, 2, 5)
    np.testing.assert_array_equal(feed(cut, 2, tokens[5:8])[:, kept], expected[5:8][:, kept])
    cut.free(1)
    cut.free(2)
    assert cut.model.num_sequences == 0  # type: ignore[attr-defined]
    assert (cut.capabilities, cut.cost()) == (whole.capabilities, whole.cost())


def test_nan_in_the_head_stays_visible_and_what_was_cut_is_gone() -> None:
    row = np.zeros(SIZE)
    row[[2, 7]] = np.nan
    model = ToyModel(lambda tokens: row, SIZE)
    for kept, expected in (([2, 3], 1), ([3, 4], 0)):
        cut = CutHead(model, kept)
        cut.begin(1)
        found = cut.forward([Span(1, 0, [1], 1)]).matrix
        assert np.isnan(found).sum() == expected
        cut.free(1)


@pytest.mark.parametrize("ids", [[], [SIZE], [-1, 3]])
def test_heads_that_cannot_be_cut_so(ids: list[int]) -> None:
    with pytest.raises(ParameterError, match="head_ids"):
        CutHead(ToyModel.random(SIZE), ids)


# -- drafts with it ----------------------------------------------------------------------------------------------------


def target() -> ToyModel:
    return ToyModel.random(SIZE, order=2, seed=5, spread=2.0)


@pytest.mark.parametrize("kept", [[3], [0, 7, 19], list(range(0, SIZE, 2)), list(range(SIZE))], ids=len)
@pytest.mark.parametrize(
    "params",
    [{"temperature": 0}, {"seed": 4}, {"seed": 4, "top_k": 3}, {"seed": 4, "top_p": 0.7, "temperature": 1.3},
     {"seed": 4, "repetition_penalty": 1.4, "logit_bias": {0: -3.0, 7: 2.0}, "min_p": 0.05}],
)  # fmt: skip
def test_only_kept_tokens_are_proposed_and_the_text_is_plain_decodings(kept: list[int], params: dict) -> None:
    plain = complete(target(), [1, 2], max_tokens=150, **params)[1]
    draft = CutHead(target(), kept)
    drafter = Proposals(draft)
    sequence, tokens = complete(target(), [1, 2], drafter, 4, max_tokens=150, **params)
    assert tokens == plain
    assert {token for drafted in drafter.proposed.values() for token in drafted} <= set(kept)
    assert sequence.statistics.num_proposed > 0
    if len(params) == 1:  # the draft, which is the target, makes the target's choice wherever that was kept
        text = [1, 2, *plain]
        assert all((drafted[0] == text[place]) == (text[place] in kept) for place, drafted in drafter.proposed.items())
    if len(kept) == SIZE:
        assert sequence.statistics.acceptance_rate == 1.0


class Proposals(ModelDrafter):
    """Remembers what was proposed, by the length of the text before it."""

    def __init__(self, model: Any, **settings: Any) -> None:
        super().__init__(model, **settings)
        self.proposed: dict[int, tuple[int, ...]] = {}

    def propose(self, sequences: Any, plans: Any) -> Any:
        drafts = super().propose(sequences, plans)
        for sequence, draft in zip(sequences, drafts, strict=True):
            if draft.tokens:
                self.proposed[len(sequence.tokens)] = draft.tokens
        return drafts


def test_a_bias_towards_a_token_that_was_cut_cannot_bring_it_back() -> None:
    drafter = Proposals(CutHead(target(), [1, 2, 3]))
    _, tokens = complete(target(), [1], drafter, 3, max_tokens=40, temperature=0, logit_bias={7: 100})
    assert tokens == [7] * 40
    assert {token for drafted in drafter.proposed.values() for token in drafted} <= {1, 2, 3}


@pytest.mark.filterwarnings("error")
def test_a_grammar_that_allows_nothing_of_the_head_ends_the_draft_in_silence() -> None:
    tokenizer = pieces_tokenizer([chr(ord("a") + i) for i in range(SIZE - 1)])
    for pattern in ("[a-c]{12}", "[p-s]{12}", "([a-c][p-s]){6}"):
        plain = LLM(target(), tokenizer).generate("ab", regex=pattern, seed=1, max_tokens=20)
        llm = LLM(target(), tokenizer, ModelDrafter(CutHead(target(), [0, 1, 2])), FixedLength(3))
        assert llm.generate("ab", regex=pattern, seed=1, max_tokens=20).text == plain.text


def test_r0_with_every_drafter_beside_it() -> None:
    """The cut draft among the tools of cases.md: equal results, streamed or not, with stops and log probabilities."""
    plain = check_r0(target, [1, 2, 3], drafters=("half", "self"), ks=(3,), seed=6, max_tokens=40, logprobs=2)
    for kept in ([0, 5, 9], list(range(15))):
        llm = LLM(target(), None, ModelDrafter(CutHead(target(), kept), 12), FixedLength(3))
        found = llm.generate([1, 2, 3], seed=6, max_tokens=40, logprobs=2)
        assert (found.tokens, found.logprobs) == (plain.tokens, plain.logprobs)
