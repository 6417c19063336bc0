"""`forerun generate`: complete one prompt, streamed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forerun.cli.options import Loading, Sampling
from forerun.cli.prompt import read_prompt
from forerun.cli.report import INTERRUPTED, say, say_error
from forerun.errors import ParameterError

if TYPE_CHECKING:
    from forerun.cli.compare import Comparison
    from forerun.cli.play import Played
    from forerun.llm import LLM
    from forerun.result import Piece

OUTPUT = "Output"


def generate(
    loading: Loading,
    sampling: Sampling,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT|-", help="Text to complete; - reads it from standard input", show_default=False),
    ] = None,
    prompt_ids: Annotated[
        str | None,
        typer.Option(
            "--prompt-ids", metavar="IDS", help='Token ids instead of a PROMPT: "1, 2, 3"', show_default=False
        ),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Treat PROMPT as a user's message (the model's chat template)")
    ] = False,
    show_drafts: Annotated[
        bool, typer.Option("--show-drafts", help="Colour each token by where it came from", rich_help_panel=OUTPUT)
    ] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Then decode again without a draft, and compare", rich_help_panel=OUTPUT)
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document instead of the text", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Complete a prompt, streamed.

    The text goes to standard output as it is committed, the closing table to standard error.
    """
    request = read_prompt(prompt, prompt_ids, chat)
    settings, params = loading.given(), sampling.given()
    _check(settings, params, compare)
    with load(settings) as llm:
        if as_json:
            code = _print_document(llm, request, params, show_drafts, compare)
        else:
            code = _print_text(llm, request, params, show_drafts, compare)
    if code:
        raise typer.Exit(code)


def load(settings: dict[str, Any]) -> LLM:
    """`forerun.load` with a progress bar on standard error."""
    from forerun import loading
    from forerun.cli.render import console
    from forerun.models.progress import RichProgress

    return loading.load(**settings, progress=RichProgress(console()))


def note_unused(settings: dict[str, Any]) -> None:
    """Say which drafting settings have no effect because nothing drafts."""
    if not has_drafter(settings):
        for name, flag in (("k", "--k"), ("verifier", "--verifier")):
            if settings.get(name) not in (None, 0):
                say(f"note: {flag} has no effect without --draft MODEL or --drafter lookup")


def has_drafter(settings: dict[str, Any]) -> bool:
    """Whether these settings draft at all."""
    return "draft" in settings or settings.get("drafter", "none") != "none"


def _check(settings: dict[str, Any], params: dict[str, Any], compare: bool) -> None:
    """Refuse what can be refused before any model is looked at."""
    from forerun.sampling import SamplingParams

    SamplingParams.from_keywords(params)
    if compare and not has_drafter(settings):
        raise ParameterError(
            "compare", "there is nothing to compare plain decoding with", "add --draft MODEL or --drafter lookup"
        )
    note_unused(settings)


def _print_text(llm: LLM, request: Any, params: dict[str, Any], show_drafts: bool, compare: bool) -> int:
    from forerun.cli.play import play
    from forerun.cli.render import CountOutput, TextOutput, print_comparison, print_summary

    output = TextOutput(sys.stdout, show_drafts)
    try:
        played = play(llm, request, params, output.show)
    finally:
        output.end()
    if played.error is not None:
        say_error(played.error)
        return played.error.exit_code
    if output.is_terminal:
        say("")
    print_summary(played.result, output if show_drafts else None)
    if played.interrupted:
        say("interrupted" + ", so not compared" * compare)
        return INTERRUPTED
    if compare:
        counter = CountOutput("the same without a draft")
        plain, comparison = _compare(llm, request, params, played, counter.show)
        counter.end()
        if comparison is None:
            return _explain(plain)
        print_comparison(comparison)
    return 0


def _print_document(llm: LLM, request: Any, params: dict[str, Any], show_drafts: bool, compare: bool) -> int:
    from forerun.cli.play import play

    played = play(llm, request, params, lambda piece: None)
    document = played.result.to_dict()
    if show_drafts:
        document["origins"] = list(played.result.origins)
    code = _explain(played)
    if compare:
        document["comparison"] = None
        if not code:
            plain, comparison = _compare(llm, request, params, played)
            code = _explain(plain)
            document["comparison"] = comparison.to_dict() if comparison is not None else None
    print(json.dumps(document, allow_nan=False), flush=True)
    return code


def _compare(
    llm: LLM, request: Any, params: dict[str, Any], played: Played, show: Callable[[Piece], None] = lambda piece: None
) -> tuple[Played, Comparison | None]:
    """The plain run, and the comparison if it came to its end."""
    from forerun.cli.compare import Comparison, play_plain

    plain = play_plain(llm, request, params, show)
    if plain.interrupted or plain.error is not None:
        return plain, None
    return plain, Comparison.of(played.result, plain.result, params)


def _explain(played: Played) -> int:
    """Say on standard error why a run ended early; its exit code."""
    if played.error is not None:
        say_error(played.error)
        return played.error.exit_code
    if played.interrupted:
        say("interrupted")
        return INTERRUPTED
    return 0
