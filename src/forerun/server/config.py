"""What can be set of a server: by flags, by environment (FORERUN_SERVE_PORT=9000) or in a TOML file, in that order."""

from __future__ import annotations

import ipaddress
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from forerun.checks import real, shown, whole
from forerun.errors import InputError, ParameterError

PREFIX = "FORERUN_SERVE_"


@dataclass(frozen=True)
class ServerConfig:
    """Settings of a server. Sizes are bytes, times seconds.

    `api_keys`: requests must carry one of them (empty: anybody may ask). `tenants` keeps texts of different keys apart:
    neither beginnings nor drafts are shared between them. `max_requests` run or wait at once, of which `max_running`
    run; more are refused with 429. `max_choices` bounds n x prompts of one request, `max_prompt` its prompt's tokens.
    `default_max_tokens` is for completions that name none. `deadline_s` ends whatever takes longer, `send_s` a client
    that does not read, `receive_s` one that does not finish its request; `ping_s` is how long a stream is silent before
    it says that it lives (0: never), `drain_s` is what running requests get to finish when the server is stopped.
    `max_cached` bounds the tokens in all caches, `max_kept` those of texts that have ended.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    model_name: str = ""
    aliases: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    tenants: bool = False
    cors_origins: tuple[str, ...] = ()
    max_running: int = 16
    max_requests: int = 256
    max_choices: int = 64
    max_body: int = 8 * 2**20
    max_prompt: int | None = None
    max_cached: int | None = None
    max_kept: int = 16_384
    default_max_tokens: int = 16
    deadline_s: float = 600.0
    send_s: float = 30.0
    receive_s: float = 60.0
    ping_s: float = 15.0
    drain_s: float = 30.0
    stall_ms: float = 400.0
    log_format: str = "text"
    page: bool = True

    def __post_init__(self) -> None:
        whole("port", self.port, 0, 65_535, "a whole number from 0 (any free port) to 65535")
        for name in ("max_running", "max_requests", "max_choices", "default_max_tokens"):
            whole(name, getattr(self, name), 1, None, "a whole number of at least 1")
        whole("max_body", self.max_body, 1024, None, "a number of bytes, at least 1024")
        whole("max_kept", self.max_kept, 0, None, "a whole number of tokens, 0 to keep none")
        for name in ("max_prompt", "max_cached"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), 2, None, "a whole number of tokens, at least 2")
        for name in ("deadline_s", "send_s", "receive_s", "ping_s", "drain_s", "stall_ms"):
            real(name, getattr(self, name), 0.0, 1e9, "a number of at least 0")
        if self.log_format not in ("text", "json"):
            raise ParameterError("log_format", f"{shown(self.log_format)} is not allowed", "text or json")
        if any(not key.strip() for key in self.api_keys):
            raise ParameterError("api_keys", "an empty key would let everybody in", "leave it out")
        if self.max_requests < self.max_running:
            raise ParameterError("max_requests", f"{self.max_requests} is below max_running, {self.max_running}")

    @property
    def is_public(self) -> bool:
        """Whether others than this machine can reach it."""
        if self.host == "localhost":
            return False
        try:
            return not ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return True

    @property
    def warnings(self) -> list[str]:
        """What whoever starts it should know."""
        found = []
        if self.is_public and not self.api_keys:
            found.append(f"anybody who can reach {self.host} may use this server: no API key is set (--api-key)")
        if "*" in self.cors_origins and not self.api_keys:
            found.append("any web page may use this server: CORS allows every origin, and no API key is set")
        return found


def make_config(
    flags: Mapping[str, Any], environment: Mapping[str, str] | None = None, file: str | Path | None = None
) -> ServerConfig:
    """Flags that were given (not None), over the environment, over the file. ParameterError names what is unknown or
    wrong, and where it was given."""
    environment = os.environ if environment is None else environment
    config = ServerConfig()
    if file is not None:
        config = _with(config, _read(Path(file)), f"in {file}")
    named = {
        name[len(PREFIX) :].lower(): value
        for name, value in environment.items()
        if name.startswith(PREFIX) and name != f"{PREFIX}CONFIG"
    }
    config = _with(config, named, "in the environment")
    return _with(config, {name: value for name, value in flags.items() if value is not None}, "")


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the configuration: {error.strerror}", str(path)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"the configuration is no TOML: {error}", str(path)) from error
    return found.get("server", found)


def _with(config: ServerConfig, values: Mapping[str, Any], where: str) -> ServerConfig:
    kinds = get_type_hints(ServerConfig)
    known = [one.name for one in fields(ServerConfig)]
    given = {}
    for name, value in values.items():
        if name not in known:
            raise ParameterError(name, f"unknown setting of the server {where}".rstrip(), f"known: {', '.join(known)}")
        try:
            given[name] = _parsed(value, kinds[name])
        except (KeyError, TypeError, ValueError):
            raise ParameterError(name, f"{shown(value)} is not allowed {where}".rstrip(), f"{kinds[name]}") from None
    return replace(config, **given)


def _parsed(value: Any, kind: Any) -> Any:
    """A value of the kind; texts (of the environment) are read as such."""
    if kind == tuple[str, ...]:
        return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else tuple(map(str, value))
    if kind in (int, int | None):
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise ValueError
        return None if value is None else int(value)
    if kind is float:
        if isinstance(value, bool):
            raise ValueError
        return float(value)
    if kind is bool:
        words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
        return value if isinstance(value, bool) else words[str(value).lower()]
    return str(value)


