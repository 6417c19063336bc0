"""cases.md C24, the whole kind: rows beyond the real vocabulary, drafts of fewer rows, vocabularies that differ.

The sizes are those of the reports: 1,000 real tokens, 64 rows beyond them in one model, in the other, or in both. What
two tokenizers must agree in is tests/models/test_vocabulary.py's; here is what becomes of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.cases.tools import TorchRows, outcome, pieces_tokenizer, streamed
from tests.helpers import complete
from tests.models.tiny_gguf import NORMAL, byte_level, write_tiny_gguf
from typer.testing import CliRunner

from forerun.cli import app
from forerun.control import FixedLength
from forerun.drafting import LookupDrafter, ModelDrafter
from forerun.engine import Engine
from forerun.errors import ContractError, VocabularyMismatchError
from forerun.llm import LLM
from forerun.loading import load
from forerun.runtime.cut import CutHead
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams
from forerun.types import Draft

REAL, PADDED, FAVOURITE = 1000, 1064, 1010
WIDTHS = {
    "target wider": (PADDED, REAL),
    "draft wider": (REAL, PADDED),
    "both padded": (PADDED, PADDED),
    "both padded, otherwise": (REAL + 8, PADDED),
    "draft narrower": (PADDED, 700),
}
PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"seed": 3},
    "filters": {"seed": 3, "temperature": 1.5, "top_k": 40, "top_p": 0.95},
    "biases": {"seed": 3, "repetition_penalty": 1.3, "logit_bias": {5: 4.0, 999: 3.0, 800: 1.0}, "min_tokens": 5},
}


def rows_of(width: int, noise: float = 0.0) -> Any:
    """Likings among real ids that depend on the last token alone, whatever the width; a padded id is liked best of all,
    and every other padded one more than any real one."""

    def logits_of(tokens: tuple[int, ...]) -> np.ndarray:
        row = np.random.default_rng(tokens[-1:]).normal(0.0, 2.5, PADDED)
        row += noise * np.random.default_rng((7, *tokens[-1:])).normal(0.0, 1.0, PADDED)
        row[REAL:] += 30.0
        row[FAVOURITE] = 90.0
        return row[:width]

    return logits_of


def model(width: int, noise: float = 0.0, kind: type[ToyModel] = ToyModel) -> ToyModel:
    """A model with rows of this width, which can be fed every real token."""
    made = kind(rows_of(width, noise), width)
    made.capabilities = replace(made.capabilities, num_embeddings=max(width, REAL))
    return made


TOKENIZER = pieces_tokenizer([f"<{i}>" for i in range(REAL - 1)])


@pytest.mark.parametrize("kind", [ToyModel, TorchRows])
@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("widths", WIDTHS)
def test_c24_padded_rows_are_masked_in_both_models(widths: str, name: str, kind: type[ToyModel]) -> None:
    target_width, draft_width = WIDTHS[widths]
    params = {**PARAMS[name], "max_tokens": 60, "ignore_eos": True, "logprobs": 3}
    plain = LLM(model(target_width, kind=kind), TOKENIZER).generate([1, 2], **params)
    assert max(plain.tokens) < REAL
    for noise, least in ((0.0, 0.99), (0.4, 0.2)):
        draft = model(draft_width, noise, kind)
        llm = LLM(model(target_width, kind=kind), TOKENIZER, ModelDrafter(draft), FixedLength(4))
        result = streamed(llm, [1, 2], **params)
        assert outcome(result) == outcome(plain)
        assert result.speculation.num_proposed > 0
        assert all(math.isfinite(entry.logprob) for entry in result.logprobs or ())
        if draft_width >= REAL:  # the same real rows: what is padded must not cost acceptance
            assert (result.speculation.acceptance_rate or 0.0) > least * (1.0 if name != "biases" else 0.5)
        assert draft.num_sequences == 0


@pytest.mark.parametrize("widths", WIDTHS)
def test_c24_sampled_texts_never_hold_a_padded_id(widths: str) -> None:
    """Without a seed, so with q rows, residuals and bonus tokens over rows of other widths."""
    target_width, draft_width = WIDTHS[widths]
    seen: set[int] = set()
    for _ in range(4):
        sequence, tokens = complete(
            model(target_width), [1, 2], ModelDrafter(model(draft_width, 0.4)), 4, {"vocabulary_size": REAL},
            max_tokens=150,
        )  # fmt: skip
        assert sequence.statistics.num_proposed > 0
        assert sequence.finish_reason == "length"
        seen |= set(tokens)
    assert max(seen) < REAL
    assert any(token >= 700 for token in seen)  # what a narrower draft cannot propose comes all the same


class Proposals(ModelDrafter):
    """Remembers every id that it proposed."""

    def __init__(self, draft: Any) -> None:
        super().__init__(draft)
        self.seen: set[int] = set()

    def propose(self, sequences: Any, plans: Any) -> list[Draft]:
        drafts = super().propose(sequences, plans)
        self.seen |= {token for draft in drafts for token in draft.tokens}
        return drafts


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 3}, {}])
def test_c24_no_id_is_proposed_that_one_of_them_lacks(widths: str, params: dict[str, Any]) -> None:
    target_width, draft_width = WIDTHS[widths]
    drafter = Proposals(model(draft_width, 0.4))
    complete(model(target_width), [1, 2], drafter, 4, {"vocabulary_size": REAL}, max_tokens=80, **params)
    assert drafter.seen
    assert max(drafter.seen) < min(REAL, draft_width)


def test_c24_a_head_that_was_cut_and_is_padded() -> None:
    kept = [*range(0, REAL, 3), FAVOURITE, PADDED - 1]
    drafter = Proposals(CutHead(model(PADDED), kept))
    plain = complete(model(PADDED), [1, 2], engine={"vocabulary_size": REAL}, max_tokens=80, seed=2)[1]
    found = complete(model(PADDED), [1, 2], drafter, 3, {"vocabulary_size": REAL}, max_tokens=80, seed=2)[1]
    assert found == plain
    assert drafter.seen <= set(kept) - {FAVOURITE, PADDED - 1}


def test_c24_a_draft_id_beyond_the_vocabulary_is_refused_loudly() -> None:
    class Wild(LookupDrafter):
        def propose(self, sequences: Any, plans: Any) -> list[Draft]:
            return [Draft((REAL,)) for _ in sequences]

    engine = Engine(model(PADDED), Wild(), FixedLength(2), vocabulary_size=REAL)
    engine.add([1, 2], SamplingParams(temperature=0, max_tokens=5))
    engine.step()
    with pytest.raises(ContractError, match=f"ids below {REAL}"):
        engine.step()


# -- files: what plan says, generate does ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """GGUF files by name: the target and drafts, padded otherwise or of another vocabulary."""
    folder = tmp_path_factory.mktemp("files")
    specials = byte_level(600)[0]
    renamed = {"tokenizer.ggml.tokens": [*specials[:596], "<|start|>", *specials[597:]]}
    settings: dict[str, dict[str, Any]] = {
        "target": {"seed": 3},
        "padded": {"seed": 3, "perturb": 0.3, "padding": 64},
        "padded more": {"seed": 3, "perturb": 0.3, "padding": 128},
        "swapped": {"swap": [(310, 300)], "padding": 64},
        "other specials": {"metadata": renamed},
        "other roles": {"types": {596: NORMAL}},
        "other merges": {"swap_merges": [(10, 200)]},
        "another family": {"kind": "llama", "architecture": "llama"},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORERUN_HOME", str(folder / "home"))
        yield {
            name: str(write_tiny_gguf(folder / f"{name.replace(' ', '-')}.gguf", **given))
            for name, given in settings.items()
        }


REFUSED = {
    "swapped": ["id 300 is"],
    "other specials": ["id 596 is the control token '<|im_start|>'", "'<|start|>'"],
    "other roles": ["id 596 is the control token '<|im_start|>'", "and '<|im_start|>' in the draft"],
    "other merges": ["merge 10 is", "it makes token 266"],
    "another family": ["id 0 is '!'", "'<unk>'"],
}


def invoke(*args: str) -> Any:
    return CliRunner().invoke(app, list(args))


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading weights fails: refusals come before."""

    def never(*args: Any, **settings: Any) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr("forerun.runtime.select.Choice.load", never)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.usefixtures("no_weights")
