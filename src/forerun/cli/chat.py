"""`forerun chat`: a conversation with the model's own chat template. The history is the only state."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forerun.cli.check import check_params, note_unused
from forerun.cli.generate import load
from forerun.cli.options import OUTPUT, Loading, Sampling
from forerun.cli.prompt import check_text, decode
from forerun.cli.report import INTERRUPTED, say, say_error
from forerun.errors import ContextLengthError, ForerunError, ParameterError, PromptError

if TYPE_CHECKING:
    from forerun.cli.render import TextOutput
    from forerun.llm import LLM
    from forerun.result import Result
    from forerun.sampling import SamplingParams

HELP = "/exit ends, /reset forgets the conversation, /stats shows numbers; Ctrl-C stops an answer, Ctrl-D ends"


def chat(
    loading: Loading,
    sampling: Sampling,
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="A system message to begin with", show_default=False)
    ] = None,
    show_drafts: Annotated[
        bool, typer.Option("--show-drafts", help="Colour each token by where it came from", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Talk with a model.

    Piped, every line of standard input is one message. /help lists the commands.
    """
    from forerun.cli.render import TextOutput

    settings, params = loading.given(), sampling.given()
    _refuse_several(check_params(params))
    if system is not None:
        check_text(system, "the system message")
    note_unused(settings, params)
    with load(settings) as llm:
        llm.encode([{"role": "user", "content": "Hello"}])  # a model without a chat template is refused here
        session = Session(llm, params, TextOutput(sys.stdout, show_drafts), system, show_drafts)
        is_typed = sys.stdin.isatty()
        if is_typed:
            say(HELP)
        code = session.run(_ask if is_typed else _next_line, is_typed)
    if code:
        raise typer.Exit(code)


@dataclass
class Session:
    """A conversation. `history` holds what the template gets; a message that failed is not in it."""

    llm: LLM
    params: dict[str, Any]
    output: TextOutput
    system: str | None = None
    show_drafts: bool = False
    history: list[dict[str, str]] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the conversation, but for the system message."""
        self.history = [] if self.system is None else [{"role": "system", "content": self.system}]

    def run(self, read: Callable[[], str | None], is_typed: bool) -> int:
        """Answer what `read` yields until it returns None or /exit. Exit code: that of the first message of a piped
        session that failed; a person has seen the message, so a typed session ends with 0."""
        code = 0
        while True:
            try:
                message = read()
                if message is None or message.strip() == "/exit":
                    return 0 if is_typed else code
                if message.strip().startswith("/") and not message.startswith(" "):
                    self.command(message.strip())
                elif message.strip():
                    self.answer(message, is_typed)
            except ForerunError as error:
                say_error(error)
                code = code or error.exit_code
            except KeyboardInterrupt:
                if not is_typed:
                    return INTERRUPTED
                say("\n/exit or Ctrl-D ends the session")

    def command(self, text: str) -> None:
        """Obey a line that begins with a slash."""
        if text == "/reset":
            self.reset()
            say("the conversation is forgotten")
        elif text == "/stats":
            self.print_stats()
        elif text == "/help":
            say(HELP)
        else:
            near = difflib.get_close_matches(text, ("/exit", "/reset", "/stats", "/help"), 1)
            raise PromptError(
                f"there is no command {text.split()[0]!r}",
                f"perhaps you meant {near[0]}" if near else HELP,
                "begin the line with a space to send it as a message",
            )

    def answer(self, message: str, is_typed: bool) -> None:
        """Stream the answer to one message. An answer that was stopped stays in the history as far as it came."""
        from forerun.cli.logprobs import print_logprobs
        from forerun.cli.play import play

        messages = [*self.history, {"role": "user", "content": message}]
        try:
            played = play(self.llm, messages, self.params, self.output.show)
        except ContextLengthError as error:
            raise PromptError(error.fact, "the conversation no longer fits", "/reset begins a new one") from error
        finally:
            if self.output.is_terminal:
                self.output.end()
        result = played.result
        if not self.output.is_terminal:
            print(flush=True)  # a piped answer always ends with a line end of ours
        print_logprobs("tokens", result.logprobs, self.llm.tokenizer)
        print_logprobs("prompt", result.prompt_logprobs, self.llm.tokenizer)
        if result.tokens:
            self.results.append(result)
        if played.error is not None:
            raise played.error
        if result.text:
            self.history = [*messages, {"role": "assistant", "content": result.text}]
        if is_typed:
            self._comment(result, played.interrupted)

    def print_stats(self) -> None:
        """The last answer's table, and the session's totals."""
        from forerun.cli.render import print_rows, print_summary

        if not self.results:
            say("nothing was answered yet")
            return
        last = self.results[-1]
        print_summary(last, self.output if self.show_drafts else None)
        used = last.usage.prompt_tokens + last.usage.completion_tokens
        total = sum(result.usage.completion_tokens for result in self.results)
        context_length = self.llm.engine.target.capabilities.context_length
        limit = "" if context_length is None else f" of {context_length}"
        print_rows([("answers", f"{len(self.results)} ({total} tokens)"), ("context", f"{used}{limit} tokens")])

    def _comment(self, result: Result, interrupted: bool) -> None:
        from forerun.cli.render import one_line

        used = result.usage.prompt_tokens + result.usage.completion_tokens
        full = result.finish_reason == "length" and used == self.llm.engine.target.capabilities.context_length
        notes = ["stopped"] * interrupted + ["the context is full: /reset begins a new conversation"] * full
        say(f"({'; '.join([one_line(result), *notes])})")


def _refuse_several(params: SamplingParams) -> None:
    for name, number in (("n", params.n), ("best_of", params.num_choices)):
        if number > 1:
            raise ParameterError(
                name,
                f"{number} answers were asked for, and a conversation goes on from one",
                "leave it out, or use forerun generate --chat",
            )


def _ask() -> str | None:
    """A line typed at the prompt, with the line editing of readline where there is one; None at Ctrl-D."""
    with suppress(ImportError):
        import readline  # noqa: F401 - importing it is what gives `input` its editing and history
    try:
        if sys.stdout.isatty():
            line = input("> ")
        else:
            sys.stderr.write("> ")
            sys.stderr.flush()
            line = sys.stdin.readline()
            if not line:
                return None
            line = line.rstrip("\r\n")
    except EOFError:
        say("")
        return None
    except UnicodeDecodeError:
        raise PromptError("the message is not valid UTF-8", "", "check the terminal's encoding") from None
    check_text(line, "the message")
    return line


def _next_line() -> str | None:
    """The next line of a pipe or a file; None at its end."""
    data = sys.stdin.buffer.readline()
    return decode(data, "the message").rstrip("\r\n") if data else None
