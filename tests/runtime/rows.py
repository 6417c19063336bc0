"""Rows of logits of one text: a NativeModel's, and transformers' own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tests.runtime.contract import feed

from forerun.runtime.native import NativeModel


def rows_of(model: NativeModel, tokens: list[int]) -> np.ndarray:
    """[tokens, vocabulary] float32; the model is as it was afterwards."""
    model.begin(0)
    try:
        return feed(model, 0, tokens)
    finally:
        model.free(0)


def rows_of_transformers(module: Any, tokens: list[int]) -> np.ndarray:
    """[tokens, vocabulary] float32."""
    with torch.no_grad():
        return module(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float().numpy()
