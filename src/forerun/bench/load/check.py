"""Is a text that came over HTTP plain decoding's? If not: what was lost, came twice, or is another's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forerun.bench.load.client import Answer
from forerun.bench.load.texts import Plain

KINDS = ("lost", "duplicated", "crossed", "differing", "miscounted")
SAMPLE = 24
"""Characters by which somebody else's text is recognised."""
MIN_SAMPLE = 12


@dataclass(frozen=True, slots=True)
class Fault:
    """A text that is not as it must be: what is wrong from character `position`, of token `token`, on."""

    kind: str
    index: int
    position: int
    token: int
    detail: str


def check(answer: Answer, plain: Plain, others: Mapping[int, Plain]) -> Fault | None:
    """None where the answer is plain decoding's, or as much of it as came before it was cut. `others` are the plain
    texts of all requests. Answers that failed are not asked about."""
    is_cut = answer.end == "cut"
    if len(answer.ids) > 1:
        return _fault("crossed", answer, plain, 0, f"chunks of {len(answer.ids)} answers in one stream")
    if answer.text != plain.text and not (is_cut and plain.text.startswith(answer.text)):
        return _difference(answer, plain, others)
    if is_cut:
        return None
    if answer.num_tokens is not None and answer.num_tokens != plain.num_tokens:
        detail = f"{answer.num_tokens} tokens instead of {plain.num_tokens}"
        return _fault("miscounted", answer, plain, len(plain.text), detail)
    if answer.finish_reason != plain.finish_reason:
        detail = f"ended by {answer.finish_reason!r} instead of {plain.finish_reason!r}"
        return _fault("differing", answer, plain, len(plain.text), detail)
    return None


def _difference(answer: Answer, plain: Plain, others: Mapping[int, Plain]) -> Fault:
    got, want = answer.text, plain.text
    at = _num_common(got, want)
    rest, due = got[at:], want[at:]
    if _is_end(rest, due, answer.end == "cut"):
        hole = len(due) - len(rest) if answer.end != "cut" else due.find(rest)
        return _fault("lost", answer, plain, at, f"{due[:hole]!r} is missing")
    if answer.end != "cut" and rest.endswith(due):
        more = rest[: len(rest) - len(due)]
        if want[:at].endswith(more) or due.startswith(more):
            return _fault("duplicated", answer, plain, at, f"{more!r} came twice")
    sample = rest[:SAMPLE]
    if len(sample) >= MIN_SAMPLE and sample not in want:
        for index, other in others.items():
            if index != answer.index and sample in other.text:
                return _fault("crossed", answer, plain, at, f"{sample!r} is of request {index}")
    return _fault("differing", answer, plain, at, f"{rest[:SAMPLE]!r} instead of {due[:SAMPLE]!r}")


def _num_common(one: str, other: str) -> int:
    """Characters at the beginning that two texts have in common."""
    differing = (at for at, (mine, theirs) in enumerate(zip(one, other, strict=False)) if mine != theirs)
    return next(differing, min(len(one), len(other)))


def _is_end(rest: str, due: str, is_cut: bool) -> bool:
    """Whether the text goes on where the plain one does a little later."""
    if is_cut:
        return len(rest) >= MIN_SAMPLE and rest in due
    return len(rest) < len(due) and due.endswith(rest)


def _fault(kind: str, answer: Answer, plain: Plain, position: int, detail: str) -> Fault:
    return Fault(kind, answer.index, position, plain.token_at(position), detail)


def check_all(answers: Sequence[Answer], plain: Mapping[int, Plain]) -> list[tuple[Answer, Fault | None]]:
    """Every answer that did not fail, with what is wrong with it."""
    return [(one, check(one, plain[one.index], plain)) for one in answers if one.end != "failed"]
