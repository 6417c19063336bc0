"""`--logprobs` and `--prompt-logprobs` beside a text: tables on standard error. --json has the same figures in full."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forerun.cli.render import console
from forerun.cli.report import say
from forerun.types import TokenLogprob

if TYPE_CHECKING:
    from forerun.models.tokenizer import Tokenizer


def print_logprobs(title: str, entries: Sequence[TokenLogprob | None] | None, tokenizer: Tokenizer | None) -> None:
    """One line for each token: itself, its id, log probability and rank, and the alternatives. Nothing for None; a
    prompt's first token, which nothing predicts, has no line."""
    from rich.table import Table

    known = [entry for entry in entries or () if entry is not None]
    if entries is None:
        return
    say(f"{title}: {_summary(known)}")
    table = Table(box=None, pad_edge=False)
    for name in ("token", "id", "logprob", "rank", "alternatives"):
        table.add_column(name, justify="left" if name in ("token", "alternatives") else "right", header_style="dim")
    for entry in known:
        others = [f"{_spelled(token, tokenizer)} {value:.3f}" for token, value in entry.top if token != entry.token]
        figures = (str(entry.token), f"{entry.logprob:.3f}", str(entry.rank))
        table.add_row(_spelled(entry.token, tokenizer), *figures, "  ".join(others))
    if known:
        console().print(table)


def _summary(known: Sequence[TokenLogprob]) -> str:
    if not known:
        return "no token has one"
    return f"mean {sum(entry.logprob for entry in known) / len(known):.3f} over {len(known)} tokens"


def _spelled(token: int, tokenizer: Tokenizer | None) -> str:
    """A token as Python would write its text, or its bytes where they are a part of a character."""
    if tokenizer is None or token >= tokenizer.vocabulary_size:
        return f"<{token}>"
    data = tokenizer.token_bytes(token)
    try:
        return repr(data.decode("utf-8"))
    except UnicodeDecodeError:
        return repr(data)
