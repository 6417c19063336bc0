"""Tools of the ladder's first level: exact laws through the real engine, and what they must equal.

`reference_probs` is a second, plain-Python statement of the sampling order; it shares no code with the package.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from hypothesis import strategies as st

from forerun.control import FixedLength
from forerun.drafting import Drafter, ModelDrafter
from forerun.engine import Engine
from forerun.randomness import Drawn, Purpose, inverse_cdf, without_replacement
from forerun.runtime.cut import CutHead
from forerun.runtime.toy import ToyModel, joint_law
from forerun.sampling import Distribution, SamplingParams
from forerun.types import Plan, Round
from forerun.verification.enumerate import Chooser, enumerating, outcomes

TOLERANCE = 1e-12
Text = tuple[int, ...]
Law = Mapping[Any, float]


def reference_probs(
    logits: Sequence[float], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> list[float]:
    """Processed probabilities of one row, from the definitions: temperature, top-k, top-p, min-p, in this order."""
    largest = max(logits)
    if temperature == 0:
        best = list(logits).index(largest)
        return [1.0 if i == best else 0.0 for i in range(len(logits))]
    weights = [math.exp((logit - largest) / temperature) for logit in logits]
    if top_k > 0:
        smallest_kept = sorted(logits, reverse=True)[min(top_k, len(logits)) - 1]
        weights = [w if logit >= smallest_kept else 0.0 for w, logit in zip(weights, logits, strict=True)]
    probs = normalised(weights)
    likely_first = sorted(range(len(probs)), key=lambda i: (-probs[i], i))
    for place, i in enumerate(likely_first):
        if place and top_p < 1.0 and math.fsum(probs[j] for j in likely_first[:place]) >= top_p:
            weights[i] = 0.0
    probs = normalised(weights)
    return normalised([p if p >= min_p * max(probs) else 0.0 for p in probs])


def normalised(weights: Sequence[float]) -> list[float]:
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def to_logits(weights: Any) -> np.ndarray:
    """Logits whose softmax is proportional to the weights; weight 0 is minus infinity."""
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(weights, dtype=np.float64))


def model(weights: Any) -> ToyModel:
    """A table model from weights [vocab] * order + [vocab]."""
    return ToyModel.from_table(to_logits(weights))


def target_law(weights: Any, prompt: Sequence[int], num_tokens: int, **params: Any) -> dict[Text, float]:
    """The law that plain sampling from the target has, by the chain rule on the reference's rows."""
    logits, order = to_logits(weights), np.ndim(weights) - 1

    def next_probs(tokens: Text) -> np.ndarray:
        last = ((0,) * order + tokens)[len(tokens) :] if order else ()
        return np.asarray(reference_probs(logits[last].tolist(), **params))

    return joint_law(next_probs, prompt, num_tokens)


def product_law(*laws: Mapping[Text, float]) -> dict[tuple[Text, ...], float]:
    """The joint law of independent texts."""
    return {
        tuple(texts): math.prod(law[text] for law, text in zip(laws, texts, strict=True)) for texts in product(*laws)
    }


Request = tuple[Sequence[int], Mapping[str, Any]]
"""(prompt, sampling parameters)"""


def finish(engine: Engine, max_steps: int = 1_000) -> None:
    """Step until idle; an engine that stands still fails instead of hanging."""
    for _ in range(max_steps):
        if engine.is_idle:
            return
        engine.step()
    raise AssertionError(f"not idle after {max_steps} steps")


class FixedTopology:
    """The same tree every round, with a gate if one is given; none while a prompt is being read."""

    def __init__(self, parents: tuple[int, ...], gate: Any = None) -> None:
        self.parents, self.gate, self.rounds = parents, gate, list[Round]()

    def plan(self, sequences: Any, prospects: Any, load: Any) -> list[Plan]:
        plan = Plan(len(self.parents), tree=self.parents, gate=self.gate)
        return [plan if sequence.num_missing == 1 else Plan() for sequence in sequences]

    def update(self, rounds: Any, step: Any) -> None:
        self.rounds += rounds

    def release(self, *sequence_ids: int) -> None:
        pass


def policy_of(k: int | tuple[int, ...]) -> Any:
    """The policy of a speculation length, or of a tree's parents."""
    return FixedLength(k) if isinstance(k, int) else FixedTopology(k)


def engine_law(
    target: Any,
    make_drafter: Callable[[], Drafter],
    k: int | tuple[int, ...],
    requests: Sequence[Request],
    *,
    kind: Any = "sampled",
    wrap_noise: Callable[[Any], Any] = lambda factory: factory,
    make_policy: Callable[[Any], Any] = policy_of,
    on_end: Callable[[Engine, list[Any]], None] = lambda engine, sequences: None,
    **settings: Any,
) -> dict[Any, float]:
    """The exact law of the texts that the real engine commits to `requests`, all in one batch.

    One request gives a law of texts, several a law of tuples of texts. `target` is a table of weights; `k` may be the
    parents of a tree.
    """

    def run(chooser: Chooser) -> Any:
        policy = make_policy(k)
        factory = wrap_noise(enumerating(chooser, kind))
        engine = Engine(model(target), make_drafter(), policy, make_noise=factory, **settings)
        sequences = [engine.add(prompt, SamplingParams(**params)) for prompt, params in requests]
        finish(engine)
        on_end(engine, sequences)
        texts = tuple(tuple(sequence.tokens[sequence.prompt_length :]) for sequence in sequences)
        return texts if len(texts) > 1 else texts[0]

    return outcomes(run)


