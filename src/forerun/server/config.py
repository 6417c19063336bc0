"""What can be set of a server: by flags, by environment (FORERUN_SERVE_PORT=9000) or in a TOML file, in that order."""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from forerun.checks import real, shown, whole
from forerun.errors import InputError, ParameterError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PREFIX = "FORERUN_SERVE_"
MODEL = (
    "target", "draft", "drafter", "k", "trace", "verifier", "draft_context", "draft_vocabulary", "draft_min_confidence",
    "draft_requantise", "draft_runtime", "runtime", "device", "dtype", "strict", "quantize", "context_length", "mirror",
)  # fmt: skip
"""Settings of `forerun.load` that a file may hold in [model], and the environment under the same prefix."""


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
    config = ServerConfig()
    if file is not None:
        config = _with(config, _tables(Path(file))["server"], f"in {file}")
    config = _with(config, _from(environment, model=False), "in the environment")
    return _with(config, {name: value for name, value in flags.items() if value is not None}, "")


def model_settings(
    flags: Mapping[str, Any], environment: Mapping[str, str] | None = None, file: str | Path | None = None
) -> dict[str, Any]:
    """Settings of `forerun.load` by the same rule: the environment's are texts, a file's have TOML's own kinds."""
    found = {} if file is None else dict(_tables(Path(file))["model"])
    unknown = next((name for name in found if name not in MODEL), None)
    if unknown is not None:
        raise ParameterError(unknown, f"unknown setting of the model in {file}", f"known: {', '.join(MODEL)}")
    for name, text in _from(environment, model=True).items():
        found[name] = _of_model(name, text)
    return {**found, **{name: value for name, value in flags.items() if value is not None}}


def _of_model(name: str, text: str) -> Any:
    kinds: dict[str, Any] = {
        **dict.fromkeys(("draft_context", "draft_vocabulary", "context_length"), int),
        **dict.fromkeys(("draft_requantise", "strict", "mirror"), bool),
        "draft_min_confidence": float,
    }
    try:
        if name == "k" and text != "auto":
            return int(text)
        return _parsed(text, kinds.get(name, str))
    except (KeyError, ValueError):
        raise ParameterError(name, f"{shown(text)} is not allowed in the environment") from None


def _from(environment: Mapping[str, str] | None, model: bool) -> dict[str, str]:
    """The environment's settings of the server, or of the model."""
    given = os.environ if environment is None else environment
    names = {
        name: name[len(PREFIX) :].lower() for name in given if name.startswith(PREFIX) and name != f"{PREFIX}CONFIG"
    }
    return {short: given[name] for name, short in names.items() if (short in MODEL) == model}


def _tables(path: Path) -> dict[str, dict[str, Any]]:
    """[server] and [model] of a file."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the configuration: {error.strerror}", str(path)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"the configuration is no TOML: {error}", str(path)) from error
    for name, table in found.items():
        if name not in ("server", "model") or not isinstance(table, dict):
            raise InputError(f"{name}: a configuration has the tables [server] and [model]", str(path))
    return {"server": {}, "model": {}, **found}


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
            raise ParameterError(name, f"{shown(value)} is not allowed {where}".rstrip(), _need(kinds[name])) from None
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


def _need(kind: Any) -> str:
    """A kind in words."""
    words = {tuple[str, ...]: "a list of texts", bool: "true or false", float: "a number", str: "a text"}
    return words.get(kind, "a whole number")
