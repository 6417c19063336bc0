"""`forerun generate`: complete one prompt, streamed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forerun.cli.check import check_params, has_drafter, note_unused
from forerun.cli.options import OUTPUT, Loading, Sampling
from forerun.cli.prompt import read_prompt
from forerun.cli.report import INTERRUPTED, say, say_error
from forerun.errors import ParameterError

if TYPE_CHECKING:
    from forerun.cli.compare import Comparison
    from forerun.cli.play import Played
    from forerun.cli.render import TextOutput
    from forerun.llm import LLM
    from forerun.result import Piece, Result


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
        bool,
        typer.Option(
            "--compare", help="Then decode again without a draft, and compare (both warmed up)", rich_help_panel=OUTPUT
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document instead of the text", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Complete a prompt, streamed.

    The text goes to standard output as it is committed, the closing table to standard error. Several texts (--n) are
    printed when all have ended, each ended by a line end and headed by a line on standard error.
    """
    request = read_prompt(prompt, prompt_ids, chat)
    settings, params = loading.given(), sampling.given()
    _check(settings, params, compare)
    with load(settings) as llm:
        if compare:
            from forerun.cli.compare import warm_up_all

            warm_up_all(llm)
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


def _check(settings: dict[str, Any], params: dict[str, Any], compare: bool) -> None:
    """Refuse what can be refused before any model is looked at."""
    check_params(params)
    if compare and not has_drafter(settings):
        raise ParameterError(
            "compare", "there is nothing to compare plain decoding with", "add --draft MODEL or --drafter lookup"
        )
    note_unused(settings, params)


def _print_text(llm: LLM, request: Any, params: dict[str, Any], show_drafts: bool, compare: bool) -> int:
    from forerun.cli.logprobs import print_logprobs
    from forerun.cli.render import CountOutput, TextOutput, print_comparison, print_summary

    def add_logprobs(text: Result) -> None:
        print_logprobs("tokens", text.logprobs, llm.tokenizer)

    output = TextOutput(sys.stdout, show_drafts)
    played = _play_text(llm, request, params, output, add_logprobs)
    print_logprobs("prompt", played.result.prompt_logprobs, llm.tokenizer)
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


def _play_text(
    llm: LLM, request: Any, params: dict[str, Any], output: TextOutput, after_each: Callable[[Result], None]
) -> Played:
    """Run the request and print its text as it comes, or its texts once all have ended."""
    from forerun.cli.play import play
    from forerun.cli.several import Gathered
    from forerun.sampling import SamplingParams

    num_texts = SamplingParams.from_keywords(params).num_choices
    if num_texts == 1:
        try:
            played = play(llm, request, params, output.show)
        finally:
            output.end()
        after_each(played.result)
        return played
    gathered = Gathered(output, num_texts)
    try:
        played = play(llm, request, params, gathered.show)
    finally:
        gathered.end()
    gathered.print_kept(played.result, after_each)
    return played


def _print_document(llm: LLM, request: Any, params: dict[str, Any], show_drafts: bool, compare: bool) -> int:
    from forerun.cli.play import play

    played = play(llm, request, params, lambda piece: None)
    document = played.result.to_dict()
    if show_drafts:
        document["origins"] = list(played.result.origins)
        for entry, text in zip(document.get("choices", ()), played.result.choices, strict=False):
            entry["origins"] = list(text.origins)
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
