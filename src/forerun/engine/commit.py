"""What a verdict adds to a sequence: the tokens that plain decoding would have committed, and no others."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from forerun.engine.sequence import Sequence
from forerun.errors import UserCodeError
from forerun.runtime.base import Rows
from forerun.sampling import Distribution, raw_logprob, token_logprob
from forerun.topology import children_of, depths_of
from forerun.types import Delta, Draft, FinishReason, Origin, Round, TokenLogprob, Verdict


def commit(sequence: Sequence, draft: Draft, verdict: Verdict, rows: Seq[Distribution]) -> tuple[Round, Delta]:
    """Append accepted draft tokens and the target's own token, up to the first that ends the text and no further than
    the limit. `rows[i + 1]` is the distribution after node i, `rows[0]` that after the committed text."""
    path, followers = verdict.path, children_of(draft)
    at_end = followers[path[-1] + 1 if path else 0]
    own: Origin = "decoded" if not draft.tokens else "recovered" if at_end else "bonus"
    drafted: list[Origin] = ["drafted"] * len(path)
    origins = [*drafted, own]
    own_token = [] if verdict.next_token is None else [verdict.next_token]
    tokens, reason, error = _up_to_end(sequence, [*(draft.tokens[node] for node in path), *own_token])
    logprobs = _logprobs(sequence, tokens, [rows[0], *(rows[node + 1] for node in path)])
    # From here on things change. What may fail or be interrupted comes before: the round is then simply done again.
    tokens, reason = _watched(sequence, tokens, reason, error)
    num_kept = len(tokens)
    sequence.tokens.extend(tokens)
    if sequence.params.ranks_choices:
        sequence.sum_logprob += sum(entry.logprob for entry in logprobs[:num_kept])
    finished = _round(sequence.sequence_id, draft, path, followers, num_kept)
    sequence.statistics.add(finished)
    num_delivered = num_kept - (sequence.stop_token is not None and not sequence.params.include_stop_token)
    delta = Delta(
        sequence.sequence_id,
        tuple(tokens[:num_delivered]),
        tuple(origins[:num_delivered]),
        reason,
        error if reason == "error" else None,
        None if sequence.params.logprobs is None else tuple(logprobs[:num_delivered]),
    )
    return finished, delta


def _round(sequence_id: int, draft: Draft, path: tuple[int, ...], followers: list[list[int]], num_kept: int) -> Round:
    """What became of a draft of which `num_kept` tokens were committed, the target's own included. Draft tokens behind
    an end or the budget, and beside those, were never in question: they count as neither kept nor rejected."""
    kept = path[:num_kept]
    is_cut = num_kept <= len(path)
    depths = [depth for depth in depths_of(draft) if not is_cut or depth <= num_kept]
    num_proposed = len(depths)
    reached = [followers[node + 1] for node in (-1, *kept)]  # the children that were looked at behind each
    reached = reached[: len(kept) if is_cut else len(kept) + bool(reached[-1])]
    ranks = tuple(children.index(node) for node, children in zip(kept, reached, strict=False))
    confidences = draft.confidences[: max(num_proposed - draft.num_free, 0)]
    if draft.parents is not None:  # of the nodes that were examined, one for each row that was drawn from
        seen = [children[rank] for rank, children in zip((*ranks, 0), reached, strict=False)]
        confidences = tuple(draft.confidences[node] for node in seen if node < len(draft.confidences))
    return Round(
        sequence_id, num_proposed, len(kept), num_kept, draft.source, confidences, ranks,
        tuple(len(children) for children in reached), draft.num_free, max(depths, default=0),
    )  # fmt: skip


def _up_to_end(sequence: Sequence, tokens: list[int]) -> tuple[list[int], FinishReason | None, UserCodeError | None]:
    """The tokens up to a stop id, the end of a grammar or the limit, and why they end; an error instead where a
    grammar fails at the last of them, which counts if no stop string comes before."""
    room = sequence.limit - len(sequence.tokens)
    for num, token in enumerate(tokens[:room], start=1):
        try:
            if token in sequence.stop_ids or sequence.processing.ends_after(tuple(tokens[:num])):
                return tokens[:num], "stop", None
        except UserCodeError as error:
            return tokens[:num], None, error
    return tokens[:room], "length" if len(tokens) >= room else None, None


def _watched(
    sequence: Sequence, tokens: list[int], reason: FinishReason | None, error: UserCodeError | None
) -> tuple[list[int], FinishReason | None]:
    """Show the tokens to the sequence's watch; they end with the one that completes a stop string. A stop id is shown
    if it is delivered, and may complete one too. Where a grammar failed, what came before is kept, as if it had been
    committed in a round of its own."""
    if error is not None:
        if len(tokens) == 1:
            raise error
        tokens, reason = tokens[:-1], "error"
    for num, token in enumerate(tokens, start=1):
        is_stop = token in sequence.stop_ids
        if is_stop:
            sequence.stop_token = token
        is_delivered = not is_stop or sequence.params.include_stop_token
        if is_delivered and sequence.watch is not None and sequence.watch(token):
            return tokens[:num], "stop"
    return tokens, reason


def _logprobs(sequence: Sequence, tokens: list[int], rows: Seq[Distribution]) -> list[TokenLogprob]:
    """One entry for each token, if anybody asks for them."""
    params = sequence.params
    if params.logprobs is None and not params.ranks_choices:
        return []
    return [
        token_logprob(row, token, params.logprobs or 0, params.logprobs_kind)
        for token, row in zip(tokens, rows, strict=False)
    ]


def score_prompt(sequence: Sequence, start: int, rows: Rows, first: int, num_rows: int) -> None:
    """Take in the log probabilities of prompt tokens from a pass that fed them: row `first + i` follows token
    `start + i`. One row is reduced at a time, and only the asked-for figures are kept."""
    found = sequence.prompt_logprobs
    if found is None:
        return
    for offset in range(num_rows):
        position = start + offset + 1
        if position == len(found) and position < sequence.prompt_length:
            logits = rows.matrix[first + offset, : sequence.vocabulary_size]
            found.append(raw_logprob(logits, sequence.tokens[position], sequence.params.prompt_logprobs or 0))
