"""The engine: one loop over a ragged batch. It is the only thing that appends to a sequence."""

from __future__ import annotations

from collections.abc import Callable, KeysView
from collections.abc import Sequence as Seq
from itertools import count
from time import perf_counter

from forerun.constraints import Constraint
from forerun.control.policy import FixedLength, Policy
from forerun.drafting.base import Drafter, NoDrafter
from forerun.engine.choices import SharedPrompts
from forerun.engine.commit import commit, score_prompt
from forerun.engine.drafts import make_drafts, make_plans, prefixes
from forerun.engine.kept import KeptTexts
from forerun.engine.request import make_sequence
from forerun.engine.scheduler import Scheduler, Slice
from forerun.engine.sequence import Sequence, Service, Watch
from forerun.errors import ContractError, DeadlineError, NumericalError, UserCodeError
from forerun.randomness import Noise, make_noise
from forerun.runtime.base import Model, Rows
from forerun.sampling import Distribution, Processing, SamplingParams
from forerun.types import Delta, Draft, FinishReason, Round, Span, Step, Verdict
from forerun.verification import DEFAULT_RULES, Rules, verify

_IDS = count()
"""Ids of sequences, counted for the whole process: engines may share a model, and no two caches may share an id."""

NO_WISHES = Service()

NoiseFactory = Callable[[SamplingParams, int, int, int], Noise]


