"""How wide a draft is to be: second choices beside the likeliest ones, where a row costs less than what they save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.control.choice import Prices


@dataclass(frozen=True, slots=True)
class Room:
    """A pass that has `num_rows` rows, and what may be added to it: `max_more` rows and `most_ms` milliseconds."""

    num_rows: float
    max_more: int
    most_ms: float


def widths(value: Sequence[float], siblings: Sequence[float], prices: Prices, rate: float, room: Room) -> list[int]:
    """How many children each node on the path of first children is to have, [depth], each at least 1.

    `value[d]` is the probability that the first child at depth d is drafted and accepted with all before it, and
    `siblings[r]` that child number r + 1 is accepted where those before it were not: it adds one token in the rounds
    that come to it, and costs a row of the pass, worth what the round makes of its time (`rate`, tokens per
    millisecond). What is worth most comes first, as far as there is `room`.
    """
    found: list[tuple[float, int]] = []
    for depth, reached in enumerate((1.0, *value)[: len(value)]):
        missed = reached - value[depth]
        for share in siblings:
            found.append((missed * share, depth))
            missed *= 1.0 - share
    chosen = [1] * len(value)
    for num_more, (worth, depth) in enumerate(sorted(found, reverse=True)):
        rows = room.num_rows + num_more
        row_ms = prices.target_ms(rows + 1.0) - prices.target_ms(rows) + prices.row_ms
        is_long = prices.target_ms(rows + 1.0) - prices.target_ms(room.num_rows) > room.most_ms
        if worth <= rate * row_ms or num_more >= room.max_more or is_long:
            break
        chosen[depth] += 1
    return chosen
