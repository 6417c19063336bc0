"""The real policy in a world made of numbers: fast, the same every time, and with the truth known.

Costs and acceptances are functions, so the best that any fixed length could do is computed instead of measured. Nothing
is decoded and no clock is read: a thousand rounds of one sequence take a second or two.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from forerun.control.policy import Load, Policy
from forerun.sampling import SamplingParams
from forerun.topology import chain, children, first_path
from forerun.types import Plan, Prospect, Round, Step

Acceptances = Callable[[int, int, int], float]
"""(round, sequence, depth from 0) -> probability that a draft token is accepted, given that it is examined."""


@dataclass(frozen=True, slots=True)
class Source:
    """A source of drafts in a world. With `uses_model` every token costs a pass of the draft model. `informed` in
    [0, 1): how far the draft model knows which of its tokens will be accepted; 0 gives no confidences at all. `sibling`
    is how likely a further child is to be accepted where those before it were not; None for a source without trees.
    `when_cut` is the acceptance while the draft model has seen the latest part of the text alone, if another one."""

    name: str
    acceptance: Acceptances
    uses_model: bool = True
    longest: int = 64
    informed: float = 0.0
    sibling: float | None = None
    when_cut: Acceptances | None = None


@dataclass(frozen=True, slots=True)
class World:
    """Milliseconds of passes by rows, at `speed(round)` times the measured speed; `noise` is the standard deviation of
    their logarithm, and one pass in `stall_every` takes ten times as long. `host_ms` is added to every round."""

    target_ms: Callable[[float], float]
    draft_ms: Callable[[float], float]
    sources: Sequence[Source]
    num_sequences: int = 1
    host_ms: float = 0.0
    speed: Callable[[int], float] = lambda number: 1.0
    noise: float = 0.0
    stall_every: int = 0
    num_prompt: int = 32


@dataclass
class Simulated:
    """What came of it, round by round: tokens, milliseconds, and the draft tokens of all sequences. `expected_tokens`
    and `usual_ms` are what the same drafts bring and take on average: from the truth, without noise or stalls."""

    tokens: list[int] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)
    num_drafted: list[int] = field(default_factory=list)
    expected_tokens: list[float] = field(default_factory=list)
    usual_ms: list[float] = field(default_factory=list)

    def rate(self, start: int = 0, end: int | None = None) -> float:
        """Tokens per millisecond of rounds `start` .. `end`."""
        return sum(self.tokens[start:end]) / sum(self.milliseconds[start:end])

    def expected_rate(self, start: int = 0, end: int | None = None) -> float:
        """Tokens per millisecond that the choices of rounds `start` .. `end` make on average: the policy's merit
        without the luck of its tokens."""
        return sum(self.expected_tokens[start:end]) / sum(self.usual_ms[start:end])


@dataclass
class _Drafted:
    """What was drafted in a round, and what came of it."""

    rounds: list[Round]
    milliseconds: float
    usual_ms: float
    num_tokens: int
    expected_tokens: float


@dataclass
class _Noise:
    kind: Literal["sampled", "deterministic"] = "sampled"


@dataclass
class _Sequence:
    """A sequence as policies see it."""

    sequence_id: int
    prompt_length: int
    num_tokens: int
    params: SamplingParams
    vocabulary_size: int = 1000
    num_missing: int = 1
    num_read: int = 0  # the draft model has read up to this place
    num_cut: int = 0  # from this one on
    noise: _Noise = field(default_factory=_Noise)

    @property
    def tokens(self) -> range:
        return range(self.num_tokens)

    def begin_at(self, place: int) -> None:
        """Have the draft model forget what it has read, and read from this token on."""
        self.num_read = self.num_cut = place


def simulate(policy: Policy, world: World, num_rounds: int, seed: int = 0) -> Simulated:
    """Run `num_rounds` rounds of the policy in the world; the same for the same arguments.

    A policy that is to be told of the draft model's passes has a method `meter`, as `AdaptiveLength` does.
    """
    chance = random.Random(seed)
    params = SamplingParams(max_tokens=10**9)
    sequences = [_Sequence(i, world.num_prompt, world.num_prompt + 1, params) for i in range(world.num_sequences)]
    out = Simulated()
    for number in range(num_rounds):
        prospects = [_prospects(world, sequence) for sequence in sequences]
        plans = policy.plan(sequences, prospects, Load(len(sequences), 0, len(sequences)))  # type: ignore[arg-type]
        drafted = _draft_and_verify(policy, world, sequences, plans, number, chance)
        num_rows = len(sequences) + drafted.num_tokens
        target_ms = _taken(world, world.target_ms(num_rows), number, chance)
        step = Step(
            num_sequences=len(sequences),
            num_tokens=num_rows,
            num_rows=num_rows,
            num_cached=sum(sequence.num_tokens for sequence in sequences),
            draft_s=drafted.milliseconds / 1e3,
            target_s=target_ms / 1e3,
            verify_s=0.0,
            host_s=world.host_ms / 1e3,
        )
        for sequence, done in zip(sequences, drafted.rounds, strict=True):
            sequence.num_tokens += done.num_emitted
        policy.update(drafted.rounds, step)
        out.tokens.append(sum(done.num_emitted for done in drafted.rounds))
        out.milliseconds.append(drafted.milliseconds + target_ms + world.host_ms)
        out.num_drafted.append(drafted.num_tokens)
        out.expected_tokens.append(drafted.expected_tokens)
        out.usual_ms.append(drafted.usual_ms + world.target_ms(num_rows) * world.speed(number) + world.host_ms)
    return out


def best_rate(world: World, number: int, lengths: Sequence[int] = range(33)) -> tuple[float, int, str]:
    """(tokens per millisecond, k, source) of the best fixed choice for all sequences in a round, from the truth."""
    best = (0.0, 0, "")
    for source in world.sources:
        for k in lengths:
            if k > source.longest:
                continue
            rate = fixed_rate(world, source, k, number)
            if rate > best[0]:
                best = (rate, k, source.name if k else "")
    return best


def fixed_rate(world: World, source: Source, k: int, number: int) -> float:
    """Expected tokens per millisecond where every sequence drafts k tokens from `source`."""
    count = world.num_sequences
    tokens = 0.0
    for sequence in range(count):
        reached = 1.0
        for depth in range(k):
            reached *= source.acceptance(number, sequence, depth)
            tokens += reached
    drafts_ms = k * world.draft_ms(count) if source.uses_model else 0.0
    total_ms = (world.target_ms(count * (k + 1)) + drafts_ms) * world.speed(number) + world.host_ms
    return (count + tokens) / total_ms


def _prospects(world: World, sequence: _Sequence) -> list[Prospect]:
    found = []
    for source in world.sources:
        if source.uses_model:
            num_unread = sequence.num_tokens - 1 - sequence.num_read
            trees = source.sibling is not None
            found.append(
                Prospect(
                    source.name, source.longest, num_unread=max(num_unread, 0), num_cut=sequence.num_cut, trees=trees
                )
            )
        else:
            found.append(Prospect(source.name, source.longest, num_free=source.longest))
    return found


def _draft_and_verify(
    policy: Policy,
    world: World,
    sequences: Sequence[_Sequence],
    plans: Sequence[Plan],
    number: int,
    chance: random.Random,
) -> _Drafted:
    by_name = {source.name: source for source in world.sources}
    fates: list[list[tuple[bool, float]]] = []  # of each draft: (accepted if examined, its probability) by depth
    passes: dict[int, int] = {}  # tokens that the draft model is fed in its pass number i
    for place, (sequence, plan) in enumerate(zip(sequences, plans, strict=True)):
        source = by_name.get(plan.source or "")
        fate: list[tuple[bool, float]] = []
        if source is not None and source.uses_model and (plan.read or plan.shape):
            if plan.whole:
                sequence.begin_at(0)
            latest = sequence.num_tokens - 1 - (plan.most_unread or 0)
            if plan.most_unread is not None and sequence.num_read < latest:
                sequence.begin_at(latest)
            num_unread = sequence.num_tokens - 1 - sequence.num_read
            num_fed = min(plan.read or num_unread, num_unread)
            passes[0] = passes.get(0, 0) + num_fed
            sequence.num_read = sequence.num_read + num_fed if plan.read else sequence.num_tokens
        while source is not None and len(fate) < min(len(_widths(plan)), source.longest):
            if source.uses_model:
                passes[len(fate)] = passes.get(len(fate), 0) + 1
            fate.append(_drawn(source, number, place, len(fate), chance, is_cut=sequence.num_cut > 0))
            if source.informed and plan.gate is not None and not plan.gate([sure for _, sure in fate]):
                break
        fates.append(fate)
    drafts_ms = usual_ms = 0.0
    for _, num_fed in sorted(passes.items()):
        pass_ms = _taken(world, world.draft_ms(num_fed), number, chance)
        drafts_ms += pass_ms
        usual_ms += world.draft_ms(num_fed) * world.speed(number)
        meter = getattr(policy, "meter", None)
        if meter is not None:
            meter(num_fed, float(sequences[0].num_tokens), pass_ms)
    rounds = []
    for sequence, plan, fate in zip(sequences, plans, fates, strict=True):
        source = by_name.get(plan.source or "")
        rounds.append(_round(sequence.sequence_id, plan, source, fate, chance))
        accepted = rounds[-1].num_accepted
        if source is not None and source.uses_model and plan.shape:
            sequence.num_read += min(accepted, max(len(fate) - 1, 0))  # the last draft token was never fed
    expected = sum(
        _expected(_widths(plan), by_name.get(plan.source or ""), fate) for plan, fate in zip(plans, fates, strict=True)
    )
    return _Drafted(rounds, drafts_ms, usual_ms, sum(done.num_proposed for done in rounds), expected)


def _widths(plan: Plan) -> list[int]:
    """Children of each node on the path of first children; other nodes have none here."""
    tree = chain(plan.shape) if plan.tree is None else plan.tree
    behind = children(tree)
    return [len(behind[node + 1]) for node in (-1, *first_path(tree)) if behind[node + 1]]


def _round(
    sequence_id: int, plan: Plan, source: Source | None, fate: Sequence[tuple[bool, float]], chance: random.Random
) -> Round:
    """What became of a draft: first children up to the first that is rejected, and one of its siblings if it holds."""
    widths = _widths(plan)[: len(fate)]
    accepted = next((depth for depth, (holds, _) in enumerate(fate) if not holds), len(fate))
    ranks = [0] * accepted
    if accepted < len(fate) and source is not None and source.sibling is not None:
        holding = (rank for rank in range(1, widths[accepted]) if chance.random() < source.sibling)
        ranks += [rank for rank in (next(holding, 0),) if rank]
    sure = tuple(found for _, found in fate) if source is not None and source.informed else ()
    return Round(
        sequence_id,
        num_proposed=sum(widths),
        num_accepted=len(ranks),
        num_emitted=len(ranks) + 1,
        source=plan.source or "",
        confidences=sure,
        ranks=tuple(ranks),
        widths=tuple(widths[: accepted + 1]),
        depth=len(fate),
    )


def _expected(widths: Sequence[int], source: Source | None, fate: Sequence[tuple[bool, float]]) -> float:
    """Tokens that a round with this draft makes on average."""
    total = reached = 1.0
    missing = 1.0 - (source.sibling or 0.0 if source is not None else 0.0)
    for width, (_, own) in zip(widths, fate, strict=False):
        total += reached * (own + (1.0 - own) * (1.0 - missing ** (width - 1)))
        reached *= own
    return total


def _drawn(
    source: Source, number: int, sequence: int, depth: int, chance: random.Random, *, is_cut: bool
) -> tuple[bool, float]:
    """Whether a token will be accepted, and how sure the draft model is of it. Its own probability varies around the
    acceptance, the more the better informed it is (a beta distribution with that mean)."""
    chances = source.when_cut if is_cut and source.when_cut is not None else source.acceptance
    mean = chances(number, sequence, depth)
    if source.informed == 0.0 or not 0.0 < mean < 1.0:
        return chance.random() < mean, mean
    weight = 1.0 / source.informed - 1.0
    own = chance.betavariate(mean * weight, (1.0 - mean) * weight)
    return chance.random() < own, own


def _taken(world: World, milliseconds: float, number: int, chance: random.Random) -> float:
    found = milliseconds * world.speed(number)
    if world.noise:
        found *= math.exp(chance.gauss(0.0, world.noise))
    if world.stall_every and chance.randrange(world.stall_every) == 0:
        found *= 10.0
    return found
