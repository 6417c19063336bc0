"""The adaptive policy: as many tokens per second as measured costs and observed acceptance promise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from forerun.checks import real, whole
from forerun.control.acceptance import FEW_UNREAD, Acceptance
from forerun.control.choice import Choice, Option, Prices, choose, is_left_to_copies, worth
from forerun.control.cost import HostCost, PassCost, PassTable
from forerun.control.exploring import Candidate, Credit, find_try
from forerun.control.gating import Company
from forerun.control.looking import Looks
from forerun.control.policy import Load
from forerun.control.records import Known, Offer, Pending, Prediction, Stays, offers_of
from forerun.control.round_plans import RoundPlans
from forerun.control.situation import Situation, kind_of
from forerun.drafting.base import SequenceView
from forerun.runtime.base import Model
from forerun.types import Plan, Prospect, Round, Step

MAX_MODEL_LENGTH = 32
"""Longest draft of a draft model; the policy rarely comes near it."""
DOUBT = 1.5
"""How often a text that is read again, from its beginning, has to pay for that: what it brings is not certain."""
LEAST_GAIN = 1.03
"""What drafting for several sequences has to promise. Whoever is drafted for is one whose figures happen to look well,
and of many there are always some: a promise of two percent has been seen to come to a loss of two."""

USUAL_LENGTH = 200.0
"""Tokens of an answer, before any has ended."""
LATEST_LENGTH = 0.1
"""What one answer's length counts for in the usual one."""
LEAST_LEFT = 16.0
"""Tokens that are expected of an answer at least, however long it is already: it has not ended yet."""


