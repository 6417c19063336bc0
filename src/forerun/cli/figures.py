"""Figures of a whole request, whatever its number of texts."""

from __future__ import annotations

from dataclasses import replace

from forerun.engine.statistics import Statistics
from forerun.result import Result


def together(result: Result) -> Result:
    """The figures of all texts as if they were one: tokens and rounds added up, the mean of the texts' tokens per
    second, the shortest time to a first token. The text is the first one's."""
    if not result.others:
        return result
    usages = [one.usage for one in result.choices]
    rates = [usage.tokens_per_s for usage in usages if usage.tokens_per_s is not None]
    firsts = [usage.time_to_first_token_s for usage in usages if usage.time_to_first_token_s is not None]
    usage = replace(
        result.usage,
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        tokens_per_s=sum(rates) / len(rates) if rates else None,
        time_to_first_token_s=min(firsts, default=None),
    )
    origins = tuple(origin for one in result.choices for origin in one.origins)
    return replace(
        result, usage=usage, origins=origins, speculation=_added([one.speculation for one in result.choices])
    )


def _added(parts: list[Statistics]) -> Statistics:
    total = Statistics()
    for part in parts:
        total.rounds.update(part.rounds)
        total.depths.update(part.depths)
        total.num_emitted += part.num_emitted
        total.draft_s += part.draft_s
        total.target_s += part.target_s
        total.verify_s += part.verify_s
        total.host_s += part.host_s
    return total


def ended(result: Result) -> str:
    """Why a text ended, with the stop string or token id that did it."""
    reason = result.stop_reason
    if reason is None:
        return result.finish_reason
    return f"{result.finish_reason} at {f'token id {reason}' if isinstance(reason, int) else repr(reason)}"
