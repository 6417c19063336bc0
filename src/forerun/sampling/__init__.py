"""Sampling parameters, and the processed probabilities they turn a row of logits into.

`params.py` says what can be asked for, `processing.py` applies it row by row in the order the design fixes, and
`distribution.py` is a row that does nothing until it is looked at.
"""

from forerun.sampling.distribution import Distribution
from forerun.sampling.filters import processed_probs
from forerun.sampling.logprobs import raw_logprob, token_logprob
from forerun.sampling.params import GREEDY_BELOW, NOT_BUILT, SamplingParams
from forerun.sampling.processing import Processing
from forerun.sampling.processors import Processor, StatefulProcessor

__all__ = [
    "GREEDY_BELOW",
    "NOT_BUILT",
    "Distribution",
    "Processing",
    "Processor",
    "SamplingParams",
    "StatefulProcessor",
    "processed_probs",
    "raw_logprob",
    "token_logprob",
]
