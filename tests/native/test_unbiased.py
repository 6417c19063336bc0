"""What products lose to rounding pulls in no direction: errors of one sign would add up from layer to layer."""

from __future__ import annotations

import numpy as np
import pytest

from .tools_matrices import QUANTISED, dequantise, pack, random_stored


@pytest.mark.parametrize("name", QUANTISED)
def test_errors_have_no_mean(name: str) -> None:
    rng, num_rows = np.random.default_rng(25), 2000
    stored = random_stored(rng, name, 16, 512)
    x = rng.standard_normal((num_rows, 512)).astype(np.float32)
    x.reshape(num_rows, 2, 256)[:, :, :32] = 0
    x[:, ::256] = 500  # exact, and beside it the other groups take steps of another size
    exact = x.astype(np.float64) @ dequantise(name, stored).astype(np.float64).T
    errors = pack(name, stored, 512).multiply(x) - exact
    assert np.abs(errors.mean(0) / errors.std(0)).max() < 4.5 / np.sqrt(num_rows)
