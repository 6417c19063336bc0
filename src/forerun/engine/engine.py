"""The engine: one loop over a ragged batch. It is the only thing that appends to a sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from itertools import count
from time import perf_counter
from typing import Literal

from forerun.control.policy import FixedLength, Load, Policy
from forerun.drafting.base import Drafter, NoDrafter
from forerun.engine.scheduler import Scheduler, Slice
from forerun.engine.sequence import Sequence
from forerun.errors import ContextLengthError, ContractError, NumericalError, ParameterError, PromptError
from forerun.randomness import Noise, fresh_seed, make_noise
from forerun.runtime.base import Model, Rows
from forerun.sampling import Distribution, SamplingParams
from forerun.types import Delta, Draft, FinishReason, Origin, Round, Span, Verdict
from forerun.verification import DEFAULT_RULES, Rule, verify

NoiseFactory = Callable[[SamplingParams, int, int, int], Noise]


class Engine:
    """Continuous batching with speculation. `step` is the whole algorithm; a single request is a batch of one.

    `vocabulary_size` is the real vocabulary (default: the target's row width): ids beyond it are never chosen.
    `eos_ids` end a text unless its request ignores them. `rules` and `make_noise` are parts that tests and audits
    replace by broken or enumerating ones.
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
        rules: Mapping[Literal["sampled", "deterministic"], Rule] = DEFAULT_RULES,
        make_noise: NoiseFactory = make_noise,
    ) -> None:
        self.target = target
        self.drafter: Drafter = drafter if drafter is not None else NoDrafter()
        self.policy: Policy = policy if policy is not None else FixedLength(0 if drafter is None else 4)
        self.vocabulary_size = min(
            size for size in (vocabulary_size, target.capabilities.vocabulary_size) if size is not None
        )
        self.eos_ids = frozenset(eos_ids)
        self.scheduler = scheduler if scheduler is not None else Scheduler()
        self.rules, self.make_noise = rules, make_noise
        self._ids = count()
        self._sequences: dict[int, Sequence] = {}
        # Committed and not handed out yet: kept here, so that a step that is interrupted or fails loses nothing.
        self._unreported: list[Delta] = []

    # -- requests ---------------------------------------------------------------------------------------------------

    def add(self, prompt: Seq[int], params: SamplingParams, *, choice: int = 0) -> Sequence:
        """Queue a request; refused before any work if it cannot be served. `choice` tells apart several answers to
        one prompt and seed."""
        context_length = self.target.capabilities.context_length
        if len(prompt) == 0:
            raise PromptError("the prompt is empty", "a model needs at least one token to start from", "give some text")
        outside = next((token for token in prompt if not 0 <= token < self.vocabulary_size), None)
        if outside is not None:
            raise PromptError(f"prompt token id {outside} is outside 0..{self.vocabulary_size - 1}")
        if context_length is not None and len(prompt) >= context_length:
            raise ContextLengthError(len(prompt), context_length)
        if params.max_tokens is None and context_length is None:
            raise ParameterError("max_tokens", "must be given for a model whose context is unbounded")
        limits = [] if params.max_tokens is None else [len(prompt) + params.max_tokens]
        limits += [] if context_length is None else [context_length]
        stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self.eos_ids)
        seed = params.seed if params.seed is not None else fresh_seed()
        sequence = Sequence(
            sequence_id=next(self._ids),
            tokens=[int(token) for token in prompt],
            prompt_length=len(prompt),
            params=params,
            vocabulary_size=self.vocabulary_size,
            seed=seed,
            choice=int(choice),
            limit=min(limits),
            stop_ids=stop_ids,
        )
        if params.max_tokens == 0:
            sequence.finish_reason = "length"
            self._unreported.append(Delta(sequence.sequence_id, (), (), "length"))
            return sequence
        self._sequences[sequence.sequence_id] = sequence
        self.scheduler.add(sequence)
        return sequence

    def cancel(self, sequence_id: int) -> None:
        """End a request now and free everything it holds; finished and unknown ids are ignored."""
        sequence = self._sequences.get(sequence_id)
        if sequence is not None:
            self._finish(sequence, "cancelled")

    @property
    def is_idle(self) -> bool:
        """Whether nothing is running, waiting or still to be reported."""
        return not self._sequences and not self._unreported

    # -- the loop ---------------------------------------------------------------------------------------------------

    def step(self) -> list[Delta]:
        """One round for every sequence in the batch; returns what was committed."""
        start = perf_counter()
        parts = self._batch()
        if not parts:
            return self._commit([], [], [])
        shapes = self._plan(parts)
        planned = perf_counter()
        drafts = self._propose(parts, shapes)
        proposed = perf_counter()
        rows = self.target.forward([self._span(part, draft) for part, draft in zip(parts, drafts, strict=True)])
        rows.wait()
        fed = perf_counter()
        verdicts = self._verify(parts, drafts, rows)
        verified = perf_counter()
        deltas = self._commit(parts, drafts, verdicts)
        host_s = planned - start + perf_counter() - verified
        self._charge(parts, proposed - planned, fed - proposed, verified - fed, host_s)
        return deltas

    def _batch(self) -> list[Slice]:
        """Admit, roll every cache back to the tokens it still agrees with, and choose what to feed."""
        for sequence in self.scheduler.admit():
            self.target.begin(sequence.sequence_id)
        for sequence in self.scheduler.running:
            # Rollback is derived, not remembered: the last token is never cached, and drafts that were fed beyond
            # it are dropped, also after a pass that was interrupted.
            cached = self.target.length(sequence.sequence_id)
            self.target.keep(sequence.sequence_id, min(cached, len(sequence.tokens) - 1))
            sequence.num_missing = len(sequence.tokens) - self.target.length(sequence.sequence_id)
            sequence.round_noise = self.make_noise(
                sequence.params, sequence.seed, sequence.choice, len(sequence.tokens)
            )
        return self.scheduler.slices()

    def _plan(self, parts: list[Slice]) -> list[int]:
        load = Load(len(self.scheduler.running), len(self.scheduler.waiting))
        plans = self.policy.plan([part.sequence for part in parts], load)
        if len(plans) != len(parts) or any(plan.shape < 0 for plan in plans):
            raise ContractError(f"the policy returned {plans} for {len(parts)} sequences")
        return [
            min(plan.shape, part.sequence.max_shape) if part.is_complete else 0
            for part, plan in zip(parts, plans, strict=True)
        ]

    def _propose(self, parts: list[Slice], shapes: list[int]) -> list[Draft]:
        drafting = [i for i, shape in enumerate(shapes) if shape > 0]
        drafts = [Draft() for _ in parts]
        if drafting:
            proposed = self.drafter.propose([parts[i].sequence for i in drafting], [shapes[i] for i in drafting])
            if len(proposed) != len(drafting):
                raise ContractError(f"the drafter returned {len(proposed)} drafts for {len(drafting)} sequences")
            for i, draft in zip(drafting, proposed, strict=True):
                if len(draft.tokens) > shapes[i] or not all(0 <= t < self.vocabulary_size for t in draft.tokens):
                    raise ContractError(
                        f"a draft of {list(draft.tokens)} was proposed where at most {shapes[i]} ids below "
                        f"{self.vocabulary_size} were asked for"
                    )
                drafts[i] = draft
        return drafts

    def _span(self, part: Slice, draft: Draft) -> Span:
        sequence = part.sequence
        start = len(sequence.tokens) - sequence.num_missing
        tokens = sequence.tokens[start : start + part.num_tokens]
        num_rows = len(draft.tokens) + 1 if part.is_complete else 0
        return Span(sequence.sequence_id, start, [*tokens, *draft.tokens], num_rows, draft.parents)

    def _verify(self, parts: list[Slice], drafts: list[Draft], rows: Rows) -> list[Verdict | Exception | None]:
        """A verdict for every sequence that has rows; its error where its own rows are unusable."""
        verdicts: list[Verdict | Exception | None] = []
        for i, (part, draft) in enumerate(zip(parts, drafts, strict=True)):
            sequence = part.sequence
            if not part.is_complete:
                verdicts.append(None)
                continue
            target_rows = [
                Distribution(rows, rows.index(i, row), sequence.params, self.vocabulary_size)
                for row in range(len(draft.tokens) + 1)
            ]
            try:
                verdicts.append(verify(target_rows, draft, sequence.noise, self.rules))
            except NumericalError as error:
                verdicts.append(error)
        judged = [verdict if isinstance(verdict, Verdict) else None for verdict in verdicts]
        self.drafter.observe([part.sequence for part in parts], rows, judged)
        return verdicts

    def _commit(
        self, parts: list[Slice], drafts: list[Draft], verdicts: list[Verdict | Exception | None]
    ) -> list[Delta]:
        rounds = []
        for part, draft, verdict in zip(parts, drafts, verdicts, strict=True):
            if isinstance(verdict, Verdict):
                rounds.append(self._append(part.sequence, draft, verdict))
            elif verdict is not None:
                self._unreported.append(Delta(part.sequence.sequence_id, (), (), "error", verdict))
                self._finish(part.sequence, "error")
        self.policy.update(rounds)
        deltas, self._unreported = self._unreported, []
        return deltas

    def _append(self, sequence: Sequence, draft: Draft, verdict: Verdict) -> Round:
        """Commit what plain decoding would have committed: up to the first stop id, and no further than the limit."""
        num_proposed = len(draft.tokens)
        own: Origin = (
            "decoded" if not num_proposed else "bonus" if verdict.num_accepted == num_proposed else "recovered"
        )
        tokens = [*(draft.tokens[node] for node in verdict.path), verdict.next_token]
        drafted: list[Origin] = ["drafted"] * verdict.num_accepted
        origins = [*drafted, own]
        stop = next((i for i, token in enumerate(tokens) if token in sequence.stop_ids), len(tokens))
        num_kept = min(stop + 1, len(tokens), sequence.limit - len(sequence.tokens))
        tokens, origins = tokens[:num_kept], origins[:num_kept]
        sequence.tokens.extend(tokens)
        # Draft tokens behind a stop or the budget were never in question: they count as neither kept nor rejected.
        num_accepted = min(verdict.num_accepted, num_kept)
        if num_kept <= verdict.num_accepted:
            num_proposed = num_accepted
        finished = Round(sequence.sequence_id, num_proposed, num_accepted, num_kept)
        sequence.statistics.add(finished)
        reason: FinishReason | None = None
        if num_kept > stop:
            reason = "stop"
            if not sequence.params.include_stop_token:
                tokens, origins = tokens[:-1], origins[:-1]
        elif len(sequence.tokens) >= sequence.limit:
            reason = "length"
        self._unreported.append(Delta(sequence.sequence_id, tuple(tokens), tuple(origins), reason))
        if reason is not None:
            self._finish(sequence, reason)
        return finished

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.finish_reason = reason
        self._sequences.pop(sequence.sequence_id, None)
        self.scheduler.remove(sequence)
        self.drafter.release(sequence.sequence_id)
        self.target.free(sequence.sequence_id)

    def _charge(self, parts: list[Slice], draft_s: float, target_s: float, verify_s: float, host_s: float) -> None:
        """Split the pass's seconds evenly among its sequences."""
        for part in parts:
            statistics = part.sequence.statistics
            statistics.draft_s += draft_s / len(parts)
            statistics.target_s += target_s / len(parts)
            statistics.verify_s += verify_s / len(parts)
            statistics.host_s += host_s / len(parts)