class Engine:
    """Continuous batching with speculation. `step` is the whole algorithm; a single request is a batch of one.

    `vocabulary_size` is the real vocabulary (default: the target's row width): ids beyond it are never chosen.
    `eos_ids` end a text unless its request ignores them. `kept` has new texts start from what was read for others that
    begin alike (default: from nothing). `rules`, `make_noise` and `make_processing` are parts that
    tests and audits replace by broken or enumerating ones.
    """

    def __init__(
        self,
        target: Model,
        drafter: Drafter | None = None,
        policy: Policy | None = None,
        *,
        vocabulary_size: int | None = None,
        eos_ids: Seq[int] = (),
        scheduler: Scheduler | None = None,
        kept: KeptTexts | None = None,
        rules: Rules = DEFAULT_RULES,
        make_noise: NoiseFactory = make_noise,
        make_processing: Callable[..., Processing] = Processing,
    ) -> None:
        self.target = target
        self.drafter: Drafter = drafter if drafter is not None else NoDrafter()
        self.policy: Policy = policy if policy is not None else FixedLength(0 if drafter is None else 4)
        self.vocabulary_size = min(
            size for size in (vocabulary_size, target.capabilities.vocabulary_size) if size is not None
        )
        self.eos_ids = frozenset(eos_ids)
        self.scheduler = scheduler if scheduler is not None else Scheduler()
        self.rules, self.make_noise, self.make_processing = rules, make_noise, make_processing
        self._sequences: dict[int, Sequence] = {}
        # Committed and not handed out yet: kept here, so that a step that is interrupted or fails loses nothing.
        self._unreported: list[Delta] = []
        self.kept = kept
        self._prompts = SharedPrompts(target, self.scheduler, kept)
        self._deadlines: dict[int, float] = {}
        self._ended: list[int] = []  # whose end the policy has not been told of
        self._ending: dict[int, Sequence] = {}  # ended, but not yet wholly let go of: an interrupt may come in between

    # -- requests ---------------------------------------------------------------------------------------------------

    def add(
        self,
        prompt: Seq[int],
        params: SamplingParams,
        *,
        choice: int = 0,
        leader: Sequence | None = None,
        watch: Watch | None = None,
        constraints: Seq[Constraint] = (),
        service: Service = NO_WISHES,
    ) -> Sequence:
        """Queue a request; refused before any work if it cannot be served.

        `choice` tells apart several answers to one prompt and seed. A `leader` with the same prompt reads it for this
        one too: its cache is forked once it holds the prompt. `watch` sees each delivered token and may end the
        text (stop strings); `constraints` are fresh ones, for this sequence alone. What has not ended at the deadline
        of its `service` fails with a DeadlineError.
        """
        sequence = make_sequence(
            next(_IDS),
            prompt,
            params,
            vocabulary_size=self.vocabulary_size,
            context_length=self.target.capabilities.context_length,
            max_cached=self.scheduler.max_cached,
            eos_ids=self.eos_ids,
            choice=choice,
            seed=None if leader is None else leader.seed,
            watch=watch,
            constraints=constraints,
            make_processing=self.make_processing,
        )
        sequence.service = service
        if params.max_tokens == 0 and not sequence.num_unscored:
            sequence.finish_reason = "length"
            self._unreported.append(Delta(sequence.sequence_id, (), (), "length"))
            return sequence
        if leader is not None and self._prompts.join(sequence, leader):
            sequence.prompt_logprobs = None  # the leader's are the same
        else:
            self.scheduler.add(sequence)
        self._sequences[sequence.sequence_id] = sequence
        if service.deadline is not None:
            self._deadlines[sequence.sequence_id] = service.deadline
        return sequence

    def share(self, kept: KeptTexts | None) -> None:
        """From now on have new texts start from what `kept` holds; only while nothing runs."""
        if self._sequences:
            raise ContractError("beginnings can be shared from before the first request on only")
        self.kept = kept
        self._prompts = SharedPrompts(self.target, self.scheduler, kept)

    def cancel(self, sequence_id: int) -> None:
        """End a request now and free everything it holds; finished and unknown ids are ignored."""
        sequence = self._sequences.get(sequence_id)
        if sequence is not None:
            self._finish(sequence, "cancelled")
            self._tell_policy()

    def cancel_all(self) -> None:
        """Cancel every request."""
        for sequence in list(self._sequences.values()):
            self._finish(sequence, "cancelled")
        self._tell_policy()

    @property
    def sequence_ids(self) -> KeysView[int]:
        """Every request that is running or waiting."""
        return self._sequences.keys()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is running, waiting or still to be reported."""
        return not self._sequences and not self._unreported

    # -- the loop ---------------------------------------------------------------------------------------------------

    def step(self) -> list[Delta]:
        """One round for every sequence in the batch; returns what was committed."""
        start = perf_counter()
        for sequence in list(self._ending.values()):
            self._let_go(sequence)
        self._end_overdue(start)
        parts = self._batch()
        if not parts:
            return self._reported()
        num_waiting, trees = len(self.scheduler.waiting), self.target.capabilities.trees
        plans = make_plans(parts, self.policy, self.drafter, num_waiting, trees, self._room)
        num_cached = sum(len(part.sequence.tokens) - part.sequence.num_missing for part in parts)
        planned = perf_counter()
        drafts = make_drafts(parts, plans, self.drafter)
        proposed = perf_counter()
        rows = self.target.forward([self._span(part, draft) for part, draft in zip(parts, drafts, strict=True)])
        rows.wait()
        fed = perf_counter()
        target_rows = self._target_rows(parts, drafts, rows)
        verdicts = self._verify(parts, drafts, rows, target_rows)
        verified = perf_counter()
        self._keep_paths(parts, verdicts, drafts)
        rounds = self._commit(parts, drafts, verdicts, target_rows)
        host_s = planned - start + perf_counter() - verified
        step = Step(
            len(parts), sum(part.num_tokens + len(draft.tokens) for part, draft in zip(parts, drafts, strict=True)),
            int(rows.starts[-1]), num_cached, proposed - planned, fed - proposed, verified - fed, host_s,
        )  # fmt: skip
        self._charge(parts, step)
        self.policy.update(rounds, step)
        return self._reported()

    def _batch(self) -> list[Slice]:
        """Admit, roll every cache back to the tokens it still agrees with, and choose what to feed."""
        self.scheduler.admit()
        for sequence in list(self.scheduler.waiting):
            if sequence.is_begun:  # it has given way: all it loses is derived from its tokens, and made again
                self._prompts.give_way(sequence)
                self.drafter.release(sequence.sequence_id)
                sequence.num_missing, sequence.is_begun = 0, False
        for sequence in [one for one in self.scheduler.running if one.is_begun]:
            self._bring_back(sequence)
        for sequence in list(self.scheduler.running):
            if not sequence.is_begun and self._prompts.begin(sequence):
                self._bring_back(sequence)
        if self.scheduler.max_cached is not None:
            room = max(self.scheduler.max_cached - self.scheduler.num_reserved, 0)
            self._prompts.shrink(room)
            if self.kept is not None:
                self.kept.shrink(room - self._prompts.num_held)
        return self.scheduler.slices()

    def _bring_back(self, sequence: Sequence) -> None:
        """Roll a cache back, and make ready for a round. Rollback is derived, not remembered: the last token is never
        cached, and drafts that were fed beyond it are dropped, also after a pass that was interrupted."""
        cached = self.target.length(sequence.sequence_id)
        self.target.keep(sequence.sequence_id, min(cached, sequence.num_keepable))
        sequence.num_missing = len(sequence.tokens) - self.target.length(sequence.sequence_id)
        sequence.round_noise = self.make_noise(sequence.params, sequence.seed, sequence.choice, len(sequence.tokens))
        try:
            sequence.processing.begin_round()
        except UserCodeError as error:
            self._fail(sequence, error)

    @property
    def _room(self) -> int | None:
        """Tokens that the drafts of a pass may put into caches."""
        if self.scheduler.max_cached is None:
            return None
        num_kept = self._prompts.num_held + (0 if self.kept is None else self.kept.num_tokens)
        return max(self.scheduler.max_cached - self.scheduler.num_cached - num_kept, 0)

    def _span(self, part: Slice, draft: Draft) -> Span:
        sequence = part.sequence
        start = len(sequence.tokens) - sequence.num_missing
        tokens = sequence.tokens[start : start + part.num_tokens]
        num_rows = part.num_rows + len(draft.tokens)
        parents = None
        if draft.parents is not None:
            first = part.num_tokens
            parents = (*range(-1, first - 1), *(first + parent for parent in draft.parents))
        return Span(sequence.sequence_id, start, [*tokens, *draft.tokens], num_rows, parents)

    def _target_rows(self, parts: list[Slice], drafts: list[Draft], rows: Rows) -> list[list[Distribution]]:
        """The distributions each sequence's next tokens come from, [k + 1]; none where a prompt is still being read."""
        return [
            [
                part.sequence.processing.distribution(rows, rows.index(i, part.num_rows - 1 + row), prefix, "target")
                for row, prefix in enumerate(prefixes(draft))
            ]
            if part.is_complete
            else []
            for i, (part, draft) in enumerate(zip(parts, drafts, strict=True))
        ]

    def _verify(
        self, parts: list[Slice], drafts: list[Draft], rows: Rows, target_rows: list[list[Distribution]]
    ) -> list[Verdict | Exception | None]:
        """A verdict for every sequence that has rows; its error where its own rows are unusable."""
        verdicts: list[Verdict | Exception | None] = []
        for i, (part, draft) in enumerate(zip(parts, drafts, strict=True)):
            sequence = part.sequence
            try:
                if sequence.num_unscored:
                    start = len(sequence.tokens) - sequence.num_missing
                    score_prompt(sequence, start, rows, rows.index(i, 0), part.num_rows)
                may_go_on = part.is_complete and len(sequence.tokens) < sequence.limit
                verdicts.append(verify(target_rows[i], draft, sequence.noise, self.rules) if may_go_on else None)
            except (NumericalError, UserCodeError) as error:
                verdicts.append(error)
        judged = [verdict if isinstance(verdict, Verdict) else None for verdict in verdicts]
        self.drafter.observe([part.sequence for part in parts], rows, judged)
        return verdicts

    def _keep_paths(self, parts: list[Slice], verdicts: list[Verdict | Exception | None], drafts: list[Draft]) -> None:
        """Make the caches that were fed trees hold one path, before its tokens are committed: from then on a cache
        must hold the text's own tokens, in order, or fewer."""
        for part, draft, verdict in zip(parts, drafts, verdicts, strict=True):
            if draft.parents is not None:
                sequence = part.sequence
                path = verdict.path if isinstance(verdict, Verdict) else ()
                start = len(sequence.tokens) - sequence.num_missing
                # The runtime counts the span's tokens, of which the draft's come behind the ones that were missing.
                self.target.keep(
                    sequence.sequence_id, start, (*range(part.num_tokens), *(part.num_tokens + i for i in path))
                )

    def _commit(
        self,
        parts: list[Slice],
        drafts: list[Draft],
        verdicts: list[Verdict | Exception | None],
        target_rows: list[list[Distribution]],
    ) -> list[Round]:
        rounds: list[Round] = []
        for part, draft, verdict, rows in zip(parts, drafts, verdicts, target_rows, strict=True):
            sequence = part.sequence
            if part.is_complete:
                self._prompts.note_read(sequence)
            if isinstance(verdict, Verdict):
                try:
                    finished, delta = commit(sequence, draft, verdict, rows)
                except UserCodeError as error:
                    self._fail(sequence, error)
                    continue
                rounds.append(finished)
                self._report(sequence, delta)
            elif verdict is not None:
                self._fail(sequence, verdict)
            elif part.is_complete:  # a prompt that was only to be scored
                self._report(sequence, Delta(sequence.sequence_id, (), (), "length"))
        return rounds

    def _end_overdue(self, now: float) -> None:
        for sequence_id in [key for key, deadline in self._deadlines.items() if deadline <= now]:
            sequence = self._sequences.get(sequence_id)
            if sequence is not None:
                self._fail(sequence, DeadlineError(sequence.num_output))

    def _tell_policy(self) -> None:
        """Have the policy forget sequences that have ended. It learns from a text's last round first, so this comes
        after its `update`."""
        ended, self._ended = self._ended, []
        if ended:
            self.policy.release(*ended)

    def _reported(self) -> list[Delta]:
        self._tell_policy()
        deltas, self._unreported = self._unreported, []
        return deltas

    def _report(self, sequence: Sequence, delta: Delta) -> None:
        self._unreported.append(delta)
        if delta.finish_reason is not None:
            self._finish(sequence, delta.finish_reason)

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        self._report(sequence, Delta(sequence.sequence_id, (), (), "error", error))

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.finish_reason = reason
        self._ending[sequence.sequence_id] = sequence
        self._ended.append(sequence.sequence_id)
        self._sequences.pop(sequence.sequence_id, None)
        self._deadlines.pop(sequence.sequence_id, None)
        self._let_go(sequence)

    def _let_go(self, sequence: Sequence) -> None:
        """Free all that an ended sequence holds. May be done again after it was interrupted."""
        self.scheduler.remove(sequence)
        sequence.processing.release()
        self.drafter.release(sequence.sequence_id)
        self._prompts.end(sequence)
        self._ending.pop(sequence.sequence_id, None)

    def _charge(self, parts: list[Slice], step: Step) -> None:
        """Split the pass's seconds evenly among its sequences."""
        for part in parts:
            statistics = part.sequence.statistics
            statistics.draft_s += step.draft_s / len(parts)
            statistics.target_s += step.target_s / len(parts)
            statistics.verify_s += step.verify_s / len(parts)
            statistics.host_s += step.host_s / len(parts)
