"""`forerun serve`: load, then answer at an address until told to stop."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forerun.cli.check import note_unused
from forerun.cli.flags import Group, flag
from forerun.cli.generate import load
from forerun.cli.options import Loading
from forerun.cli.report import say
from forerun.errors import InputError, MissingDependencyError
from forerun.extras import install_line

if TYPE_CHECKING:
    from forerun.server.config import ServerConfig

ADDRESS, ACCESS, LIMITS, RUNNING = "Address", "Access", "Limits", "Running"
NEEDED = {"fastapi": "fastapi", "uvicorn": "uvicorn", "prometheus_client": "prometheus-client"}
"""Modules of the extra `serve`, and what they are called in the package index."""


Target = Annotated[
    str | None,
    typer.Argument(
        metavar="TARGET",
        help="A name of `forerun models`, a GGUF file, a directory, or org/name of the Hub",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class Served(Loading):
    """What is loaded; the target is an argument, and may be named elsewhere instead."""

    target: Target = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Serving(Group):
    """Settings of `ServerConfig`, under the same names."""

    host: Annotated[
        str | None, flag("--host", "Address to listen at (default: 127.0.0.1, this machine alone)", ADDRESS, "HOST")
    ] = None
    port: Annotated[int | None, flag("--port", "Port; 0 takes a free one (default: 8000)", ADDRESS, "N")] = None
    model_name: Annotated[
        str | None, flag("--model-name", "What clients call the model (default: TARGET)", ADDRESS, "NAME")
    ] = None
    aliases: Annotated[
        list[str] | None, flag("--alias", "Another name of the model; may be repeated", ADDRESS, "NAME")
    ] = None
    api_keys: Annotated[
        list[str] | None,
        flag("--api-key", "Answer requests with this key only; may be repeated", ACCESS, "KEY"),
    ] = None
    tenants: Annotated[bool | None, flag("--tenants", "Share nothing between requests of different keys", ACCESS)] = (
        None
    )
    cors_origins: Annotated[
        list[str] | None, flag("--cors-origin", "Web pages of ORIGIN may ask; may be repeated", ACCESS, "ORIGIN")
    ] = None
    max_running: Annotated[
        int | None, flag("--max-running", "Texts written at once: 1 or more (default: 16)", LIMITS, "N")
    ] = None
    max_requests: Annotated[
        int | None,
        flag("--max-requests", "Prompts that run or wait; more are refused with 429 (default: 256)", LIMITS, "N"),
    ] = None
    max_choices: Annotated[int | None, flag("--max-choices", "Texts of one request (default: 64)", LIMITS, "N")] = None
    max_prompt: Annotated[
        int | None, flag("--max-prompt", "Tokens of a prompt (default: as many as fit)", LIMITS, "N")
    ] = None
    max_cached: Annotated[
        int | None, flag("--max-cached", "Tokens in the caches of running texts (default: any number)", LIMITS, "N")
    ] = None
    max_kept: Annotated[
        int | None,
        flag("--max-kept", "Tokens kept of ended texts, for those that begin alike (default: 16384)", LIMITS, "N"),
    ] = None
    max_body: Annotated[int | None, flag("--max-body", "Bytes of a request (default: 8388608)", LIMITS, "BYTES")] = None
    deadline_s: Annotated[
        float | None, flag("--deadline", "Seconds a request may take; 0: any time (default: 600)", LIMITS, "S")
    ] = None
    stall_ms: Annotated[
        float | None,
        flag("--stall", "Milliseconds that reading a prompt may hold up running texts (default: 400)", LIMITS, "MS"),
    ] = None
    drain_s: Annotated[
        float | None,
        flag("--drain", "Seconds that running requests get when it is stopped (default: 30)", RUNNING, "S"),
    ] = None
    log_format: Annotated[str | None, flag("--log-format", "text or json (default: text)", RUNNING, "KIND")] = None


def serve(
    loading: Served,
    serving: Serving,
    config: Annotated[
        str | None,
        flag(
            "--config",
            "A TOML file with the tables server and model; flags and environment go before it",
            RUNNING,
            "FILE",
        ),
    ] = None,
) -> None:
    """Serve a model behind the OpenAI API.

    Every setting may be given in the environment, too: FORERUN_SERVE_PORT=9000, FORERUN_SERVE_API_KEYS=KEY,KEY, which
    keeps keys out of the list of processes.
    """
    require_extra()
    from forerun.server.config import PREFIX, make_config, model_settings

    file = config or os.environ.get(f"{PREFIX}CONFIG")
    settings = model_settings(loading.given(), file=file)
    if not settings.get("target"):
        raise InputError("there is no TARGET", "", "forerun serve TARGET [--draft MODEL]; see forerun serve --help")
    made = make_config(_tuples(serving.given()), file=file)
    note_unused(settings, {})
    _serve(settings, made)


def _serve(settings: dict[str, Any], config: ServerConfig) -> None:
    from forerun.server.logs import set_up
    from forerun.server.run import bind, prepare
    from forerun.server.run import serve as run

    bind(config).close()  # an address that is taken is found out before weights are read
    set_up(config.log_format)
    name = name_of(str(settings["target"]))
    llm = load(settings)
    prepare(llm, config)
    run(llm, config, name, ready=lambda url: say(f"serving {config.model_name or name} at {url}"))


def name_of(target: str) -> str:
    """What a model is called whose name is not given: a file or a directory by its own name, anything else as it is."""
    path = Path(target)
    return path.name.removesuffix(".gguf") if path.exists() else target


def require_extra() -> None:
    """MissingDependencyError where the server's own dependencies are not installed."""
    missing = []
    for module, package in NEEDED.items():
        try:
            importlib.import_module(module)
        except ImportError:
            missing.append(package)
    if missing:
        raise MissingDependencyError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed",
            "the server needs the extra `serve`",
            install_line("serve"),
        )


def _tuples(given: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
