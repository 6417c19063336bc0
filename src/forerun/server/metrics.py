"""What Prometheus is told: vLLM's counters of speculation under their own names, and forerun's own beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from forerun.control.policy import Load, Policy
from forerun.control.records import Prediction
from forerun.drafting.base import SequenceView
from forerun.result import Result
from forerun.types import Plan, Prospect, Round, Step
from forerun.version import __version__

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

LENGTHS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
SEQUENCES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
PASS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)
FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
REQUEST_S = (0.1, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600)
RATIOS = (0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.4, 2.0, 4.0)

PARTS = ("draft", "target", "verify", "host")
OUTCOMES = ("stop", "length", "cancelled", "deadline", "error")
"""What can end a request that was taken; those that were refused are in forerun_http_responses alone."""
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
FIRST_POSITIONS = 8
"""Positions that are there from the start, so that a rate over them is 0 and not unknown."""


class Metrics:
    """All metrics of one server, in a registry of their own. Labels are vLLM's: model_name and engine ("0").

    Counters move in the thread that steps the engine, and whoever reads `text` may do so from any other. Whatever is
    only looked at when somebody asks is set by `refresh` of whoever owns the engine.
    """

    def __init__(self, model_name: str, with_process: bool = True) -> None:
        self.registry = CollectorRegistry()
        if with_process:
            ProcessCollector(registry=self.registry)
        self._labels = (model_name, "0")
        self._add_speculation()
        self._add_requests()
        self._add_state()

    def _add_speculation(self) -> None:
        self.drafts = self._counter("vllm:spec_decode_num_drafts", "Drafts verified (rounds with k = 0 are none).")
        self.draft_tokens = self._counter("vllm:spec_decode_num_draft_tokens", "Draft tokens verified.")
        self.accepted = self._counter("vllm:spec_decode_num_accepted_tokens", "Draft tokens accepted.")
        self._accepted_at = self._labelled(
            Counter, "vllm:spec_decode_num_accepted_tokens_per_pos", "Draft tokens accepted, by position from 0.",
            "position",
        )  # fmt: skip
        for position in range(FIRST_POSITIONS):
            self._accepted_at.labels(*self._labels, str(position))
        self.passes = self._counter("forerun_passes", "Passes of the target.")
        self._rounds = self._labelled(
            Counter, "forerun_rounds", "Rounds that committed tokens, by what drafted (none: k = 0).", "source"
        )
        self._rounds.labels(*self._labels, "none")
        self.emitted = self._counter("forerun_emitted_tokens", "Tokens committed, the target's own included.")
        self.k = self._histogram("forerun_draft_length", "Draft tokens of each round (the k that was chosen).", LENGTHS)
        self.batch = self._histogram("forerun_batch_sequences", "Sequences of each pass.", SEQUENCES)
        self.rows = self._counter("forerun_rows", "Rows of logits computed: what verification spends.")
        self._seconds = self._labelled(
            Counter, "forerun_round_seconds", "Seconds of passes: drafting, the target, verifying, all else.", "part"
        )
        self._parts = [self._seconds.labels(*self._labels, part) for part in PARTS]
        self.pass_s = self._histogram("forerun_pass_seconds", "Seconds of each pass, drafting included.", PASS_S)
        self.predicted_s = self._counter(
            "forerun_predicted_seconds",
            "Seconds expected of passes (trials, and those that read prompts, left out).",
        )
        self.actual_s = self._counter("forerun_actual_seconds", "Seconds that the same passes took.")
        self.predicted_tokens = self._counter(
            "forerun_predicted_tokens", "Tokens that the policy expected of the same passes."
        )
        self.actual_tokens = self._counter("forerun_actual_tokens", "Tokens that the same passes committed.")
        self.error = self._histogram(
            "forerun_actual_to_predicted", "Seconds that a pass took over those expected (1: as expected).", RATIOS
        )

    def _add_requests(self) -> None:
        self._tokens = self._labelled(
            Counter, "forerun_tokens", "Tokens: of prompts, of these shared (not read again), of completions.", "kind"
        )  # fmt: skip
        for kind in ("prompt", "shared", "completion"):
            self._tokens.labels(*self._labels, kind)
        self._ended = self._labelled(
            Counter, "forerun_requests", f"Requests that have ended, by outcome: {', '.join(OUTCOMES)}.", "outcome"
        )
        for outcome in OUTCOMES:
            self._ended.labels(*self._labels, outcome)
        self._responses = self._labelled(
            Counter, "forerun_http_responses", "HTTP responses (none: the client had gone before there was one).",
            "route", "method", "status",
        )  # fmt: skip
        self.queue_s = self._histogram(
            "forerun_queue_seconds", "From arrival to the pass that began to read the prompt.", FIRST_TOKEN_S
        )
        self.first_s = self._histogram(
            "forerun_time_to_first_token_seconds", "From arrival to the first token.", FIRST_TOKEN_S
        )
        self.token_s = self._histogram(
            "forerun_time_per_output_token_seconds", "Of each text: seconds per token after its first round.", PASS_S
        )
        self.whole_s = self._histogram("forerun_request_seconds", "From arrival to the end.", REQUEST_S)

    def _add_state(self) -> None:
        self.running = self._gauge("forerun_sequences_running", "Sequences that have a place.")
        self.waiting = self._gauge("forerun_sequences_waiting", "Sequences that wait for one.")
        self.places = self._gauge("forerun_sequences_limit", "Places there are.")
        self.held = self._gauge("forerun_requests_held", "Requests that were taken and have not ended.")
        self.held_limit = self._gauge("forerun_requests_limit", "Requests that are held at most; others get 429.")
        about = "Times that a running sequence gave way to others: freed, and read again later."
        self._preempted = self._counter("forerun_preemptions", about)
        self._vllm_preempted = self._counter("vllm:num_preemptions", "The same, by vLLM's name.")
        self._num_preempted = 0
        self.cached = self._gauge("forerun_cached_tokens", "Tokens in the caches of running sequences.")
        self.kept = self._gauge("forerun_kept_tokens", "Tokens in the caches of texts that have ended.")
        self.memory = self._gauge("forerun_memory_bytes", "Resident memory of the process.")
        info = self._labelled(Gauge, "forerun_info", "1, with the version.", "version")
        info.labels(*self._labels, __version__).set(1)

    # -- what happens --------------------------------------------------------------------------------------------------

    def note_step(self, rounds: Sequence[Round], step: Step, prediction: Prediction | None = None) -> None:
        """One pass of the target and what became of its drafts. Rounds with k = 0 are no drafts."""
        self.passes.inc()
        self.batch.observe(step.num_sequences)
        self.rows.inc(step.num_rows)
        seconds = [max(getattr(step, f"{part}_s"), 0.0) for part in PARTS]
        for counter, value in zip(self._parts, seconds, strict=True):
            counter.inc(value)
        self.pass_s.observe(sum(seconds))
        num_emitted = sum(done.num_emitted for done in rounds)
        self.emitted.inc(num_emitted)
        for done in rounds:
            self._note_round(done)
        if prediction is not None and _is_comparable(prediction, step):
            self.predicted_s.inc(prediction.milliseconds / 1e3)
            self.predicted_tokens.inc(prediction.num_tokens)
            self.actual_s.inc(sum(seconds))
            self.actual_tokens.inc(num_emitted)
            self.error.observe(1e3 * sum(seconds) / prediction.milliseconds)

    def _note_round(self, done: Round) -> None:
        self._rounds.labels(*self._labels, (done.source or "unnamed") if done.num_proposed else "none").inc()
        self.k.observe(done.num_proposed)
        if done.num_proposed:
            self.drafts.inc()
            self.draft_tokens.inc(done.num_proposed)
            self.accepted.inc(done.num_accepted)
            for position in range(done.num_accepted):
                self._accepted_at.labels(*self._labels, str(position)).inc()

    def note_preempted(self, num_times: int) -> None:
        """How often sequences have given way, since the beginning."""
        for counter in (self._preempted, self._vllm_preempted):
            counter.inc(num_times - self._num_preempted)
        self._num_preempted = num_times

    def note_prompt(self, num_tokens: int) -> None:
        """A request was taken, with so many prompt tokens."""
        self._tokens.labels(*self._labels, "prompt").inc(num_tokens)

    def note_begin(self, queue_s: float, num_shared: int) -> None:
        """The first pass for a request: seconds since it came, and prompt tokens that had been read for another."""
        self.queue_s.observe(queue_s)
        self._tokens.labels(*self._labels, "shared").inc(num_shared)

    def note_end(
        self, outcome: str, whole_s: float, first_s: float | None = None, result: Result | None = None
    ) -> None:
        """A request has ended. Seconds are since it came; `first_s` is None where nothing was written."""
        self._ended.labels(*self._labels, outcome).inc()
        self.whole_s.observe(whole_s)
        if first_s is not None:
            self.first_s.observe(first_s)
        for one in () if result is None else result.choices:
            self._tokens.labels(*self._labels, "completion").inc(one.usage.completion_tokens)
            if one.usage.tokens_per_s:
                self.token_s.observe(1.0 / one.usage.tokens_per_s)

    def note_response(self, route: str, method: str, status: int) -> None:
        """An HTTP response, status 0 where none was sent. `route` is a path as it is declared, never as it was asked
        for: there must be few labels, and clients may send any method."""
        known = method if method in METHODS else "other"
        self._responses.labels(*self._labels, route, known, str(status or "none")).inc()

    def text(self) -> bytes:
        """The page that Prometheus reads."""
        return generate_latest(self.registry)

    # -- making them ---------------------------------------------------------------------------------------------------

    def _labelled(self, kind: Any, name: str, about: str, *more: str, **settings: Any) -> Any:
        return kind(name, about, ["model_name", "engine", *more], registry=self.registry, **settings)

    def _counter(self, name: str, about: str) -> Any:
        return self._labelled(Counter, name, about).labels(*self._labels)

    def _gauge(self, name: str, about: str) -> Any:
        return self._labelled(Gauge, name, about).labels(*self._labels)

    def _histogram(self, name: str, about: str, buckets: Sequence[float]) -> Any:
        return self._labelled(Histogram, name, about, buckets=buckets).labels(*self._labels)


def _is_comparable(prediction: Prediction, step: Step) -> bool:
    """Whether a pass was what was predicted: not one of the policy's trials, which it makes to learn something, and
    without prompts, of which it predicts no tokens."""
    is_decoding = prediction.plain_tokens == step.num_sequences
    return prediction.purpose != "probe" and is_decoding and prediction.milliseconds > 0


class MeteredPolicy:
    """Plans as another policy does, and has every pass counted."""

    def __init__(self, policy: Policy, metrics: Metrics) -> None:
        self.policy, self._metrics = policy, metrics

    def __repr__(self) -> str:
        return repr(self.policy)

    def plan(
        self, sequences: Sequence[SequenceView], prospects: Sequence[Sequence[Prospect]], load: Load
    ) -> list[Plan]:
        return self.policy.plan(sequences, prospects, load)

    def update(self, rounds: Sequence[Round], step: Step) -> None:
        prediction: Prediction | None = getattr(self.policy, "prediction", None)
        self.policy.update(rounds, step)
        self._metrics.note_step(rounds, step, prediction)

    def release(self, *sequence_ids: int) -> None:
        self.policy.release(*sequence_ids)
