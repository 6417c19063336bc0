"""Whether two tokenizers number the same tokens: the condition for one model to draft for another.

A draft proposes ids and the target reads them, so what has to agree is what each id stands for. Compared are, token
by token, the bytes and whether it is a control token, and then the order of merges: a draft that cuts text otherwise
was trained on other ids for the same text. Not compared are rows beyond the real vocabulary, which never name a token,
and what goes around a prompt (BOS): the draft is always fed the target's own ids. Whether a token is a control token
is compared between files of one kind only, since GGUF converters and transformers mark some tokens differently.
"""

from __future__ import annotations

import json

from forerun.errors import VocabularyMismatchError
from forerun.models.tokenizer import Tokenizer

REMEDY = "choose a draft of the target's own family, or draft by lookup (--drafter lookup)"


def require_same_vocabulary(target: Tokenizer, draft: Tokenizer) -> None:
    """Raise VocabularyMismatchError, naming the first differing id and both of its tokens, unless they agree."""
    same_kind = target.parts.source == draft.parts.source and target.parts.style == draft.parts.style
    texts, others = target.parts.backend.to_str(), draft.parts.backend.to_str()
    marks = [(one.vocabulary_size, one.parts.control_ids, one.parts.added_ids) for one in (target, draft)]
    if same_kind and texts == others and marks[0] == marks[1]:
        return
    for index in range(max(target.vocabulary_size, draft.vocabulary_size)):
        if _meaning(target, index, same_kind) != _meaning(draft, index, same_kind):
            one, other = _shown(target, index, same_kind), _shown(draft, index, same_kind)
            raise VocabularyMismatchError(
                f"target and draft differ: id {index} is {one} in the target and {other} in the draft",
                f"the target has {target.vocabulary_size:,} tokens and the draft {draft.vocabulary_size:,}",
                REMEDY,
            )
    if same_kind:
        _require_same_merges(target, texts, others)


def _meaning(tokenizer: Tokenizer, index: int, with_role: bool) -> tuple[bytes, bool] | None:
    """What an id stands for: its bytes, and whether it is a control token; None beyond the real vocabulary."""
    if index >= tokenizer.vocabulary_size:
        return None
    return tokenizer.token_bytes(index), with_role and index in tokenizer.parts.control_ids


def _shown(tokenizer: Tokenizer, index: int, with_role: bool) -> str:
    meaning = _meaning(tokenizer, index, with_role)
    if meaning is None:
        return "no token"
    try:
        text = repr(meaning[0].decode("utf-8"))
    except UnicodeDecodeError:
        text = repr(meaning[0])
    return f"the control token {text}" if meaning[1] else text


def _require_same_merges(target: Tokenizer, text: str, other: str) -> None:
    """Both lists in order; the first pair that differs names the token it makes in the target."""
    merges, others = (json.loads(one)["model"].get("merges") or [] for one in (text, other))
    if merges == others:
        return
    index = next(
        (i for i, (a, b) in enumerate(zip(merges, others, strict=False)) if a != b), min(len(merges), len(others))
    )
    one, two = (repr(pairs[index]) if index < len(pairs) else "none" for pairs in (merges, others))
    longer = merges if index < len(merges) else others
    pair = longer[index] if isinstance(longer[index], list) else longer[index].split(" ", 1)
    token = "".join(pair)
    raise VocabularyMismatchError(
        f"target and draft cut text differently: merge {index} is {one} in the target and {two} in the draft",
        f"it makes token {target.parts.backend.token_to_id(token)}, {token!r}",
        REMEDY,
    )