def test_c24_a_real_mismatch_is_refused_by_name_before_weights_load(name: str, files: dict[str, str]) -> None:
    found = invoke("generate", "hello", "--target", files["target"], "--draft", files[name], "--max-tokens", "4")
    assert (found.exit_code, found.stdout) == (3, "")
    assert "differ" in found.stderr
    for words in (*REFUSED[name], "--drafter lookup"):
        assert words in found.stderr
    with pytest.raises(VocabularyMismatchError, match="target and draft"):
        load(files["target"], draft=files[name])


@pytest.mark.parametrize("name", REFUSED)
def test_c24_plan_gives_the_verdict_that_generate_obeys(
    name: str, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forerun.runtime.select.Choice.load", lambda self, progress: ToyModel.random(600, seed=1))
    monkeypatch.setattr("forerun.bench.probe.BandwidthProbe.__init__.__defaults__", (1, 1 << 20, 0.001))
    found = invoke("plan", files["target"], files[name], files["padded"], "--json")
    assert found.exit_code == 0, found.stderr
    document = json.loads(found.stdout)
    assert document["vocabulary"][files["padded"]] == "same"
    for words in REFUSED[name]:
        assert words in document["vocabulary"][files[name]]
    assert list(document["draft_cost_ms"]) == [files["padded"]]


@pytest.mark.parametrize("pair", [("target", "padded"), ("padded more", "padded")], ids=str)
def test_c24_padded_files_draft_for_each_other(pair: tuple[str, str], files: dict[str, str]) -> None:
    target, draft = (files[name] for name in pair)
    settings = {"dtype": "float32", "strict": True}
    with load(target, **settings) as plain, load(target, draft=draft, k=3, **settings) as llm:
        for params in ({"temperature": 0}, {"seed": 4}):
            expected = plain.generate([5, 6, 7, 300], max_tokens=24, ignore_eos=True, **params)
            found = llm.generate([5, 6, 7, 300], max_tokens=24, ignore_eos=True, **params)
            assert found.tokens == expected.tokens
            assert max(found.tokens) < 600
            assert found.speculation.num_proposed > 0
