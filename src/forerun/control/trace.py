"""A policy that explains itself: one line of JSON for every pass, with what was chosen, predicted and found."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from forerun.control.policy import Load, Policy
from forerun.control.records import Prediction
from forerun.drafting.base import SequenceView
from forerun.types import Plan, Prospect, Round, Step

TRACE_BEGINS = '{"pass": '


class TracedPolicy:
    """Plans as `policy` does and hands `write` a line (ending in a newline) after every pass; `close` is called when
    nothing more will come.

    {"pass": number, "sequences": [{"id", "length", "source", "k", "read", "offered", "proposed", "accepted",
    "emitted"}], "predicted": {"milliseconds", "num_tokens", "plain_ms", "plain_tokens", "purpose"} or null for a policy
    that predicts nothing, "actual": {"milliseconds", "num_tokens", "draft_ms", "target_ms", "verify_ms", "host_ms"}}.
    `offered` are the sources that could have drafted, with the most tokens that each could; `k` the most that the one
    chosen may draft, `proposed` how much it did: a gate, or a source that has no more, ends a draft before k. Times are
    in milliseconds.
    """

    def __init__(
        self, policy: Policy, write: Callable[[str], object], close: Callable[[], object] = lambda: None
    ) -> None:
        self.policy, self._write, self._close = policy, write, close
        self._num_passes = 0
        self._planned: list[dict[str, Any]] = []

    def __repr__(self) -> str:
        return f"TracedPolicy({self.policy!r})"

    def close(self) -> None:
        """Nothing more comes: `LLM.close` calls it."""
        self._close()

    def plan(
        self, sequences: Sequence[SequenceView], prospects: Sequence[Sequence[Prospect]], load: Load
    ) -> list[Plan]:
        plans = self.policy.plan(sequences, prospects, load)
        self._planned = [
            {
                "id": sequence.sequence_id,
                "length": len(sequence.tokens),
                "source": plan.source,
                "k": plan.shape,
                "read": plan.read,
                "offered": {prospect.source: prospect.longest for prospect in offered},
                "proposed": 0,
                "accepted": 0,
                "emitted": 0,
            }
            for sequence, plan, offered in zip(sequences, plans, prospects, strict=True)
        ]
        return plans

    def release(self, *sequence_ids: int) -> None:
        self.policy.release(*sequence_ids)

    def update(self, rounds: Sequence[Round], step: Step) -> None:
        prediction: Prediction | None = getattr(self.policy, "prediction", None)
        self.policy.update(rounds, step)
        found = {done.sequence_id: done for done in rounds}
        for planned in self._planned:
            done = found.get(planned["id"])
            if done is not None:
                planned |= {
                    "proposed": done.num_proposed, "accepted": done.num_accepted, "emitted": done.num_emitted
                }  # fmt: skip
        parts = {f"{part}_ms": 1e3 * getattr(step, f"{part}_s") for part in ("draft", "target", "verify", "host")}
        line = {
            "pass": self._num_passes,
            "sequences": self._planned,
            "predicted": None if prediction is None else asdict(prediction),
            "actual": {
                "milliseconds": sum(parts.values()),
                "num_tokens": sum(done.num_emitted for done in rounds),
                **parts,
            },
        }
        self._num_passes += 1
        self._write(json.dumps(line) + "\n")
