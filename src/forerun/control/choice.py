"""The best way to spend a round: which source drafts how much for which sequence, so that tokens per second are most.

A round commits N tokens in T milliseconds: N = one for each sequence that decodes, plus the values of all draft tokens;
T = the target's pass over all rows, one pass of the draft model for each depth that any sequence goes to, and the
host's part. Sequences share both, so that a row which is free for one (the curve is flat there) is dear beside sixty
others. Nothing is assumed of the curves but that they were measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

LONGEST_ROUND = 3.6
"""Plain rounds that a round may take, on average: longer ones would be a stall to whoever reads along or waits. Where
no draft ends early it takes more, and five are what C32 (cases.md) allows."""
PATIENCE = 4
"""Passes of the draft model in a row that make a round worse before no more are thought of."""
_WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256)
"""Numbers of rows that the cheapest row is looked for among."""


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

    def verifying_ms(self, num_rows: float) -> float:
        """A round's time without its drafting."""
        return self.target_ms(num_rows) + self.step_ms + self.row_ms * num_rows


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


@dataclass(frozen=True, slots=True)
class _Plain:
    """What a round has without any draft, `num_rows` rows and `num_decoding` tokens, and how many rows may be added."""

    prices: Prices
    num_rows: float
    num_decoding: int
    max_rows: int


def choose(
    options: Sequence[Sequence[Option]], prices: Prices, num_rows: float, num_decoding: int, max_rows: int
) -> Choice:
    """The round with the most tokens per millisecond that was found.

    `options[i]` are sequence i's; the pass has `num_rows` rows and `num_decoding` tokens without any draft, and at most
    `max_rows` rows may be added. Who drafts from where is settled first, by what each option earns at the price that
    time has (Dinkelbach's method for ratios, 1967: a millisecond is worth the tokens that the best round so far makes
    of it); then rounds grow token by token and pass by pass, each priced exactly, and the best is kept.
    """
    plain = _Plain(prices, num_rows, num_decoding, max_rows)
    none = tuple[tuple[int, int] | None, ...]([None] * len(options))
    best = Choice(none, float(num_decoding), prices.verifying_ms(num_rows))
    if any(options):
        options = _promising(options, prices, best, num_rows)
    if not any(options):
        return best
    tried: list[list[int | None]] = [[None] * len(options)]

    def try_out(best: Choice, assignment: list[int | None], again: bool = False) -> Choice:
        if assignment in tried and not again:
            return best
        tried.append(assignment)
        found = _grown(options, assignment, plain, best.rate)
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


def _promising(
    options: Sequence[Sequence[Option]], prices: Prices, plain: Choice, num_rows: float
) -> list[Sequence[Option]]:
    """The options of each sequence, none where no option could earn anything: not even at the price that time has in
    plain decoding, in passes that others pay for, and with rows as cheap as they are at their cheapest."""
    none_at_all = prices.target_ms(num_rows)
    widths = [width for width in _WIDTHS if width <= max(16, 4 * len(options))]
    row_ms = min((prices.target_ms(num_rows + width) - none_at_all) / width for width in widths)
    row_ms = max(row_ms, 0.0) + prices.row_ms
    num_others = len(options) - 1
    pass_ms = prices.draft_ms(1.0)
    if num_others:
        pass_ms = max(prices.draft_ms(1.0 + num_others) - pass_ms, 0.0) / num_others
    pass_ms += prices.token_ms
    rate = plain.rate
    return [
        of_one if any(_earns(option, rate, row_ms, pass_ms, option.charge_ms) > 0.0 for option in of_one) else ()
        for of_one in options
    ]


def worth(taken: Sequence[tuple[int, int] | None], options: Sequence[Sequence[Option]], num_decoding: int) -> float:
    """Tokens that are expected of a round in which so much is `taken`, by these options."""
    return num_decoding + sum(
        sum(of_one[one[0]].value[: one[1]]) for one, of_one in zip(taken, options, strict=True) if one is not None
    )


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
    row_ms, pass_ms = _shared_ms(prices, best, num_rows, len(options), num_riders)

    found: list[int | None] = []
    for of_one in options:
        earnings = [_earns(option, best.rate, row_ms, pass_ms, option.charge_ms) for option in of_one]
        place = max(range(len(of_one)), key=earnings.__getitem__, default=None)
        found.append(place if place is not None and earnings[place] > 0.0 else None)
    return found


def is_left_to_copies(
    options: Sequence[Option], place: int, prices: Prices, best: Choice, num_rows: float, num_decoding: int
) -> bool:
    """Whether the option taken, which needs no draft model, would earn most even if a draft model had nothing to read
    first, and all `num_decoding` sequences shared its passes."""
    row_ms, pass_ms = _shared_ms(prices, best, num_rows, num_decoding, num_decoding)
    taken = _earns(options[place], best.rate, row_ms, pass_ms, options[place].charge_ms)
    return all(_earns(option, best.rate, row_ms, pass_ms, 0.0) <= taken for option in options)


def _shared_ms(
    prices: Prices, best: Choice, num_rows: float, num_decoding: int, num_riders: int
) -> tuple[float, float]:
    """(milliseconds of a row, of a token in a draft model's pass) beside the rows of the best round so far."""
    rows = num_rows + sum(taken[1] for taken in best.taken if taken)
    row_ms = max(prices.target_ms(rows + num_decoding) - prices.target_ms(rows), 0.0) / num_decoding + prices.row_ms
    return row_ms, prices.draft_ms(float(num_riders)) / num_riders + prices.token_ms


