"""What rounds of other lengths would have committed, from rounds of the longest one: the text's own outcomes, replayed.

Acceptance by depth is measured in rounds that begin where the last draft failed, which is where text is hard. Shorter
rounds begin in easy places too, so multiplying those shares underrates them (by up to a tenth, measured). What the
longest rounds tell besides is, place by place of the text, whether the draft's token was the target's. Walking over
those places with rounds of k tokens gives what rounds of k tokens would have committed. At temperature 0 that is what
they do commit, but for places behind a draft that was accepted whole: nothing was drafted there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from forerun.types import Round

HIT, MISS, NONE, UNKNOWN = "hit", "miss", "none", "unknown"
"""A place of the text: the draft had its token; it had another; there was no draft; nobody asked."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """Rounds by what they proposed and accepted: (proposed, accepted) -> share of all rounds."""

    shares: dict[tuple[int, int], float]

    @property
    def tokens(self) -> float:
        """Tokens committed per round: accepted ones and the target's own."""
        return 1.0 + self.accepted

    @property
    def accepted(self) -> float:
        """Draft tokens accepted per round."""
        return sum(share * accepted for (_, accepted), share in self.shares.items())

    @property
    def proposed(self) -> dict[int, float]:
        """Draft tokens proposed -> share of rounds."""
        found: dict[int, float] = {}
        for (proposed, _), share in self.shares.items():
            found[proposed] = found.get(proposed, 0.0) + share
        return found

    @property
    def whole(self) -> float:
        """Share of rounds that drafted and accepted all of it: the draft model reads one token more in the next."""
        return sum(share for (proposed, accepted), share in self.shares.items() if proposed and accepted == proposed)


def places(rounds: Sequence[Round]) -> list[tuple[str, int]]:
    """(the outcome, how many tokens the draft there had) at every place of the text that these rounds wrote."""
    found = []
    for one in rounds:
        found += [(HIT, one.num_proposed)] * one.num_accepted
        if not one.num_proposed:
            found.append((NONE, 0))
        else:
            found.append((MISS if one.num_accepted < one.num_proposed else UNKNOWN, one.num_proposed))
    return found


def replay(texts: Iterable[Sequence[Round]], k: int) -> Rounds:
    """What rounds of at most k draft tokens would have done with these texts.

    A draft has k tokens, or as many as the one that was there if those were fewer. A place that nobody asked about, and
    one behind the end of a text, counts as a hit as often as places behind a hit are hits, spread evenly. ValueError
    for no rounds at all.
    """
    all_places = [places(rounds) for rounds in texts]
    hits, carried = _hits_after_hits(all_places), 0.5
    counts: Counter[tuple[int, int]] = Counter()
    for found in all_places:
        place = 0
        while place < len(found):
            proposed, accepted = min(k, found[place][1]), 0
            while accepted < proposed:
                at = place + accepted
                outcome = found[at][0] if at < len(found) else UNKNOWN
                if outcome == UNKNOWN:
                    carried += hits
                    outcome, carried = (HIT, carried - 1.0) if carried >= 1.0 else (MISS, carried)
                if outcome != HIT:
                    break
                accepted += 1
            counts[proposed, accepted] += 1
            place += accepted + 1
    if not counts:
        raise ValueError("no rounds to replay")
    total = counts.total()
    return Rounds({key: number / total for key, number in sorted(counts.items())})


def acceptance_by_depth(texts: Iterable[Sequence[Round]]) -> list[float]:
    """[j]: share of drafts that accepted token j + 1, of those that had one there and accepted all before it."""
    counts = Counter((one.num_proposed, one.num_accepted) for rounds in texts for one in rounds)
    shares = []
    for depth in range(1, max((proposed for proposed, _ in counts), default=0) + 1):
        examined = sum(n for (proposed, accepted), n in counts.items() if proposed >= depth and accepted >= depth - 1)
        if not examined:
            break
        shares.append(sum(n for (_, accepted), n in counts.items() if accepted >= depth) / examined)
    return shares


def acceptance(texts: Iterable[Sequence[Round]]) -> float | None:
    """Accepted of those draft tokens that were examined: the one number that textbooks take; None without drafts."""
    examined = accepted = 0
    for rounds in texts:
        for one in rounds:
            examined += min(one.num_accepted + 1, one.num_proposed)
            accepted += one.num_accepted
    return accepted / examined if examined else None


def _hits_after_hits(all_places: Iterable[Sequence[tuple[str, int]]]) -> float:
    """The share of hits among known places behind a hit; one half where there are none."""
    known = [
        after for found in all_places for (one, _), (after, _) in pairwise(found) if one == HIT and after in (HIT, MISS)
    ]
    return sum(after == HIT for after in known) / len(known) if known else 0.5
