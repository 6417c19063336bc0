"""`--n` and `--best-of`: several texts of one prompt. They come interleaved, and are printed one after another."""

from __future__ import annotations

from collections.abc import Callable

from forerun.cli.figures import ended
from forerun.cli.render import CountOutput, TextOutput
from forerun.cli.report import say
from forerun.result import Piece, Result


class Gathered:
    """Takes the pieces of all texts and prints those of the texts that were kept.

    Each text is headed by one line on standard error. Redirected, it is followed by a line end of ours: a text without
    line ends is then one line, which is what `sort | uniq -c` wants; others are told apart in --json.
    """

    def __init__(self, output: TextOutput, num_texts: int) -> None:
        self._output = output
        self._counter = CountOutput(f"{num_texts} texts")
        self._pieces: dict[int, list[Piece]] = {}

    def show(self, piece: Piece) -> None:
        """Keep one piece and count it."""
        self._pieces.setdefault(piece.choice, []).append(piece)
        self._counter.show(piece)

    def end(self) -> None:
        """Leave the counter as it stands."""
        self._counter.end()

    def print_kept(self, result: Result, after_each: Callable[[Result], None]) -> None:
        """Print the texts of `result`, and let `after_each` add to each."""
        choices = result.choices
        for number, choice in enumerate(choices, 1):
            if len(choices) > 1:
                say(f"-- text {number} of {len(choices)}: {_about(choice)}")
            for piece in self._pieces.get(choice.choice, ()):
                self._output.show(piece)
            if len(choices) > 1:
                self._output.end_line()
            else:
                self._output.end()
            after_each(choice)


def _about(choice: Result) -> str:
    num_tokens = choice.usage.completion_tokens
    parts = [f"{num_tokens} token{'s' * (num_tokens != 1)} ({ended(choice)})"]
    if choice.mean_logprob is not None:
        parts.append(f"mean log probability {choice.mean_logprob:.3f}")
    return ", ".join(parts)
