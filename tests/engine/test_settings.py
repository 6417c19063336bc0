"""Settings of `forerun.load`: what has no effect or cannot be is refused early, the rest leaves the text alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.models.tiny_gguf import write_tiny_gguf

from forerun.control import FixedLength
from forerun.errors import ForerunError, ParameterError
from forerun.loading import load


@pytest.mark.parametrize("setting", [{"draft_context": 8}, {"draft_vocabulary": 8}, {"draft_min_confidence": 0.3}])
@pytest.mark.parametrize("drafter", [None, "lookup"])
def test_settings_of_a_draft_model_are_refused_where_there_is_none(setting: dict, drafter: str | None) -> None:
    with pytest.raises(ForerunError, match="needs a draft model") as caught:
        load("smollm2-135m", drafter=drafter, **setting)
    assert next(iter(setting)) in str(caught.value)


def test_a_policy_without_a_drafter_is_refused() -> None:
    with pytest.raises(ForerunError, match="policy: nothing drafts"):
        load("smollm2-135m", policy=FixedLength(2))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny target and a draft of the same vocabulary, perturbed from it."""
    folder = tmp_path_factory.mktemp("pair")
    target = write_tiny_gguf(folder / "target.gguf", seed=3)
    return target, write_tiny_gguf(folder / "draft.gguf", seed=3, perturb=0.3, context_length=128)


@pytest.mark.parametrize("setting", [{"draft_context": 129}, {"draft_vocabulary": 601}])
def test_limits_the_draft_cannot_have_are_refused_by_their_own_name_before_weights_load(
    pair: tuple[Path, Path], setting: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr("forerun.runtime.torch.load_torch_model", never)
    with pytest.raises(ParameterError, match=next(iter(setting))):
        load(pair[0], draft=pair[1], **setting)


@pytest.mark.parametrize(
    "setting",
    [{}, {"draft_vocabulary": 300}, {"draft_min_confidence": 0.01}, {"draft_context": 20}, {"verifier": "chain"},
     {"draft_vocabulary": 300, "draft_min_confidence": 0.01, "k": 7}],
)  # fmt: skip
def test_every_setting_of_a_loaded_pair_leaves_the_text_alone(pair: tuple[Path, Path], setting: dict) -> None:
    common = {"dtype": "float32", "strict": True, "device": "cpu"}
    prompts = [[5, 6, 7], [9] * 12, [30, 31]]
    modes = [{"temperature": 0}, {"seed": 8, "temperature": 0.7, "top_p": 0.9}]
    with load(pair[0], **common) as plain, load(pair[0], draft=pair[1], **common, **setting) as llm:
        for params in modes:
            expected = plain.generate(prompts, max_tokens=24, ignore_eos=True, **params)
            found = llm.generate(prompts, max_tokens=24, ignore_eos=True, **params)
            assert [result.tokens for result in found] == [result.tokens for result in expected]
            assert sum(result.speculation.num_proposed for result in found) > 0
