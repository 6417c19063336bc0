"""What Prometheus is told: vLLM's counters of speculation under their own names, and forerun's own beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from forerun.types import Round, Step

FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
PER_TOKEN_S = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)
REQUEST_S = (0.1, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600)
POSITIONS = 32
"""Positions of a draft that are counted each; deeper ones are counted with the last."""


class Metrics:
    """All metrics of one server, in a registry of their own. Labels are vLLM's: model_name and engine ("0")."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"model_name": model_name, "engine": "0"}

        def counter(name: str, text: str, *more: str) -> Any:
            return Counter(name, text, ["model_name", "engine", *more], registry=self.registry)

        def gauge(name: str, text: str) -> Any:
            return Gauge(name, text, ["model_name", "engine"], registry=self.registry).labels(**self._labels)

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Any:
            return Histogram(
                name, text, ["model_name", "engine"], buckets=buckets, registry=self.registry
            ).labels(**self._labels)  # fmt: skip

        self.drafts = counter("vllm:spec_decode_num_drafts", "Drafts that were verified.").labels(**self._labels)
        self.draft_tokens = counter("vllm:spec_decode_num_draft_tokens", "Draft tokens verified.").labels(**self._labels)
        self.accepted = counter("vllm:spec_decode_num_accepted_tokens", "Draft tokens accepted.").labels(**self._labels)
        self._at = counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos", "Draft tokens accepted, by position (from 0).", "position"
        )
        self._positions = [self._at.labels(**self._labels, position=str(place)) for place in range(POSITIONS)]
        self.passes = counter("forerun_passes", "Passes of the target.").labels(**self._labels)
        self.rounds = counter("forerun_rounds", "Rounds of sequences, by source of the draft (none: k = 0).", "source")
        self.tokens = counter("forerun_tokens", "Tokens, by kind.", "kind")
        self.requests = counter("forerun_requests", "Requests that have ended, by what ended them.", "reason")
        self.seconds = counter("forerun_seconds", "Seconds of rounds, by part.", "part")
        self.predicted_s = counter("forerun_predicted_seconds", "Seconds that passes were predicted to take.").labels(
            **self._labels
        )
        self.predicted_tokens = counter(
            "forerun_predicted_tokens", "Tokens that passes were predicted to commit."
        ).labels(**self._labels)
        self.k = histogram("forerun_draft_length", "Draft tokens of each round.", (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32))
        self.batch = histogram("forerun_batch_size", "Sequences of each pass.", (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64))
        self.first_s = histogram("forerun_time_to_first_token_seconds", "From arrival to the first token.", FIRST_TOKEN_S)
        self.token_s = histogram("forerun_time_per_output_token_seconds", "Per token after the first.", PER_TOKEN_S)
        self.whole_s = histogram("forerun_request_seconds", "From arrival to the end.", REQUEST_S)
        self.queue_s = histogram("forerun_queue_seconds", "From arrival to the first pass.", FIRST_TOKEN_S)
        self.running = gauge("forerun_requests_running", "Sequences that run.")
        self.waiting = gauge("forerun_requests_waiting", "Sequences that wait for a place.")
        self.cached = gauge("forerun_cached_tokens", "Tokens in the caches of running sequences.")
        self.kept = gauge("forerun_kept_tokens", "Tokens in the caches of texts that have ended.")
        self.memory = gauge("forerun_memory_bytes", "Resident memory of the process.")

    def note_step(self, rounds: Sequence[Round], step: Step) -> None:
        """One pass of the target and what became of its drafts. Rounds with k = 0 are no drafts."""
        self.passes.inc()
        self.batch.observe(step.num_sequences)
        for name in ("draft", "target", "verify", "host"):
            self.seconds.labels(**self._labels, part=name).inc(max(getattr(step, f"{name}_s"), 0.0))
        for done in rounds:
            self.rounds.labels(**self._labels, source=done.source if done.num_proposed else "none").inc()
            self.k.observe(done.num_proposed)
            if done.num_proposed:
                self.drafts.inc()
                self.draft_tokens.inc(done.num_proposed)
                self.accepted.inc(done.num_accepted)
                for place in range(done.num_accepted):
                    self._positions[min(place, POSITIONS - 1)].inc()

    def count(self, kind: str, number: int) -> None:
        """Tokens of a kind: prompt, shared (of a prompt, read for another) or completion."""
        if number:
            self.tokens.labels(**self._labels, kind=kind).inc(number)

    def note_end(self, reason: str) -> None:
        self.requests.labels(**self._labels, reason=reason).inc()

    def text(self) -> bytes:
        """The page that Prometheus reads."""
        return generate_latest(self.registry)
