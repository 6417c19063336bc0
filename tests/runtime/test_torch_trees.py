"""Trees in the torch runtime: every kind of attention, cut into passes, and bit for bit where rows are strict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.runtime.contract import (
    check_tree_neighbours,
    check_tree_paths,
    check_tree_rows,
    check_trees_fit_by_their_depth,
    reference,
    text,
)
from tests.runtime.tiny import tiny

from forerun.runtime.torch import TorchModel
from forerun.runtime.torch import model as model_module
from forerun.runtime.torch.padded import PaddedGroups
from forerun.types import Span

NAMES = [
    "llama",
    "mistral, windows",
    "gemma2, soft caps and alternating windows",
    "smollm3, layers without positions",
    "gpt2",
]
CHECKS: list[Any] = [check_tree_rows, check_tree_paths, check_tree_neighbours]


@pytest.mark.thorough("smollm3", "gpt2", "gemma2")
@pytest.mark.parametrize("name", NAMES)
def test_a_strict_nodes_row_is_its_paths_bit_for_bit(name: str) -> None:
    model = TorchModel.from_transformers(tiny(name), strict=True)
    for check in CHECKS:
        check(model, 12, 0.0)
    check_trees_fit_by_their_depth(model, 0.0)


@pytest.mark.thorough("gpt2", "smollm3", "gpt_oss")
@pytest.mark.parametrize("name", [*NAMES, "gpt_oss, sinks and experts", "deepseek_v3, latent attention and experts"])
def test_padded_groups_see_what_segments_see(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An accelerator's attention, on the CPU."""
    model = TorchModel.from_transformers(tiny(name))
    monkeypatch.setattr(model, "_attention", lambda segments: PaddedGroups(segments, model._shapes, model.device))
    for check in CHECKS:
        check(model, 12, 2e-4)
    check_trees_fit_by_their_depth(model, 2e-4)


@pytest.mark.thorough(but=("3-",))
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("most", [1, 3, 5])
def test_trees_are_cut_into_passes(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = TorchModel.from_transformers(tiny(name))
    monkeypatch.setattr(model_module, "MAX_ROWS", most)
    for check in CHECKS:
        check(model, 12, 2e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_trees_on_a_device(name: str) -> None:
    model = TorchModel.from_transformers(tiny(name).to("cuda"))
    for check in CHECKS:
        check(model, 12, 1e-3)


def test_a_failed_pass_leaves_the_tree_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path can still be kept after a pass that was interrupted, and moves nothing but its own slot's rows."""
    model = TorchModel.from_transformers(tiny("llama"))
    tokens, other = text(model, 10), text(model, 10, 1)
    for key in (0, 1):
        model.begin(key)
    model.forward([Span(0, 0, [*tokens[:6], 1, tokens[6]], 1, (-1, 0, 1, 2, 3, 4, 5, 5)), Span(1, 0, other, 1)])
    with monkeypatch.context() as patch:
        patch.setattr(model, "_run", lambda one, logits: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            model.forward([Span(1, 10, [1, 2], 1, (-1, -1))])
    model.keep(0, 6, (7,))
    rows = [model.forward([Span(0, 7, tokens[7:], 3)]).matrix, model.forward([Span(1, 10, [3], 1)]).matrix]
    np.testing.assert_allclose(rows[0], reference(model, tokens)[7:], atol=2e-4)
    np.testing.assert_allclose(rows[1], reference(model, [*other, 3])[-1:], atol=2e-4)
