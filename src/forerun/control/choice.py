"""The best way to spend a round: which source drafts how much for which sequence, so that tokens per second are most.

A round commits N tokens in T milliseconds: N = one for each sequence that decodes, plus the values of all draft tokens;
T = the target's pass over all rows, one pass of the draft model for each depth that any sequence goes to, and the
host's part. Sequences share both, so that a row which is free for one (the curve is flat there) is dear beside sixty
others. Nothing is assumed of the curves but that they were measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

LONGEST_ROUND = 3.5
"""Plain rounds that a round may take, on average: longer ones would be a stall to whoever reads along or waits. Where
no draft ends early it takes more, and five are what C32 (cases.md) allows."""
PATIENCE = 3
"""Passes of the draft model in a row that make a round worse before no more are thought of."""


@dataclass(frozen=True, slots=True)
class Option:
    """One source's draft for one sequence, as long as it could be. Token i adds `value[i]` tokens to the round and is
    drafted with probability `drafted[i]`; from token `num_free` on each is one pass of the draft model. `charge_ms` is
    this round's part of what has to be read first."""

    value: Sequence[float]
    drafted: Sequence[float]
    num_free: int = 0
    charge_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Prices:
    """Milliseconds. `target_ms(rows)` and `draft_ms(sequences)`: passes of that many rows; `step_ms`, `row_ms` and
    `token_ms`: the host's part of a round, of every row that is verified and of every token that is drafted."""

    target_ms: Callable[[float], float]
    draft_ms: Callable[[float], float]
    step_ms: float = 0.0
    row_ms: float = 0.0
    token_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """`taken[i]` is (option, number of tokens) of sequence i, None where it drafts nothing. `num_tokens` are expected
    in `milliseconds`."""

    taken: tuple[tuple[int, int] | None, ...]
    num_tokens: float
    milliseconds: float

    @property
    def rate(self) -> float:
        """Tokens per millisecond."""
        return self.num_tokens / self.milliseconds


@dataclass(slots=True)
class _Growing:
    """A round to which draft tokens are added one by one."""

    prices: Prices
    num_rows: float
    num_tokens: float
    sequences_at: list[float] = field(default_factory=list)  # by pass of the draft model
    drafts_ms: float = 0.0
    more_ms: float = 0.0
    lengths: dict[int, int] = field(default_factory=dict)

    def milliseconds(self) -> float:
        host_ms = self.prices.step_ms + self.prices.row_ms * self.num_rows
        return self.prices.target_ms(self.num_rows) + host_ms + self.drafts_ms + self.more_ms

    def own_ms(self, option: Option, depth: int) -> float:
        """What a token adds if the passes it is drafted in take place anyway."""
        drafted = option.drafted[depth]
        rows_ms = self.prices.target_ms(self.num_rows + drafted) - self.prices.target_ms(self.num_rows)
        own_ms = rows_ms + drafted * (self.prices.row_ms + self.prices.token_ms)
        number = depth - option.num_free
        if 0 <= number < len(self.sequences_at) and self.sequences_at[number] >= 1.0:
            before = self.sequences_at[number]
            own_ms += self.prices.draft_ms(before + drafted) - self.prices.draft_ms(before)
        return own_ms

    def add(self, sequence: int, option: Option, depth: int) -> None:
        drafted = option.drafted[depth]
        self.num_rows += drafted
        self.num_tokens += option.value[depth]
        self.lengths[sequence] = depth + 1
        number = depth - option.num_free
        if number < 0:
            return
        if number == 0:
            self.more_ms += option.charge_ms
        self.more_ms += drafted * self.prices.token_ms
        while len(self.sequences_at) <= number:
            self.sequences_at.append(0.0)
        before = self.prices.draft_ms(self.sequences_at[number])
        self.sequences_at[number] += drafted
        self.drafts_ms += self.prices.draft_ms(self.sequences_at[number]) - before


def choose(
    options: Sequence[Sequence[Option]], prices: Prices, num_rows: float, num_decoding: int, max_rows: int
) -> Choice:
    """The round with the most tokens per millisecond that was found.

    `options[i]` are sequence i's; the pass has `num_rows` rows and `num_decoding` tokens without any draft, and at most
    `max_rows` rows may be added. Who drafts from where is settled first, by what each option earns at the price that
    time has (Dinkelbach's method for ratios: a millisecond is worth the tokens that the best round so far makes of it);
    then rounds grow token by token and pass by pass, each priced exactly, and the best is kept.
    """
    start = _Growing(prices, num_rows, float(num_decoding))
    none = tuple[tuple[int, int] | None, ...]([None] * len(options))
    best = Choice(none, start.num_tokens, start.milliseconds())
    if not any(options):
        return best
    tried: list[list[int | None]] = [[None] * len(options)]

    def try_out(best: Choice, assignment: list[int | None], again: bool = False) -> Choice:
        if assignment in tried and not again:
            return best
        tried.append(assignment)
        found = _grown(options, assignment, prices, num_rows, num_decoding, max_rows, best.rate)
        return found if found.rate > best.rate else best

    if len(options) == 1:
        for number in range(len(options[0])):
            best = try_out(best, [number])
        return best
    for only_free in (True, False):
        best = try_out(best, [_most_valuable(of_one, only_free) for of_one in options])
    num_riders = len(options)
    for _ in range(3):
        best = try_out(best, _earning_most(options, prices, best, num_rows, num_riders))
        num_riders = sum(_is_riding(of_one, taken) for of_one, taken in zip(options, best.taken, strict=True)) or 1
    # Once more with who is left: time is worth more now than when the round was grown.
    return try_out(best, [None if taken is None else taken[0] for taken in best.taken], again=True)