class AdaptiveLength:
    """Chooses source and length for every sequence and round: the most tokens per second, k = 0 included.

    `target` and `draft` hold what passes cost, kept up to date by every step (the draft's by its drafter's meter).
    `max_length` is the longest draft, `max_rows` how many draft tokens a pass may verify for all sequences together
    (their rows are as wide as the vocabulary).

    What is not chosen is tried again now and then: `probe_share` of the time may be spent on rounds that are expected
    to lose (docs/control.md), so where speculation is hopeless it costs no more than that.
    """

    def __init__(
        self,
        target: PassCost,
        draft: PassCost | None = None,
        *,
        max_length: int = 32,
        max_rows: int = 256,
        probe_share: float = 0.006,
    ) -> None:
        whole("max_length", max_length, 1, None, "a whole number of at least 1")
        whole("max_rows", max_rows, 1, None, "a whole number of at least 1")
        real("probe_share", probe_share, 0.0, 1.0, "a share of the time: a number from 0 to 1")
        self.target, self.draft, self.host = target, draft, HostCost()
        self.acceptance = Acceptance()
        self.max_length, self.max_rows = max_length, max_rows
        self.prediction: Prediction | None = None
        self._credit = Credit(probe_share)
        self._looks = Looks()
        self._known: dict[int, Known] = {}
        self._stays = Stays()
        self._pending: dict[int, Pending] = {}
        self._num_rounds = 0
        self._usual_length = USUAL_LENGTH
        self._drafts_ms = 0.0  # by the draft model's own passes, since the last step

    @classmethod
    def of(cls, target: Model, draft: Model | None = None, **settings: Any) -> AdaptiveLength:
        """For these models, whose passes are timed now if they have not been before (`Model.cost`)."""
        return cls(PassCost(target.cost()), None if draft is None else PassCost(draft.cost()), **settings)

    def __repr__(self) -> str:
        return f"AdaptiveLength(max_length={self.max_length}, max_rows={self.max_rows})"

    def meter(self, num_tokens: int, num_cached: float, milliseconds: float) -> None:
        """Told of every pass of the draft model by its drafter."""
        self._drafts_ms += milliseconds
        if self.draft is not None:
            self.draft.note(num_tokens, num_cached, milliseconds)

    # -- planning ------------------------------------------------------------------------------------------------------

    def plan(
        self, sequences: Sequence[SequenceView], prospects: Sequence[Sequence[Prospect]], load: Load
    ) -> list[Plan]:
        self._num_rounds += 1
        self._pending.clear()
        decoding = [i for i, sequence in enumerate(sequences) if sequence.num_missing == 1]
        texts, found = [sequences[i] for i in decoding], [prospects[i] for i in decoding]
        seen = self._looks.begin(self._num_rounds, texts, found, load.num_tokens)
        now = self._situation(texts, found, seen, self._prices(sequences), load.num_tokens)
        best, options = self._best_round(now)
        purpose = "best" if any(seen) else "rest"
        self.prediction = Prediction(best.milliseconds, best.num_tokens, now.plain_ms, len(decoding), purpose)
        plans = [Plan() for _ in sequences]
        for i, plan in zip(decoding, self._plans(now, best, options), strict=True):
            plans[i] = plan
        for place, i in enumerate(decoding):
            self._pass_by(sequences[i], now.kinds[place], prospects[i], plans[i])
        if not any(plan.shape for plan in plans):
            self._credit.note_used(_PLAIN, self._num_rounds)  # it is plain decoding, and need not be tried soon after
        if any(seen):
            trying = [(i, sequences[i], now.kinds[place], prospects[i]) for place, i in enumerate(decoding)]
            self._explore(trying, plans, best, now.prices, load.num_tokens)
            self._end_looks(now, best, seen, found, [plans[i] for i in decoding])
        return plans

    def update(self, rounds: Sequence[Round], step: Step) -> None:
        looked_at = step.num_cached / max(step.num_sequences, 1)
        self.target.note(step.num_tokens, looked_at, 1e3 * step.target_s)
        num_drafted = 0
        for done in rounds:
            pending = self._pending.get(done.sequence_id)
            num_drafted += max(done.num_proposed - (pending.prospect.num_free if pending else 0), 0)
        self.host.note(step, self._drafts_ms, num_drafted)
        self._drafts_ms = 0.0
        self._credit.earn(1e3 * (step.target_s + step.draft_s + step.verify_s + step.host_s))
        for done in rounds:
            pending = self._pending.get(done.sequence_id)
            if pending is not None and pending.plan.shape > 0:
                if done.num_accepted:
                    self._credit.note_success((done.sequence_id, *pending.key))
                ended_early = done.num_emitted <= done.num_accepted  # cut by a stop or a limit
                self.acceptance.observe(pending.key, pending.prospect, pending.num_planned, not ended_early, done)

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _situation(
        self,
        texts: Sequence[SequenceView],
        prospects: Sequence[Sequence[Prospect]],
        seen: Sequence[bool],
        prices: Prices,
        num_rows: int,
    ) -> Situation:
        offered = [
            offers_of(found, len(text.tokens), len(text.tokens) - text.prompt_length, self.acceptance.is_known)
            if is_seen
            else []
            for text, found, is_seen in zip(texts, prospects, seen, strict=True)
        ]
        plain_ms = prices.target_ms(num_rows) + prices.step_ms + prices.row_ms * num_rows
        return Situation(texts, [kind_of(text) for text in texts], offered, prices, num_rows, plain_ms)

    def _best_round(self, now: Situation) -> tuple[Choice, list[list[Option]]]:
        """The round that promises most, and the options that it was chosen from."""
        prices, num_decoding = now.prices, len(now.texts)
        least = now.least_value
        options = [
            [self._option(text, kind, offer, prices, least) for offer in found]
            for text, kind, found in zip(now.texts, now.kinds, now.offered, strict=True)
        ]
        best = choose(options, prices, now.num_rows, max(num_decoding, 1), self.max_rows)
        if num_decoding > 1 and best.num_tokens * now.plain_ms < LEAST_GAIN * num_decoding * best.milliseconds:
            best = Choice((None,) * num_decoding, float(num_decoding), now.plain_ms)
        idle = [place for place, taken in enumerate(best.taken) if taken is None and options[place]]
        if idle and self._looks.is_full and self._credit.has_some:
            # What is given up on is hardly seen again, so it gets the benefit of the doubt, as far as that may cost.
            hopeful = list(options)
            for place in idle:
                hopeful[place] = [
                    # What has to be read first is seen again by a probe, which reads less.
                    self._option(
                        now.texts[place], now.kinds[place], one, prices, least, hopeful=one.num_unread <= FEW_UNREAD
                    )
                    for one in now.offered[place]
                ]
            found = choose(hopeful, prices, now.num_rows, max(num_decoding, 1), self.max_rows)
            loss_ms = found.milliseconds - worth(found.taken, options, num_decoding) / best.rate
            if self._credit.take(loss_ms):
                best, options = found, hopeful
        return best, options

    def _end_looks(
        self,
        now: Situation,
        best: Choice,
        seen: Sequence[bool],
        prospects: Sequence[Sequence[Prospect]],
        plans: Sequence[Plan],
    ) -> None:
        """Say who drafts of those that were looked at."""
        drafting = [taken is not None or plan.shape > 0 for taken, plan in zip(best.taken, plans, strict=True)]
        for text, is_seen, is_drafting, found in zip(now.texts, seen, drafting, prospects, strict=True):
            if is_drafting:
                self._looks.drafts(text.sequence_id)
            elif is_seen:
                self._looks.declines(text.sequence_id, found)
        self._looks.end(
            self._num_rounds, len(plans), somebody_drafts=any(drafting), a_model_drafts=now.needs_model(best)
        )

    def _plans(self, now: Situation, best: Choice, options: Sequence[Sequence[Option]]) -> list[Plan]:
        """The plan of each sequence that decodes, by the round that was chosen among `options`."""
        company = Company.of(options, best, now.num_rows, now.plain_ms)
        num_left = self.max_rows - sum(taken[1] for taken in best.taken if taken is not None)
        most_more = num_left // max(company.num_drafting, 1)
        made = RoundPlans(self.acceptance, now.prices, company, best.rate, now.plain_ms, most_more)
        plans = [Plan() for _ in now.texts]
        for place, text in enumerate(now.texts):
            known = self._remember(text, now.plain_ms)
            taken = best.taken[place]
            if taken is None:
                continue
            offer, length = now.offered[place][taken[0]], taken[1]
            key, sequence_id = (offer.source, now.kinds[place]), text.sequence_id
            plans[place], num_planned = made.plan(sequence_id, key, offer, length, self._most(offer.prospect))
            if plans[place].shape:
                known.used.add(offer.view)
                if length > offer.prospect.num_free:
                    self._stays.note(known, offer.num_unread)
                elif is_left_to_copies(options[place], taken[0], now.prices, best, now.num_rows, len(now.texts)):
                    known.num_copied += 1
                self._pending[sequence_id] = Pending(key, offer.prospect, plans[place], num_planned)
        return plans

    def _prices(self, sequences: Sequence[SequenceView]) -> Prices:
        """What passes cost now, behind as many cached tokens as these sequences have on average."""
        cached = sum(len(sequence.tokens) for sequence in sequences) / max(len(sequences), 1)
        host = self.host
        return Prices(
            self.target.table(cached),
            PassTable(self.draft, None),  # what it sees of a text may be less
            host.per_step_ms,
            host.per_row_ms,
            host.per_draft_token_ms,
        )

    def _option(
        self,
        sequence: SequenceView,
        kind: str,
        offer: Offer,
        prices: Prices,
        least: float,
        *,
        hopeful: bool = False,
    ) -> Option:
        """What an offer's tokens add and take. The milliseconds of the draft model's reading beyond the one token that
        each draft feeds it anyway are shared by the rounds that the reading is expected to serve."""
        prospect = offer.prospect
        key = (prospect.source, kind)
        most = self._most(prospect)
        forecast = self.acceptance.forecast(sequence.sequence_id, key, prospect, most, least, hopeful=hopeful)
        charge_ms = 0.0
        if prospect.num_unread and prospect.longest > prospect.num_free:
            by_the_way = prices.draft_ms(1.0 + min(prospect.num_unread, 1))
            charge_ms = by_the_way - prices.draft_ms(1.0)  # a draft that was accepted to its end leaves one unread
            if prospect.num_unread > 1:
                # Read once, for all rounds to come that are left to it: to the end, or until it is left again.
                known = self._known.get(sequence.sequence_id, _NOTHING)
                stay = known.model_share * self._expected_tokens(sequence) / (1.0 + sum(forecast.value))
                if offer.view in known.used:
                    stay = min(stay, self._stays.expected(prospect.num_unread))
                reading_ms = prices.draft_ms(1.0 + prospect.num_unread) - by_the_way
                charge_ms += (DOUBT if offer.whole else 1.0) * reading_ms / max(stay, 1.0)
        return Option(forecast.value, forecast.drafted, prospect.num_free, charge_ms)

    def _most(self, prospect: Prospect) -> int:
        """The longest draft from a prospect."""
        return min(prospect.longest, self.max_length, prospect.num_free + MAX_MODEL_LENGTH)

    def _expected_tokens(self, sequence: SequenceView) -> float:
        """How much is still to be written: as much as answers usually have, or as much again, and what there is room
        for at most."""
        num_output = len(sequence.tokens) - sequence.prompt_length
        usual = max(self._usual_length - num_output, float(num_output), LEAST_LEFT)
        most = sequence.params.max_tokens
        return usual if most is None else min(usual, max(most - num_output, 1))

    def _explore(
        self,
        decoding: Sequence[tuple[int, SequenceView, str, Sequence[Prospect]]],
        plans: list[Plan],
        best: Choice,
        prices: Prices,
        num_plain: int,
    ) -> None:
        """Try what was not chosen and has not been tried for long, if its expected loss is within what may be lost. The
        pass has `num_plain` rows without any draft."""
        if any(plan.shape for plan in plans) and self._explore_plain(plans, best):
            return
        candidates = [Candidate(sequence, kind, found, plans[i]) for i, sequence, kind, found in decoding]
        tried = find_try(candidates, self._credit, self._num_rounds, best, prices, num_plain, self.max_rows)
        if tried is not None:
            place, pending = tried
            plans[decoding[place][0]] = pending.plan
            self._pending[candidates[place].sequence.sequence_id] = pending
            self._expect_to_learn()

    def _explore_plain(self, plans: list[Plan], best: Choice) -> bool:
        """A round without any draft, where there has been none for long: what plain decoding costs now is half of every
        decision."""
        if self.prediction is None:
            return False
        cost_ms = self.prediction.plain_ms - self.prediction.plain_tokens / best.rate
        if not self._credit.spend(_PLAIN, cost_ms, self._num_rounds):
            return False
        plans[:] = [Plan() for _ in plans]
        self._pending.clear()
        self._expect_to_learn()
        return True

    def _expect_to_learn(self) -> None:
        """The round is not the best one, but one to learn from."""
        if self.prediction is not None:
            self.prediction = replace(self.prediction, purpose="probe")

    def _remember(self, sequence: SequenceView, plain_ms: float) -> Known:
        """One more round of a sequence; a plain one takes `plain_ms`. A new sequence may lose something on tries."""
        known = self._known.get(sequence.sequence_id)
        if known is None:
            known = self._known[sequence.sequence_id] = Known()
            self._credit.allow(self._expected_tokens(sequence) * plain_ms)
        known.num_output = len(sequence.tokens) - sequence.prompt_length
        known.num_rounds += 1
        return known

    def _pass_by(self, sequence: SequenceView, kind: str, found: Sequence[Prospect], plan: Plan) -> None:
        """What is known of sources that were not chosen is a round older."""
        for prospect in found:
            if prospect.source != plan.source:
                self.acceptance.pass_by(sequence.sequence_id, (prospect.source, kind))

    def release(self, *sequence_ids: int) -> None:
        """Forget sequences that have ended, and learn from them how long answers are."""
        for sequence_id in sequence_ids:
            self._pending.pop(sequence_id, None)
            known = self._known.pop(sequence_id, None)
            if known is not None:
                self._usual_length += LATEST_LENGTH * (known.num_output - self._usual_length)
        self.acceptance.forget(*sequence_ids)
        self._credit.forget(*sequence_ids)
        self._looks.forget(*sequence_ids)


_PLAIN = "plain"
_NOTHING = Known()
"""What is known of a sequence at first. Never changed."""
