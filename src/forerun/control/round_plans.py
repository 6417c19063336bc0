"""From a choice to plans: what is read first, when a draft is to end, and how wide it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from forerun.control.acceptance import FEW_UNREAD, Acceptance, Key
from forerun.control.branching import Room, widths
from forerun.control.choice import Prices
from forerun.control.gating import Company, thresholds
from forerun.control.records import MUCH_UNREAD, Offer
from forerun.topology import comb_by_widths
from forerun.types import Gate, Plan

PIECE_OF_ROUND = 3.0
"""Texts are read by the draft model in pieces that take at most so many plain rounds, all that are read in one round
together, so that no stream stalls."""
LEAST_PIECE, LARGEST_PIECE = 16, 4096
"""Tokens of a piece, whatever they take: fewer would never come to an end, and more are never wanted."""
SURE = 0.9
"""Where a further token is worth drafting only if all before it are accepted so surely, none is planned."""


@dataclass(slots=True)
class RoundPlans:
    """The plans of one round whose choice has been made: it makes `rate` tokens of a millisecond in this `company`, and
    would take `plain_ms` without any draft. `most_more` is by how many rows each draft may outgrow what was chosen."""

    acceptance: Acceptance
    prices: Prices
    company: Company
    rate: float
    plain_ms: float
    most_more: int
    num_read: int = 0
    """Tokens of long texts that were planned to be read so far."""

    def plan(self, sequence_id: int, key: Key, offer: Offer, length: int, most: int) -> tuple[Plan, int]:
        """(the plan for one sequence, the depths that its draft is to have) where `length` tokens were chosen and
        `most` can be had: the reading that it needs first (0 depths), or a draft that a gate may end. Who comes when
        the round has no time left for reading waits for a later one, and does nothing."""
        prospect = offer.prospect
        plan = Plan(length, prospect.source, most_unread=offer.most_unread, whole=offer.whole)
        if length <= prospect.num_free:
            return plan, min(length, prospect.longest)
        if prospect.num_unread > MUCH_UNREAD:
            num_left = max(self._piece() - self.num_read, 0)
            if prospect.num_unread <= FEW_UNREAD and not self.num_read:
                num_left = FEW_UNREAD  # by the way, unless others read too
            self.num_read += min(prospect.num_unread, num_left)
            if prospect.num_unread > num_left:
                return replace(plan, shape=0, read=num_left), 0
        gate: Gate = _always  # which makes the drafter say how sure it is
        chosen = length
        if self.acceptance.is_calibrated(key):
            expected = self.acceptance.forecast(sequence_id, key, prospect, most)
            least = thresholds(expected, prospect.num_free, self.company, self.prices, self.rate)
            while (
                length < min(len(least), chosen + self.most_more)
                and least[length - 1] < SURE
                and self.company.has_time(length + 1 - chosen, chosen, self.prices)
            ):
                length += 1  # for the case that the draft model is surer than usual
            gate = self.acceptance.gate(sequence_id, key, prospect, least)
        plan = replace(plan, shape=length, gate=gate)
        if prospect.trees and not prospect.num_free:
            plan = self._with_siblings(plan, sequence_id, key, offer, chosen + self.most_more - length)
        return plan, min(length, prospect.longest)

    def _with_siblings(self, plan: Plan, sequence_id: int, key: Key, offer: Offer, most: int) -> Plan:
        """The plan of a chain, with `most` second choices at most, where rows are cheap."""
        length = plan.shape
        value = self.acceptance.forecast(sequence_id, key, offer.prospect, length).value
        num_rows = self.company.num_rows + (length if self.company.num_drafting <= 1 else 0)
        spare_ms = self.company.spare_ms / max(self.company.num_drafting, 1)
        room = Room(num_rows, most, spare_ms)
        tree = comb_by_widths(widths(value, self.acceptance.siblings(key), self.prices, self.rate, room))
        return replace(plan, shape=len(tree), tree=tree) if len(tree) > length else plan

    def _piece(self) -> int:
        """Tokens that the draft model reads in the time of PIECE_OF_ROUND plain rounds."""
        piece = LEAST_PIECE
        while piece < LARGEST_PIECE and self.prices.draft_ms(float(2 * piece)) <= PIECE_OF_ROUND * self.plain_ms:
            piece *= 2
        return piece


def _always(confidences: Sequence[float]) -> bool:
    return True
