"""Every kind of model the torch runtime serves keeps the Model contract and says what transformers says."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from tests.runtime.contract import check_model_contract, feed, text
from tests.runtime.tiny import CONTEXT, MODELS, VOCABULARY, tiny

from forerun.errors import ContractError, ParameterError
from forerun.runtime.base import Model
from forerun.runtime.torch import TorchModel
from forerun.runtime.torch import model as model_module
from forerun.types import CostCurve, Span


@pytest.fixture(autouse=True)
def quick_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_module, "measure_cost", lambda model: CostCurve(1, {1: 1.0}))


@pytest.mark.parametrize("name", MODELS)
def test_contract(name: str) -> None:
    made = TorchModel.from_transformers(tiny(name))
    assert isinstance(made, Model)
    check_model_contract(lambda: made, tolerance=2e-4)
    assert made.cache.num_bytes == 0  # everything that was freed is gone


@pytest.mark.parametrize("optimise", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_same_rows_as_transformers(name: str, optimise: bool) -> None:
    """Against transformers' eager attention in float32, far beyond every window, fed in ragged pieces."""
    plain = tiny(name)
    tokens = [3 + (i * i + 5 * i) % (VOCABULARY - 3) for i in range(40)]
    with torch.no_grad():
        expected = plain(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    model = TorchModel.from_transformers(copy.deepcopy(plain), optimise=optimise)
    model.begin(0)
    found = feed(model, 0, tokens, [7, 1, 1, 20, 3, 8])
    assert expected.std() > 0.3
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_windows_matter_here() -> None:
    """The comparison above would be blind if a window never hid anything."""
    tokens = text(TorchModel.from_transformers(tiny("mistral, windows")), 30)
    rows = []
    for window in (5, 60):
        model = TorchModel.from_transformers(tiny("mistral, windows", sliding_window=window))
        model.begin(0)
        rows.append(feed(model, 0, tokens))
    assert np.abs(rows[0] - rows[1]).max() > 0.1


def test_long_spans_are_cut_into_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TorchModel.from_transformers(tiny("qwen2, windows above a layer"))
    tokens = text(model, 50)
    model.begin(0)
    expected = feed(model, 0, tokens)
    monkeypatch.setattr(model_module, "MAX_ROWS", 7)
    sizes: list[int] = []
    run = model._run
    monkeypatch.setattr(model, "_run", lambda one, logits: (sizes.append(len(one.tokens)), run(one, logits)))
    model.begin(1)
    model.begin(2)
    out = model.forward([Span(1, 0, tokens, 50), Span(2, 0, tokens[:9], 3)])
    assert sizes == [7] * 8 + [3]
    np.testing.assert_allclose(out.matrix[:50], expected, atol=1e-4)
    np.testing.assert_allclose(out.matrix[50:], expected[6:9], atol=1e-4)


def test_rows_nobody_wants_cost_no_head(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TorchModel.from_transformers(tiny("llama"))
    heads: list[int] = []
    head = model._module.get_output_embeddings()
    head.register_forward_hook(lambda _, inputs, __: heads.append(inputs[0].shape[-2]))
    model.begin(0)
    model.forward([Span(0, 0, [5, 6, 7], 0)])
    assert heads == []
    model.forward([Span(0, 3, [5, 6, 7], 2)])
    assert heads == [2]


def test_a_failed_pass_leaves_lengths_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TorchModel.from_transformers(tiny("llama"))
    model.begin(0)
    expected = feed(model, 0, [4, 5, 6, 7])
    model.keep(0, 2)
    with monkeypatch.context() as patch:
        patch.setattr(model, "_run", lambda *_: (_ for _ in ()).throw(RuntimeError("out of memory")))
        with pytest.raises(RuntimeError, match="out of memory"):
            model.forward([Span(0, 2, [9, 9, 9], 1)])
    assert model.length(0) == 2
    np.testing.assert_allclose(feed(model, 0, [6, 7]), expected[2:], atol=1e-4)


@pytest.mark.parametrize("strict", [False, True])
def test_a_cut_head_computes_the_rows_of_its_ids_only(strict: bool) -> None:
    kept = [3, 20, 61, 66]
    whole = TorchModel.from_transformers(tiny("llama, biased and tied"), strict=strict)
    cut = TorchModel.from_transformers(tiny("llama, biased and tied"), strict=strict, head_ids=[66, 3, 20, 61])
    assert cut._module.get_output_embeddings().out_features == 4
    assert (cut.capabilities.vocabulary_size, cut.capabilities.num_inputs) == (VOCABULARY, VOCABULARY)
    for model in (whole, cut):
        model.begin(0)
    tokens = [60, 3, 65, 21]  # ids that have no logit can still be fed
    found, expected = feed(cut, 0, tokens), feed(whole, 0, tokens)
    np.testing.assert_allclose(found[:, kept], expected[:, kept], atol=1e-5)
    assert np.isneginf(np.delete(found, kept, axis=1)).all()


@pytest.mark.parametrize("settings", [{"head_ids": []}, {"head_ids": [67]}, {"context_length": 97}], ids=str)
def test_limits_that_do_not_fit(settings: dict) -> None:
    with pytest.raises(ParameterError, match=next(iter(settings))):
        TorchModel.from_transformers(tiny("llama"), **settings)


def test_capabilities() -> None:
    model = TorchModel.from_transformers(tiny("llama"), context_length=33)
    assert model.capabilities.context_length == 33
    assert model.capabilities.vocabulary_size == VOCABULARY
    assert model.capabilities.device == "cpu"
    assert TorchModel.from_transformers(tiny("llama")).capabilities.context_length == CONTEXT
    model.begin(0)
    model.forward([Span(0, 0, [5] * 33, 1)])  # exactly full
    with pytest.raises(ContractError, match="do not fit a context of 33"):
        model.forward([Span(0, 33, [5], 1)])


def test_the_model_cannot_be_called_beside_the_cache() -> None:
    module = tiny("llama")
    TorchModel.from_transformers(module)
    with pytest.raises(ContractError, match=r"outside TorchModel\.forward"):
        module(input_ids=torch.tensor([[1, 2, 3]]))


def test_nan_weights_reach_the_rows() -> None:
    """The engine reports them per request; loading must not."""
    module = tiny("llama")
    module.lm_head.weight.data[7] = torch.nan
    model = TorchModel.from_transformers(module)
    model.begin(0)
    rows = feed(model, 0, [4, 5])
    assert np.isnan(rows[:, 7]).all()
    assert np.isfinite(np.delete(rows, 7, axis=1)).all()


@pytest.mark.parametrize("name", ["llama", "mistral, windows"])
def test_bfloat16_is_close(name: str) -> None:
    exact = TorchModel.from_transformers(tiny(name))
    rough = TorchModel.from_transformers(tiny(name, torch.bfloat16))
    tokens = text(exact, 30)
    for model in (exact, rough):
        model.begin(0)
    expected, found = feed(exact, 0, tokens), feed(rough, 0, tokens, [10] * 3)
    assert found.dtype == np.float32
    assert np.abs(found - expected).max() < 0.1 * expected.std()