def _is_riding(options: Sequence[Option], taken: tuple[int, int] | None) -> bool:
    """Whether a draft needs the draft model."""
    return taken is not None and taken[1] > options[taken[0]].num_free


def _most_valuable(options: Sequence[Option], only_free: bool) -> int | None:
    """The option that adds the most tokens at any cost, or before it needs a pass of the draft model."""
    found = [i for i, option in enumerate(options) if option.num_free or not only_free]
    return max(found, key=lambda i: sum(options[i].value[: options[i].num_free if only_free else None]), default=None)


def _earning_most(
    options: Sequence[Sequence[Option]], prices: Prices, best: Choice, num_rows: float, num_riders: int
) -> list[int | None]:
    """For each sequence the option that earns most where a millisecond costs what the best round makes of it, and
    passes of the draft model are paid for by `num_riders` sequences."""
    rate = best.rate
    num_added = sum(length for taken in best.taken if taken for length in (taken[1],))
    rows = num_rows + num_added
    row_ms = max(prices.target_ms(rows + len(options)) - prices.target_ms(rows), 0.0) / len(options) + prices.row_ms
    pass_ms = prices.draft_ms(float(num_riders)) / num_riders + prices.token_ms

    def earns(option: Option) -> float:
        earned = most = 0.0
        for depth, (value, drafted) in enumerate(zip(option.value, option.drafted, strict=True)):
            if depth == option.num_free:
                earned -= rate * option.charge_ms
            earned += value - rate * drafted * (row_ms + (pass_ms if depth >= option.num_free else 0.0))
            if earned > most:
                most = earned
        return most

    found: list[int | None] = []
    for of_one in options:
        earnings = [earns(option) for option in of_one]
        place = max(range(len(of_one)), key=earnings.__getitem__, default=None)
        found.append(place if place is not None and earnings[place] > 0.0 else None)
    return found


def _grown(
    options: Sequence[Sequence[Option]],
    assignment: Sequence[int | None],
    prices: Prices,
    num_rows: float,
    num_decoding: int,
    max_rows: int,
    rate: float,
) -> Choice:
    """The best round in which each sequence drafts from its assigned option or not at all.

    Tokens that cost no pass come first, the likeliest of them before others. Then the draft model's passes, one by one:
    who rides in a pass that takes place anyway pays for a row, so everybody does whose token is worth that at `rate`,
    and the best number of passes is kept.
    """
    growing = _Growing(prices, num_rows, float(num_decoding))
    best = (growing.num_tokens, growing.milliseconds(), dict[int, int]())
    open_ones = {i: options[i][place] for i, place in enumerate(assignment) if place is not None}
    longest_ms = LONGEST_ROUND * growing.milliseconds()

    def keep_if_better() -> bool:
        nonlocal best
        now = growing.milliseconds()
        is_better = now <= longest_ms and growing.num_tokens * best[1] > best[0] * now
        if is_better:
            best = (growing.num_tokens, now, dict(growing.lengths))
        return is_better

    for sequence, depth in _free_tokens(open_ones):
        if growing.num_rows - num_rows >= max_rows:
            break
        growing.add(sequence, open_ones[sequence], depth)
        keep_if_better()
    # Free tokens that did not pay are not what a draft model's follow on.
    growing = _Growing(prices, num_rows, float(num_decoding))
    for sequence, option in open_ones.items():
        for depth in range(min(option.num_free, best[2].get(sequence, 0))):
            growing.add(sequence, option, depth)
    open_ones = {
        i: option for i, option in open_ones.items()
        if option.num_free < len(option.value) and growing.lengths.get(i, 0) == option.num_free
    }  # fmt: skip
    for sequence, option in list(open_ones.items()):
        if option.charge_ms > 0.0 and not _earns_charge(growing, option, rate):
            del open_ones[sequence]  # or it would spoil the passes of the others
    number = num_worse = 0
    while open_ones and num_worse < PATIENCE:
        order = sorted(open_ones, key=lambda i: -open_ones[i].value[open_ones[i].num_free + number])
        for sequence in order:
            option = open_ones[sequence]
            depth = option.num_free + number
            is_full = growing.num_rows - num_rows >= max_rows
            if is_full or option.value[depth] < rate * growing.own_ms(option, depth):
                del open_ones[sequence]
                continue
            growing.add(sequence, option, depth)
            if depth + 1 == len(option.value):
                del open_ones[sequence]
        num_worse = 0 if keep_if_better() else num_worse + 1
        number += 1
    lengths = best[2]
    taken = tuple(
        (place, lengths[sequence]) if place is not None and sequence in lengths else None
        for sequence, place in enumerate(assignment)
    )
    return Choice(taken, best[0], best[1])


def _earns_charge(growing: _Growing, option: Option, rate: float) -> bool:
    """Whether what has to be read first can pay, if all passes take place anyway."""
    earned = 0.0
    for depth in range(option.num_free, len(option.value)):
        earned += max(option.value[depth] - rate * growing.own_ms(option, depth), 0.0)
    return earned >= rate * option.charge_ms


def _free_tokens(options: Mapping[int, Option]) -> list[tuple[int, int]]:
    """(sequence, depth) of the tokens that cost no pass of a draft model, the likeliest first; none before the ones
    that it follows."""
    found: list[tuple[float, int, int]] = []
    for sequence, option in options.items():
        earns = 1.0
        for depth in range(min(option.num_free, len(option.value))):
            earns = min(earns, option.value[depth] / max(option.drafted[depth], 1e-9))
            found.append((-earns, depth, sequence))
    return [(sequence, depth) for _, depth, sequence in sorted(found)]