def draft_with(weights: Any, **settings: Any) -> Callable[[], Drafter]:
    """A maker of model drafters on a table of weights. They draft at once, so that a short text has several rounds
    with a draft."""
    return lambda: ModelDrafter(model(weights), **{"start_after": 0, **settings})


def windowed_drafter(weights: Any, window: int, **settings: Any) -> Drafter:
    """A drafter of this window whose model's rows depend on every token it has cached, and on how many those are: a
    cache that began anew gives other rows."""
    logits = to_logits(weights)
    draft = ToyModel(lambda tokens: logits[(sum(tokens) + len(tokens)) % len(logits)], len(logits))
    return ModelDrafter(draft, window, **{"start_after": 0, **settings})


def cut_drafter(weights: Any, dropped: Collection[int], **settings: Any) -> Drafter:
    """A drafter whose model has no head for the tokens `dropped`."""
    kept = [token for token in range(np.shape(weights)[-1]) if token not in dropped]
    return ModelDrafter(CutHead(model(weights), kept), **{"start_after": 0, **settings})


def violations(law: Law, expected: Law, tolerance: float = TOLERANCE) -> list[str]:
    """Why `law` is not `expected`: a probability that differs, mass on something impossible, a total that is not 1."""
    found = [
        f"{outcome}: {law.get(outcome, 0.0):.15g} instead of {expected.get(outcome, 0.0):.15g}"
        for outcome in {*law, *expected}
        if abs(law.get(outcome, 0.0) - expected.get(outcome, 0.0)) > tolerance
    ]
    found += [f"{outcome} is impossible and happens" for outcome in law if expected.get(outcome, 0.0) == 0.0]
    total = math.fsum(law.values())
    return found + ([f"the law sums to {total:.15g}"] if abs(total - 1.0) > tolerance else [])


def total_variation(law: Law, expected: Law) -> float:
    return 0.5 * math.fsum(abs(law.get(o, 0.0) - expected.get(o, 0.0)) for o in {*law, *expected})


class SharedNoise:
    """Seeded mode with its noise enumerated: one of `num` equal numbers for each position, whoever asks for it."""

    kind = "deterministic"

    def __init__(self, chooser: Chooser, numbers: dict[int, float], committed: int, num: int) -> None:
        self.chooser, self.numbers, self.committed, self.num = chooser, numbers, committed, num

    def accept(self, probability: float, node: int) -> bool:
        raise AssertionError("seeded drafts are followed, not accepted by chance")

    def draw(self, distribution: Distribution, node: int, purpose: Purpose) -> int:
        position = self.committed + node
        if position not in self.numbers:
            self.numbers[position] = (self.chooser.choose([1.0] * self.num) + 0.5) / self.num
        return inverse_cdf(distribution.probs, self.numbers[position])

    def draw_children(self, distribution: Distribution, nodes: Sequence[int], depth: int) -> list[Drawn]:
        return without_replacement(distribution, nodes, lambda left, _: self.draw(left, depth, Purpose.DRAFT))


def shared_noise(chooser: Chooser, num: int) -> Callable[[Any, int, int, int], Any]:
    """An engine's `make_noise` for one sequence in seeded mode, of `num` equal numbers a position."""
    numbers: dict[int, float] = {}
    return lambda params, seed, choice, committed: SharedNoise(chooser, numbers, committed, num)


# -- Hypothesis: rows and tables with zeros, equal rows and disjoint supports ------------------------------------------


def rows(size: int) -> st.SearchStrategy[list[int]]:
    """Weights of one row: small whole numbers, zeros included, not all zero."""
    return st.lists(st.integers(0, 5), min_size=size, max_size=size).filter(any)


def tables(size: int, order: int = 1) -> st.SearchStrategy[Any]:
    """A table of weights [size] * order + [size]."""
    strategy: st.SearchStrategy[Any] = rows(size)
    for _ in range(order):
        strategy = st.lists(strategy, min_size=size, max_size=size)
    return strategy


def quarters(size: int) -> st.SearchStrategy[Any]:
    """A table of rows that sum to 4."""
    row = st.lists(st.integers(0, size - 1), min_size=4, max_size=4).map(lambda ids: np.bincount(ids, minlength=size))
    return st.lists(row, min_size=size, max_size=size).map(np.array)


@st.composite
def pairs(draw: Any, size: int, order: int = 1) -> tuple[Any, Any]:
    """(target table, draft table): unrelated, equal, or without a common token in any row."""
    target = np.array(draw(tables(size, order)))
    relation = draw(st.sampled_from(["unrelated", "unrelated", "equal", "disjoint"]))
    if relation == "equal":
        draft = target.copy()
    else:
        draft = np.array(draw(tables(size, order)))
    if relation == "disjoint":
        cut = draw(st.integers(1, size - 1))
        target[..., cut:], draft[..., :cut] = 0, 0
        target[target.sum(-1) == 0, 0] = 1
        draft[draft.sum(-1) == 0, cut] = 1
    return target.tolist(), draft.tolist()
