"""Which drafts fit a target's vocabulary, told without weights: a plan recommends no others.

A model whose files are here is compared by its tokenizer, token for token; a registered one that is not here by the
vocabulary that the registry names. A shape (70b@16) has none, and is taken to fit: so is whatever cannot be compared,
and the plan says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forerun.errors import ForerunError, VocabularyMismatchError
from forerun.planning.shapes import parse_shape

if TYPE_CHECKING:
    from forerun.models.tokenizer import Tokenizer

SAME = "same"
"""The verdict on a vocabulary that is the target's."""
UNKNOWN = "unknown"
"""The verdict where nothing tells."""
REMEDY = "choose a draft of the target's own family, or leave it out: copying drafters need none"


def fits(verdict: str) -> bool:
    """Whether a draft with this verdict may be planned with."""
    return verdict in (SAME, UNKNOWN)


def compared(target: Tokenizer, draft: Tokenizer) -> VocabularyMismatchError | None:
    """In what two vocabularies differ; None if in nothing."""
    from forerun.models.vocabulary import require_same_vocabulary

    try:
        require_same_vocabulary(target, draft)
    except VocabularyMismatchError as error:
        return VocabularyMismatchError(error.fact, error.context, REMEDY)
    return None


def told(error: VocabularyMismatchError) -> str:
    """The verdict on a vocabulary that differs."""
    return ". ".join(part for part in (error.fact, error.context) if part)


def verdicts(target: str, drafts: Sequence[str]) -> dict[str, str]:
    """By draft: SAME, UNKNOWN, or in what its vocabulary differs. VocabularyMismatchError where no draft may fit."""
    errors = {draft: _difference(target, draft) for draft in drafts}
    found = {name: one if isinstance(one, str) else told(one) for name, one in errors.items()}
    refused = [one for one in errors.values() if isinstance(one, VocabularyMismatchError)]
    if refused and len(refused) == len(errors):
        raise refused[0]
    return found


def in_words(found: Mapping[str, str]) -> list[str]:
    """A line for each verdict."""
    words = {SAME: "the same as the target", UNKNOWN: "not known here, taken to be the target's"}
    names: dict[str, list[str]] = {}
    for name, verdict in found.items():
        names.setdefault(words.get(verdict, f"{verdict}; left out"), []).append(name)
    return [f"vocabulary of {', '.join(several)}: {verdict}" for verdict, several in names.items()]


def _difference(target: str, draft: str) -> str | VocabularyMismatchError:
    from forerun.models.registry import installed

    paths = [_path(name) for name in (target, draft)]
    if paths[0] is not None and paths[1] is not None:
        from forerun.models.tokenizer import load_tokenizer

        try:
            return compared(load_tokenizer(paths[0]), load_tokenizer(paths[1])) or SAME
        except (ForerunError, OSError):  # what serves it says why, where that matters
            return UNKNOWN
    known = installed()
    names = [known[name].vocabulary if name in known else "" for name in (target, draft)]
    if not all(names):
        return UNKNOWN
    if names[0] == names[1]:
        return SAME
    return VocabularyMismatchError(
        f"target and draft differ: {target} has the vocabulary of {names[0]} and {draft} that of {names[1]}", "", REMEDY
    )


def _path(name: str) -> Path | None:
    """Where the files of a model are, if they are here and it is no shape."""
    from forerun.models.local import local
    from forerun.models.registry import installed

    if parse_shape(name) is not None:
        return None
    known = installed()
    if name in known:
        return known[name].path if known[name].cached else None
    files = local(name)
    return None if files is None else files.path
