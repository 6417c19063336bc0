"""`forerun serve`: load, then answer at an address until told to stop."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any


from forerun.cli.check import note_unused
from forerun.cli.flags import Group, flag
from forerun.cli.generate import load
from forerun.cli.options import Loading
from forerun.cli.report import say

ADDRESS, ACCESS, LIMITS, RUNNING = "Address", "Access", "Limits", "Running"


@dataclass(frozen=True)
class Serving(Group):
    """Settings of `ServerConfig`, under the same names."""

    host: Annotated[
        str | None, flag("--host", "Address to listen at (default: 127.0.0.1, this machine alone)", ADDRESS, "HOST")
    ] = None
    port: Annotated[int | None, flag("--port", "Port; 0 takes a free one (default: 8000)", ADDRESS, "N")] = None
    model_name: Annotated[
        str | None, flag("--model-name", "What clients call the model (default: the target's name)", ADDRESS, "NAME")
    ] = None
    aliases: Annotated[
        list[str] | None, flag("--alias", "Another name of the model; may be repeated", ADDRESS, "NAME")
    ] = None
    api_keys: Annotated[
        list[str] | None,
        flag("--api-key", "Answer requests with this key alone; may be repeated (better: in the environment)", ACCESS, "KEY"),
    ] = None
    tenants: Annotated[
        bool | None, flag("--tenants", "Share nothing between requests of different keys", ACCESS)
    ] = None
    cors_origins: Annotated[
        list[str] | None, flag("--cors-origin", "Web pages of ORIGIN may ask; may be repeated", ACCESS, "ORIGIN")
    ] = None
    max_running: Annotated[
        int | None, flag("--max-running", "Sequences at once: 1 or more (default: 16)", LIMITS, "N")
    ] = None
    max_requests: Annotated[
        int | None,
        flag("--max-requests", "Requests that run or wait; more are refused with 429 (default: 256)", LIMITS, "N"),
    ] = None
    max_prompt: Annotated[
        int | None, flag("--max-prompt", "Tokens of a prompt (default: as many as fit)", LIMITS, "N")
    ] = None
    max_cached: Annotated[
        int | None, flag("--max-cached", "Tokens in the caches of running texts (default: any number)", LIMITS, "N")
    ] = None
    max_kept: Annotated[
        int | None,
        flag("--max-kept", "Tokens of ended texts kept for those that begin alike; 0: none (default: 16384)", LIMITS, "N"),
    ] = None
    max_body: Annotated[
        int | None, flag("--max-body", "Bytes of a request (default: 8388608)", LIMITS, "BYTES")
    ] = None
    deadline_s: Annotated[
        float | None, flag("--deadline", "Seconds a request may take; 0: any time (default: 600)", LIMITS, "S")
    ] = None
    drain_s: Annotated[
        float | None, flag("--drain", "Seconds that running requests get when it is stopped (default: 30)", RUNNING, "S")
    ] = None
    log_format: Annotated[
        str | None, flag("--log-format", "text or json (default: text)", RUNNING, "KIND")
    ] = None


def serve(
    loading: Loading,
    serving: Serving,
    config: Annotated[
        str | None, flag("--config", "A TOML file with settings; flags and environment go before it", RUNNING, "FILE")
    ] = None,
) -> None:
    """Serve a model behind the OpenAI API.

    Every setting may be given in the environment, too: FORERUN_SERVE_PORT=9000, FORERUN_SERVE_API_KEYS=KEY,KEY.
    """
    from forerun.server.config import make_config
    from forerun.server.logs import set_up
    from forerun.server.run import prepare
    from forerun.server.run import serve as run

    settings: dict[str, Any] = loading.given()
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in serving.given().items()}
    made = make_config(given, file=None if config is None else Path(config))
    note_unused(settings, {})
    set_up(made.log_format)
    llm = load(settings)
    prepare(llm, made)
    run(llm, made, str(settings["target"]), ready=lambda url: say(f"serving {settings['target']} at {url}"))


