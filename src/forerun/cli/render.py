"""What a person sees: streamed text, coloured by origin if asked, and the closing tables on standard error."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO, get_args

from forerun.cli.figures import ended, together
from forerun.cli.report import say
from forerun.result import Piece, Result
from forerun.types import Origin

if TYPE_CHECKING:
    from rich.console import Console

    from forerun.cli.compare import Comparison

COLOURS = {"drafted": ("32", "green"), "recovered": ("33", "yellow"), "bonus": ("36", "cyan"), "decoded": ("", "")}
"""Origin -> (ANSI code, rich style). Tokens from rounds without a draft keep the terminal's own colour."""

WIDE = 1000
"""Columns of what is not a terminal: a row stays a line."""

_VISIBLE = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_VISIBLE |= {0x7F: 0x2421, **dict.fromkeys(range(0x80, 0xA0), 0xFFFD)}
"""Control characters as symbols: a model's output must not steer the terminal."""


class TextOutput:
    """Writes pieces to standard output as they come.

    Redirected, it writes exactly the text, in UTF-8 with its own line ends. On a terminal, control characters are
    shown as symbols, tokens are coloured if `by_origin`, and the text is followed by a line end. Text that was held
    back has the colour of the token that released it, or of the last token where the end did.
    """

    def __init__(self, stream: TextIO, by_origin: bool = False) -> None:
        self._stream = stream
        self.is_terminal = stream.isatty()
        self.has_colours = by_origin and self.is_terminal and _wants_colour()
        self._owes_line_end = False
        self._code = ""
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            if self.is_terminal:
                reconfigure(errors="replace")
            else:
                reconfigure(encoding="utf-8", newline="\n")

    def show(self, piece: Piece) -> None:
        """Write one piece's text, at once."""
        text = piece.text
        if piece.origin is not None and self.has_colours:
            self._code = COLOURS.get(piece.origin, ("", ""))[0]
        if not text:
            return
        self._owes_line_end = False  # should this write fail, nothing more is owed to anybody
        if self.is_terminal:
            text = text.translate(_VISIBLE)
        self._stream.write(f"\x1b[{self._code}m{text}\x1b[0m" if self._code else text)
        self._stream.flush()
        self._owes_line_end = not text.endswith("\n")

    def end(self) -> None:
        """Let what follows begin on a line of its own; a redirected text gets nothing that is not text."""
        if self._owes_line_end:
            stream = self._stream if self.is_terminal else sys.stderr
            stream.write("\n")
            stream.flush()
        self._owes_line_end = False

    def end_line(self) -> None:
        """End one text of several: redirected, with a line end of ours whatever the text ends with."""
        if not self.is_terminal:
            self._stream.write("\n")
            self._stream.flush()
            self._owes_line_end = False
        self.end()


class CountOutput:
    """Shows on one line of a terminal how many tokens there are: for a run whose text nobody needs twice.

    A line that is rewritten per token, and no spinner: a thread that draws would slow what is being timed.
    """

    def __init__(self, label: str) -> None:
        self._label, self._num_tokens = label, 0
        self._is_terminal = sys.stderr.isatty()
        if not self._is_terminal:
            say(f"{label} ...")

    def show(self, piece: Piece) -> None:
        """Count one piece."""
        self._num_tokens += piece.token is not None
        if self._is_terminal:
            sys.stderr.write(f"\r{self._label}: {self._num_tokens} tokens")
            sys.stderr.flush()

    def end(self) -> None:
        """Leave the line as it stands."""
        if self._is_terminal and self._num_tokens:
            say("")


def print_summary(result: Result, legend: TextOutput | None = None) -> None:
    """The closing table, over all texts; `legend` (where tokens were coloured) adds how many tokens came from where."""
    total = together(result)
    print_rows([*_rows(total), *([_legend(total, legend.has_colours)] if legend is not None else [])])


def print_comparison(comparison: Comparison) -> None:
    """Both runs side by side, and what the reader should conclude."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("", "speculative", "plain"):
        table.add_column(title, justify="left" if not title else "right")
    pair = [together(result).usage for result in (comparison.speculative, comparison.plain)]
    table.add_row(_rate_name(comparison.plain), *(_number(usage.tokens_per_s) for usage in pair))
    table.add_row("first token", *(_seconds(usage.time_to_first_token_s) for usage in pair))
    table.add_row("tokens", *(str(usage.completion_tokens) for usage in pair))
    console().print(table)
    say(comparison.conclusion)


def print_rows(rows: Sequence[tuple[str, Any]]) -> None:
    """A table of names and values on standard error."""
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, value in rows:
        table.add_row(name, value)
    console().print(table)


def console() -> Console:
    """Standard error as it is now (tests and shells replace it); colour as the terminal and NO_COLOR allow."""
    from rich.console import Console

    width = None if sys.stderr.isatty() else WIDE
    return Console(file=sys.stderr, highlight=False, markup=False, emoji=False, width=width)


def one_line(result: Result) -> str:
    """Tokens, speed and tokens per pass in a few words."""
    parts = [f"{result.usage.completion_tokens} tokens"]
    if result.usage.tokens_per_s is not None:
        parts.append(f"{result.usage.tokens_per_s:.1f} tokens/s")
    if result.speculation.num_proposed and result.speculation.tokens_per_pass is not None:
        parts.append(f"{result.speculation.tokens_per_pass:.2f} tokens per pass")
    return ", ".join(parts)


def _rows(result: Result) -> list[tuple[str, str]]:
    usage, speculation, num_texts = result.usage, result.speculation, len(result.choices)
    how = f"({ended(result)})" if num_texts == 1 else f"in {num_texts} texts"
    rows = [
        ("tokens", f"{usage.completion_tokens} {how}, prompt {usage.prompt_tokens}"),
        (_rate_name(result), f"{_number(usage.tokens_per_s)} (after the first token)"),
        ("time to first token", _seconds(usage.time_to_first_token_s)),
    ]
    if speculation.num_rounds:
        rows.append(("tokens per pass", f"{_number(speculation.tokens_per_pass, 2)} ({speculation.num_rounds} rounds)"))
    if speculation.num_proposed:
        depths = enumerate(speculation.acceptance_by_depth, 1)
        rows += [
            (
                "acceptance rate",
                f"{_percent(speculation.acceptance_rate)} ({speculation.num_accepted} of {speculation.num_proposed} "
                "draft tokens)",
            ),
            ("acceptance by depth", "  ".join(f"{depth}: {_percent(share)}" for depth, share in depths)),
        ]
    parts = {
        "draft": speculation.draft_s,
        "target": speculation.target_s,
        "verify": speculation.verify_s,
        "host": speculation.host_s,
    }
    total = sum(parts.values()) or 1.0
    rows.append(("seconds", "  ".join(f"{name} {s:.2f} ({_percent(s / total)})" for name, s in parts.items())))
    return rows


def _rate_name(result: Result) -> str:
    return "tokens/s a text" if result.others else "tokens/s"


def _legend(result: Result, has_colours: bool) -> tuple[str, Any]:
    from rich.text import Text

    counts, text = Counter(result.origins), Text()
    for origin in get_args(Origin):
        if counts[origin]:
            text.append(f"{origin} {counts[origin]}", COLOURS[origin][1])
            text.append("  ")
    if not has_colours:
        text.append("(no colours: standard output is no colour terminal, or NO_COLOR is set)")
    return "token origin", text


def _wants_colour() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"