def _earns(option: Option, rate: float, row_ms: float, pass_ms: float, charge_ms: float) -> float:
    """What the best length of an option adds, in tokens, where a millisecond costs `rate` of them."""
    earned = most = 0.0
    for depth, (value, drafted) in enumerate(zip(option.value, option.drafted, strict=True)):
        if depth == option.num_free:
            earned -= rate * charge_ms
        earned += value - rate * drafted * (row_ms + (pass_ms if depth >= option.num_free else 0.0))
        if earned > most:
            most = earned
    return most


def _grown(options: Sequence[Sequence[Option]], assignment: Sequence[int | None], plain: _Plain, rate: float) -> Choice:
    """The best round in which each sequence drafts from its assigned option or not at all.

    Tokens that cost no pass come first, the likeliest of them before others. Then the draft model's passes, one by one:
    who rides in a pass that takes place anyway pays for a row, so everybody does whose token is worth that at `rate`,
    and the best number of passes is kept.
    """
    prices = plain.prices
    open_ones = {i: options[i][place] for i, place in enumerate(assignment) if place is not None}
    lengths, rows, tokens, milliseconds = _with_free_tokens(open_ones, plain)
    best = (tokens, milliseconds, dict(lengths))
    longest_ms = LONGEST_ROUND * prices.verifying_ms(plain.num_rows)
    # Free tokens that did not pay are not what a draft model's follow on.
    riders = [
        (sequence, option) for sequence, option in open_ones.items()
        if option.num_free < len(option.value) and lengths.get(sequence, 0) == option.num_free
    ]  # fmt: skip
    if any(option.charge_ms > 0.0 for _, option in riders):
        token_ms = _token_ms(prices, rows, len(riders))  # who cannot pay it would spoil the passes of the others
        riders = [(sequence, option) for sequence, option in riders if _earns_charge(option, rate, token_ms)]
    num_left = plain.max_rows - sum(lengths.values())
    drafts_ms = 0.0
    number = num_worse = 0
    while riders and num_worse < PATIENCE:
        if len(options) > 1:
            least = rate * _token_ms(prices, rows, len(riders))
            riders = [
                (sequence, option) for sequence, option in riders
                if option.value[option.num_free + number] >= least * option.drafted[option.num_free + number]
            ]  # fmt: skip
        if len(riders) > num_left:
            riders.sort(key=lambda rider: -rider[1].value[rider[1].num_free + number])
            del riders[num_left:]
        if not riders:
            break
        riding = 0.0
        for sequence, option in riders:
            depth = option.num_free + number
            riding += option.drafted[depth]
            tokens += option.value[depth]
            lengths[sequence] = depth + 1
            if number == 0:
                drafts_ms += option.charge_ms
        rows += riding
        num_left -= len(riders)
        drafts_ms += prices.draft_ms(riding) + riding * prices.token_ms
        now = prices.verifying_ms(rows) + drafts_ms
        if now <= longest_ms and tokens * best[1] > best[0] * now:
            best, num_worse = (tokens, now, dict(lengths)), 0
        else:
            num_worse += 1
        number += 1
        riders = [rider for rider in riders if rider[1].num_free + number < len(rider[1].value)]
    lengths = best[2]
    taken = tuple(
        (place, lengths[sequence]) if place is not None and sequence in lengths else None
        for sequence, place in enumerate(assignment)
    )
    return Choice(taken, best[0], best[1])


def _token_ms(prices: Prices, num_rows: float, num_riders: int) -> float:
    """What a token adds if the passes it is drafted in take place anyway: at the mean price of the rows that all who
    ride would fill, for a step of the curve is no reason for each of them to shrink from it."""
    rows_ms = (prices.target_ms(num_rows + num_riders) - prices.target_ms(num_rows)) / num_riders
    riding_ms = (prices.draft_ms(num_riders) - prices.draft_ms(1.0)) / max(num_riders - 1, 1)
    return rows_ms + riding_ms + prices.row_ms + prices.token_ms


def _earns_charge(option: Option, rate: float, token_ms: float) -> bool:
    """Whether what has to be read first can pay, if all passes take place anyway."""
    earned = 0.0
    for value, drafted in zip(option.value[option.num_free :], option.drafted[option.num_free :], strict=True):
        earned += max(value - rate * token_ms * drafted, 0.0)
    return earned >= rate * option.charge_ms


def _with_free_tokens(options: Mapping[int, Option], plain: _Plain) -> tuple[dict[int, int], float, float, float]:
    """The best round without a draft model: lengths by sequence, rows, tokens, milliseconds."""
    prices = plain.prices
    free = _free_tokens(options)[: plain.max_rows]
    rows, tokens = plain.num_rows, float(plain.num_decoding)
    best = (0, rows, tokens, prices.verifying_ms(rows))
    longest_ms = LONGEST_ROUND * best[3]
    for num_kept, (sequence, depth) in enumerate(free, start=1):
        rows += options[sequence].drafted[depth]
        tokens += options[sequence].value[depth]
        now = prices.verifying_ms(rows)
        if now > longest_ms:
            break
        if tokens * best[3] > best[2] * now:
            best = (num_kept, rows, tokens, now)
    lengths = dict[int, int]()
    for sequence, depth in free[: best[0]]:
        lengths[sequence] = depth + 1
    return lengths, best[1], best[2], best[3]


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
