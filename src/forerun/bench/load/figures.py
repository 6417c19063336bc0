"""From the answers of a server's blocks to its figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from forerun.bench.load.block import Block
from forerun.bench.load.check import KINDS, Fault
from forerun.bench.load.client import Answer
from forerun.bench.load.mix import Ask

MOST_SHOWN = 20


def level_figures(blocks: Sequence[Block]) -> dict[str, Any]:
    """Throughput, latencies in milliseconds, errors and memory of all blocks of a server at one level."""
    seconds = sum(block.seconds for block in blocks)
    num_tokens = sum(tokens_of(block) for block in blocks)
    inside = [one for block in blocks for one in block.answers if block.start <= one.sent < block.end]
    done = [one for block in blocks for one in block.answers if one.end == "done" and _ended(block, one)]
    failed = [one for block in blocks for one in block.answers if one.end == "failed"]
    chunk_ms, token_ms, weights = gaps_of(inside)
    own = [block.cpu[0] for block in blocks if block.cpu[0] is not None]
    prompt = sum(one.num_prompt or 0 for one in done)
    return {
        "seconds": seconds,
        "requests": len(done),
        "requests_per_s": len(done) / seconds if seconds else 0.0,
        "tokens": num_tokens,
        "tokens_per_s": num_tokens / seconds if seconds else 0.0,
        "prompt_tokens_per_s": prompt / seconds if seconds else 0.0,
        "time_to_first_token_ms": percentiles([1e3 * (one.arrivals[0] - one.sent) for one in inside if one.arrivals]),
        "request_token_ms": percentiles([ms for one in inside if (ms := request_token_ms(one)) is not None]),
        "token_gap_ms": percentiles(token_ms, weights),
        "chunk_gap_ms": percentiles(chunk_ms),
        "tokens_per_chunk": _tokens_per_chunk(inside),
        "cut": sum(one.end == "cut" for block in blocks for one in block.answers),
        "errors": len(failed),
        "error_examples": [text for text, _ in Counter(one.error or "?" for one in failed).most_common(5)],
        "memory_mb": memory_of(blocks),
        "cpu_cores": {
            "server": sum(own) / seconds if own and seconds else None,
            "clients": sum(block.cpu[1] for block in blocks) / seconds if seconds else None,
        },
        "blocks": [
            {"seconds": block.seconds, "tokens_per_s": tokens_of(block) / block.seconds if block.seconds else 0.0}
            for block in blocks
        ],
    }


def tokens_of(block: Block) -> float:
    """Tokens that arrived between its start and its end."""
    return sum(
        count
        for one in block.answers
        for when, count in zip(one.arrivals, one.tokens_by_chunk, strict=True)
        if block.start <= when < block.end
    )


def request_token_ms(one: Answer) -> float | None:
    """Milliseconds per token after the first chunk of an answer; None where nothing came after it."""
    num_after = sum(one.tokens_by_chunk[1:])
    return 1e3 * (one.arrivals[-1] - one.arrivals[0]) / num_after if num_after > 0 else None


def gaps_of(answers: Sequence[Answer]) -> tuple[list[float], list[float], list[float]]:
    """Gaps between chunks, the same shared out over the tokens of the chunk that ended each, and how many these are."""
    chunk_ms, token_ms, weights = [], [], []
    for one in answers:
        counts = one.tokens_by_chunk
        for place in range(1, len(counts)):
            gap = 1e3 * (one.arrivals[place] - one.arrivals[place - 1])
            chunk_ms.append(gap)
            if counts[place] > 0:
                token_ms.append(gap / counts[place])
                weights.append(counts[place])
    return chunk_ms, token_ms, weights


def percentiles(values: Sequence[float], weights: Sequence[float] | None = None) -> dict[str, Any]:
    """Median, 99th percentile and number of values, each counted `weights` times; None without values."""
    if not values:
        return {"p50": None, "p99": None, "n": 0}
    array = np.asarray(values, dtype=np.float64)
    weight = np.ones(len(array)) if weights is None else np.asarray(weights, dtype=np.float64)
    order = np.argsort(array)
    reached = np.cumsum(weight[order])
    found = [float(array[order][np.searchsorted(reached, share * reached[-1])]) for share in (0.5, 0.99)]
    return {"p50": found[0], "p99": found[1], "n": round(float(reached[-1]))}


def memory_of(blocks: Sequence[Block]) -> dict[str, float] | None:
    """Resident MB at the start, in the middle and at the end of all blocks, and the most; None where unknown."""
    samples = [mb for block in blocks for _, mb in block.memory]
    if not samples:
        return None
    return {"start": samples[0], "mid": samples[len(samples) // 2], "end": samples[-1], "peak": max(samples)}


def text_figures(
    checked: Sequence[tuple[Answer, Fault | None]], asks: Sequence[Ask], must_equal: bool
) -> dict[str, Any]:
    """How many texts are plain decoding's, and what is wrong with the others. Where they need not be, only greedy ones
    that came whole are told of."""
    compared = [
        (one, fault) for one, fault in checked if must_equal or (asks[one.index].seed is None and one.end == "done")
    ]
    faults = [fault for _, fault in compared if fault is not None]
    figures: dict[str, Any] = {
        "must_equal": must_equal,
        "compared": len(compared),
        "equal": len(compared) - len(faults),
        "whole": sum(one.end == "done" for one, _ in compared),
        "tokens": sum(one.num_tokens or 0 for one, _ in compared),
    }
    if must_equal:
        kinds = Counter(fault.kind for fault in faults)
        figures |= {kind: kinds[kind] for kind in KINDS}
        figures["faults"] = [_shown(fault, asks) for fault in faults[:MOST_SHOWN]]
    return figures


def _shown(fault: Fault, asks: Sequence[Ask]) -> dict[str, Any]:
    ask = asks[fault.index]
    return {
        "kind": fault.kind, "request": fault.index, "prompt_kind": ask.kind, "prompt": ask.prompt[-80:],
        "seed": ask.seed, "position": fault.position, "token": fault.token, "detail": fault.detail,
    }  # fmt: skip


def compared_with(figures: Mapping[str, Mapping[str, Any]], first: str) -> dict[str, Any]:
    """Tokens per second of server `first` over each other one's: of each block of a turn, and of all time."""
    found = {}
    for name, figure in figures.items():
        if name == first or not figure["tokens_per_s"]:
            continue
        pairs = zip(figures[first]["blocks"], figure["blocks"], strict=False)
        found[name] = {
            "ratio": figures[first]["tokens_per_s"] / figure["tokens_per_s"],
            "by_block": [
                mine["tokens_per_s"] / theirs["tokens_per_s"] for mine, theirs in pairs if theirs["tokens_per_s"]
            ],
        }
    return found


def _ended(block: Block, one: Answer) -> bool:
    return bool(one.arrivals) and block.start <= one.arrivals[-1] < block.end


def _tokens_per_chunk(answers: Sequence[Answer]) -> float | None:
    chunks = sum(len(one.arrivals) for one in answers)
    return sum(sum(one.tokens_by_chunk) for one in answers) / chunks if chunks else None
