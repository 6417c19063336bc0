"""From an exception to one message on standard error and an exit code."""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from contextlib import suppress

import typer

from forerun.errors import ForerunError, ParameterError

INTERRUPTED = 130
"""128 + SIGINT."""

BROKEN_PIPE = 141
"""128 + SIGPIPE: whoever read our output has seen enough."""


def report(error: BaseException) -> int:
    """Print what `error` means for the person at the terminal; returns the exit code. A closed pipe is no error."""
    if isinstance(error, typer.Exit):
        return int(error.exit_code)
    if os.environ.get("FORERUN_DEBUG", "") not in ("", "0"):
        with suppress(OSError):
            traceback.print_exception(type(error), error, error.__traceback__)
    if isinstance(error, ForerunError):
        say_error(error)
        return error.exit_code
    if isinstance(error, (KeyboardInterrupt, typer.Abort, EOFError)):
        say("interrupted")
        return INTERRUPTED
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        silence_stdout()
        return BROKEN_PIPE
    if isinstance(error, OSError):
        silence_stdout()  # a full disk would be reported a second time when Python flushes at exit
    usage = getattr(error, "format_message", None)
    if usage is not None:  # typer's own: an unknown option, a missing value
        say(f"{_style('error:')} {usage().strip().rstrip('.')}. see {_help_line(error)}")
        return int(getattr(error, "exit_code", 2))
    message = " ".join(str(error).split())
    say(
        f"{_style('error:')} unexpected {type(error).__name__}{': ' * bool(message)}{message}. "
        "set FORERUN_DEBUG=1 to see the traceback"
    )
    return 1


def say_error(error: ForerunError) -> None:
    """Print `fact. context. remedy`, with settings spelled as this command line's flags."""
    text = str(error)
    if isinstance(error, ParameterError):
        text = text.replace(f"{error.name}: ", f"{_flag(error.name)}: ", 1)
    say(f"{_style('error:')} {as_flags(text)}")


def say(text: str) -> None:
    """One line on standard error, after whatever standard output holds; a closed standard error is ignored."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    with suppress(OSError, ValueError):
        encoding = sys.stderr.encoding or "utf-8"
        print(text.encode(encoding, "backslashreplace").decode(encoding), file=sys.stderr, flush=True)


def as_flags(text: str) -> str:
    """`draft=NAME` as `--draft NAME`, `strict=True` as `--strict`, `max_tokens` as `--max-tokens`, no "or None" (a flag
    is left out instead): errors are written for Python and read here. Names of one word are left alone, for they may be
    words."""
    names = _flags()
    text = re.sub(r",? or None\b", "", text)

    def flag(match: re.Match[str]) -> str:
        if match[1] not in names:
            return match[0]
        return names[match[1]] if match[2] == "True" else f"{names[match[1]]} {match[2]}"

    text = re.sub(r"(?<![\w-])([a-z][a-z_]*)=(?:['\"]?)([\w./-]*\w)(?:['\"]?)", flag, text)
    bare = r"(?<![\w./'\"-])([a-z]+(?:_[a-z]+)+)(?![\w=/'\"-])"
    return re.sub(bare, lambda match: names.get(match[1], match[0]), text)


def silence_stdout() -> None:
    """Point standard output at nothing, so that Python's flush at exit has nothing to complain about."""
    with suppress(OSError, ValueError):
        descriptor = sys.stdout.fileno()
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, descriptor)
        os.close(nothing)


def _flag(name: str) -> str:
    return _flags().get(name, "--" + name.replace("_", "-"))


def _flags() -> dict[str, str]:
    from forerun.cli.options import flag_names

    return flag_names()


def _help_line(error: BaseException) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path if context is not None else 'forerun'} --help"


def _style(text: str) -> str:
    colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return f"\x1b[1;31m{text}\x1b[0m" if colour else text
