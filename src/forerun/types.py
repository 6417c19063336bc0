"""The frozen records that flow between the layers. They hold values, never behaviour that touches a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from forerun.sampling import Distribution

Array = Any
"""A numpy array, or a torch tensor where rows live on a GPU; used through the array API standard."""

Origin = Literal["prompt", "drafted", "recovered", "bonus", "decoded"]
"""Where a committed token came from. drafted: an accepted draft token; recovered: the target's own token after
a rejection; bonus: the target's own token after all k were accepted; decoded: from a round without a draft."""

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive new tokens of one sequence, to be fed to a model in one pass.

    `start` is the absolute position of `tokens[0]` and must equal the model's cached length. Logits are wanted
    for the last `num_rows` tokens (0: only fill the cache). `parents` is for tree drafts, None for a chain.
    """

    sequence_id: int
    start: int
    tokens: Sequence[int]
    num_rows: int
    parents: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens of one sequence.

    kind "sampled": `tokens[i]` was drawn from `rows[i]` (q, [vocab]) with randomness the verifier does not see; of
    several children of one node, in their order, each from q without the ones before it, normalised. kind
    "deterministic": the tokens are a fixed function of what is committed (and, in seeded mode, of the shared Gumbel
    noise); no q is needed.

    `parents[i]` is the node that token i follows, -1 for the committed text, for tree drafts; None for a chain.
    `source` is the prospect it came from. A draft model that extended another source's tokens drew those behind the
    first `num_free`; `confidences[i]` is the raw probability of the likeliest token of the row that token
    `num_free + i` was drawn from. Tokens that no model drew have none.
    """

    tokens: tuple[int, ...] = ()
    kind: Literal["sampled", "deterministic"] = "deterministic"
    rows: tuple[Distribution, ...] | None = None
    parents: tuple[int, ...] | None = None
    source: str = ""
    confidences: tuple[float, ...] = ()
    num_free: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification decided: the accepted nodes from root to leaf (a chain's are 0..n-1) and the target's own
    next token (bonus if everything was accepted, recovered otherwise), None where the row after an accepted path is
    unusable: the next round ends the request there."""

    path: tuple[int, ...]
    next_token: int | None

    @property
    def num_accepted(self) -> int:
        """Accepted draft tokens."""
        return len(self.path)


Gate = Callable[[Sequence[float]], bool]
"""Whether a draft goes on after its last token, from the confidences of all tokens that its model drew. It sees rows
whose token was drawn and never a token, so ending a draft by it conditions on nothing that is dropped. Of a tree it
sees the path of first children."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """What a source could draft for a sequence in the coming round, told for next to nothing and before any drafting:
    a function of committed tokens alone.

    `longest` draft tokens at most, the first `num_free` of which cost no pass of a draft model; each further one costs
    one. Before the first of those passes the draft model has to read `num_unread` tokens of the text beyond the last
    one (its catch-up: the prompt for a new sequence); `num_cut` tokens before those that it has read or is to read are
    not in its view, though they could be (`Plan.whole`). `context` says what is known beforehand of how well it will
    do, and acceptance is learnt for each context apart; `expected[i]` is the source's own guess at the acceptance of
    token i given those before it, () where it has none. `trees` says whether it takes plans with a tree; `longest` is
    how deep one may be.
    """

    source: str
    longest: int
    num_free: int = 0
    num_unread: int = 0
    num_cut: int = 0
    context: str = ""
    expected: tuple[float, ...] = ()
    trees: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """A policy's choice for one sequence and one round: draft `shape` tokens (the speculation length k; 0 is legal)
    from `source` (a prospect's; None: the drafter chooses).

    `tree[i]` is the node that token i is to follow (-1: the committed text), parents first, for a tree of `shape`
    nodes; None for a chain. Its nodes and their order are part of the plan: they may depend on what is known before the
    round and never on what is drafted. `gate` may end a draft early. `most_unread`, if given, is how many tokens of
    the text a draft model may read for it: where more are unread its cache begins anew with the latest of them; `whole`
    has a cache that begins late begin anew with the first token. `read`, with shape 0, has it read up to so many tokens
    and draft nothing: a long text, in pieces.
    """

    shape: int = 0
    source: str | None = None
    tree: tuple[int, ...] | None = None
    gate: Gate | None = None
    most_unread: int | None = None
    whole: bool = False
    read: int = 0


@dataclass(frozen=True, slots=True)
class Round:
    """One finished round of one sequence, as policies and statistics see it.

    `num_proposed` draft tokens were verified, `num_accepted` of them were committed, `num_emitted` tokens were
    committed in all. Tokens cut off by a stop or a budget are in none of these.

    `source`, `num_free` and `confidences` are the draft's, of all its tokens: those behind the first that was rejected
    say how sure the draft model was, too (of a tree, of the nodes that were examined). `ranks[d]` is which child of its
    parent the accepted node at depth d was, from 0, and `widths[d]` how many children there were; a last width without
    a rank is a node all of whose children were rejected. So `len(widths)` depths were examined and `len(ranks)`
    accepted. Of a chain every rank is 0 and every width 1. Of a tree every node was proposed, up to the depth at which
    the text ended. `depth` is how deep the draft was: of a chain `num_proposed`.
    """

    sequence_id: int
    num_proposed: int
    num_accepted: int
    num_emitted: int
    source: str = ""
    confidences: tuple[float, ...] = ()
    ranks: tuple[int, ...] = ()
    widths: tuple[int, ...] = ()
    num_free: int = 0
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """What one step of the engine did and took. `num_tokens` were fed to the target, for `num_sequences` sequences that
    had `num_cached` tokens cached between them; `num_rows` rows of logits came back."""

    num_sequences: int
    num_tokens: int
    num_rows: int
    num_cached: int
    draft_s: float
    target_s: float
    verify_s: float
    host_s: float


LogprobsKind = Literal["raw", "processed"]
"""Whose log probabilities: the model's own distribution, or the one that the token was drawn from."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The natural log of a token's probability, never above 0; `rank` 1 is the row's likeliest token. `top` holds the
    likeliest tokens that were asked for as (token, log probability), best first, and then `token` if it is not one."""

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step committed to one sequence. `finish_reason` is None while it goes on; `error` with "error".
    `logprobs` has one entry for each token if the request asked for them."""

    sequence_id: int
    tokens: tuple[int, ...]
    origins: tuple[Origin, ...]
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a model can do. `context_length` in tokens, None if unbounded; `vocabulary_size` is the width of its
    rows, which may be padded beyond the real vocabulary or cut short (a draft with a smaller head); ids below
    `num_embeddings` can be fed (None: `vocabulary_size`)."""

    context_length: int | None
    vocabulary_size: int
    num_embeddings: int | None = None
    trees: bool = False
    features: tuple[str, ...] = ()
    device: str = "cpu"

    @property
    def num_inputs(self) -> int:
        """Ids that can be fed: 0..num_inputs - 1."""
        return self.num_embeddings if self.num_embeddings is not None else self.vocabulary_size


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Measured milliseconds of one pass: `milliseconds[rows]` at `context` cached tokens."""

    context: int
    milliseconds: dict[int, float]

    def at(self, rows: int) -> float:
        """Milliseconds of a pass of `rows` rows, at least 1: on straight lines between what was measured, and on the
        last of them beyond it; as many as the fewest measured below it. ValueError where nothing was measured."""
        if rows < 1 or not self.milliseconds:
            raise ValueError(f"no cost of {rows} rows can be told from {len(self.milliseconds)} measured points")
        known = sorted(self.milliseconds)
        if rows <= known[0] or len(known) == 1:
            return self.milliseconds[known[0]]
        right = next((i for i, count in enumerate(known) if count >= rows), len(known) - 1)
        low, high = known[right - 1], known[right]
        share = (rows - low) / (high - low)
        return self.milliseconds[low] + share * (self.milliseconds[high] - self.milliseconds[low])
