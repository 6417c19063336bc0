"""How far rows of logits are from a reference: the three figures that every comparison of a runtime reports."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Closeness:
    """Of rows [rows, vocab] against a reference. `kl`: mean Kullback-Leibler divergence in nats; `largest`: largest
    difference of a logit, and `rms` the root mean square one, both as a share of the reference's standard deviation;
    `top_1`: share of rows with the same likeliest token."""

    kl: float
    largest: float
    rms: float
    top_1: float

    @classmethod
    def of(cls, found: np.ndarray, reference: np.ndarray) -> Closeness:
        assert found.shape == reference.shape
        found, reference = found.astype(np.float64), reference.astype(np.float64)
        p, q = log_softmax(reference), log_softmax(found)
        error, spread = np.abs(found - reference), reference.std()
        return cls(
            kl=float((np.exp(p) * (p - q)).sum(-1).mean()),
            largest=float(error.max() / spread),
            rms=float(np.sqrt((error**2).mean()) / spread),
            top_1=float((found.argmax(-1) == reference.argmax(-1)).mean()),
        )

    def check(self, *, kl: float, largest: float, rms: float, top_1: float) -> None:
        """Fail if any figure is worse than the bound."""
        bad = not (self.kl <= kl and self.largest <= largest and self.rms <= rms and self.top_1 >= top_1)
        assert not bad, f"{self} is worse than kl={kl}, largest={largest}, rms={rms}, top_1={top_1}"


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted: np.ndarray = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
