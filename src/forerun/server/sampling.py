"""From a request to what is asked of the engine; whatever of it has no effect is told."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from forerun.engine import Service
from forerun.errors import ParameterError
from forerun.sampling import SamplingParams
from forerun.server.config import ServerConfig
from forerun.server.errors import ApiError
from forerun.server.requests import (
    REFUSED,
    WITHOUT_EFFECT,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    ResponseFormat,
    Sampled,
    TokenizeRequest,
)
from forerun.server.tools import ToolWish

ANY_OBJECT: dict[str, Any] = {"type": "object"}
MOST_LOGPROBS = 20
MOST_WORDS, MOST_CHARS = 256, 65_536
"""Entries of `stop` and of `bad_words`, and characters of one: each is looked for at every token, for everybody."""
SAME = (
    "temperature", "top_p", "top_k", "min_p", "n", "seed", "stop", "stop_token_ids", "ignore_eos", "min_tokens",
    "logit_bias", "repetition_penalty", "frequency_penalty", "presence_penalty", "bad_words", "allowed_token_ids",
)  # fmt: skip
"""Fields that are called the same in `SamplingParams`."""


@dataclass(frozen=True)
class Asked:
    """A request as the engine understands it. `warnings` are for the answer."""

    params: SamplingParams
    service: Service
    warnings: list[str] = field(default_factory=list)
    explains: bool = False


def understood(
    request: CompletionRequest | ChatRequest,
    config: ServerConfig,
    *,
    sources: frozenset[str] = frozenset(),
    tenant: str | None = None,
    wish: ToolWish | None = None,
) -> Asked:
    """Parameters and service of a request; `sources` are the names of what drafts here. ApiError 400 and ParameterError
    name what cannot be served."""
    warnings = _warnings(request)
    given: dict[str, Any] = {name: getattr(request, name) for name in SAME if getattr(request, name) is not None}
    if request.include_stop_str_in_output is not None:
        given["include_stop_string"] = request.include_stop_str_in_output
    for name in ("stop", "bad_words"):
        _check_words(name, given.get(name, ()))
    for name in ("stop_token_ids", "bad_words", "allowed_token_ids", "stop"):
        if isinstance(given.get(name), list):
            given[name] = tuple(given[name])
    if "seed" in given:
        given["seed"] = given["seed"] % (1 << 64)  # negative ones are legal elsewhere
    given |= _structure(request, wish is not None and bool(wish.forced))
    given |= _chat_only(request, warnings) if isinstance(request, ChatRequest) else _completion_only(request, config)
    if tenant is not None:
        given["tenant"] = tenant
    params = SamplingParams.from_keywords(given)
    explains = bool(request.speculation and request.speculation.explain)
    return Asked(params, _service(request, config.deadline_s, sources), warnings, explains)


def _check_words(name: str, words: str | list[str]) -> None:
    found = [words] if isinstance(words, str) else words
    if len(found) > MOST_WORDS:
        raise ApiError(400, f"{name}: {len(found):,} entries are too many. At most {MOST_WORDS}", param=name)
    longest = max(map(len, found), default=0)
    if longest > MOST_CHARS:
        raise ApiError(400, f"{name}: {longest:,} characters are too many. At most {MOST_CHARS:,}", param=name)


def ignored(name: str) -> str:
    """The warning of a field that nothing here knows."""
    return f"{name}: unknown, and ignored"


def with_warnings(document: dict[str, Any], request: DetokenizeRequest | TokenizeRequest) -> dict[str, Any]:
    """An answer, and which fields of the request had no effect."""
    return {**document, "warnings": [ignored(name) for name in request.unknown]} if request.unknown else document


def _warnings(request: Sampled) -> list[str]:
    found = []
    for name in request.unknown:
        if name in REFUSED:
            if request.model_extra and request.model_extra[name] is not None:
                raise ApiError(400, f"{name}: not served. {REFUSED[name]}", param=name, code="unsupported_parameter")
        elif name in WITHOUT_EFFECT:
            found.append(f"{name}: no effect here ({WITHOUT_EFFECT[name]})")
        else:
            found.append(ignored(name))
    if request.stream_options is not None and not request.stream:
        raise ApiError(400, "stream_options: only where stream is true", param="stream_options")
    return found


def _structure(request: Sampled, must_call: bool) -> dict[str, Any]:
    """What the whole text must be: at most one such wish, by whatever name; none beside a call that must be made."""
    wishes: list[tuple[str, str, Any]] = [  # (field, parameter, value)
        (name, parameter, getattr(request, name))
        for name, parameter in (
            ("regex", "regex"), ("grammar", "grammar"), ("one_of", "one_of"), ("guided_regex", "regex"),
            ("guided_json", "json_schema"), ("guided_grammar", "grammar"), ("guided_choice", "one_of"),
        )
    ]  # fmt: skip
    if request.response_format is not None:
        wishes.append(("response_format", *_of_format(request.response_format)))
    more = request.structured_outputs
    if more is not None:
        wishes += [
            ("structured_outputs", parameter, value)
            for parameter, value in (
                ("json_schema", more.json_), ("regex", more.regex), ("grammar", more.grammar), ("one_of", more.choice),
                ("json_schema", ANY_OBJECT if more.json_object else None),
            )
        ]  # fmt: skip
    wishes = [wish for wish in wishes if wish[2] is not None] + [("tool_choice", "", None)] * must_call
    if len(wishes) > 1:
        raise ApiError(400, f"{wishes[1][0]}: cannot be combined with {wishes[0][0]}", param=wishes[1][0])
    found = [] if must_call else wishes
    return {parameter: tuple(value) if isinstance(value, list) else value for _, parameter, value in found}


def _of_format(wanted: ResponseFormat) -> tuple[str, Any]:
    if wanted.type == "text":
        return "json_schema", None
    if wanted.type == "json_object":
        return "json_schema", ANY_OBJECT
    if wanted.type == "json_schema":
        if wanted.json_schema is None or wanted.json_schema.schema_ is None:
            raise ApiError(
                400, 'response_format: json_schema needs {"json_schema": {"name": ..., "schema": {...}}}',
                param="response_format.json_schema",
            )  # fmt: skip
        return "json_schema", wanted.json_schema.schema_
    if wanted.type == "grammar" and wanted.grammar is not None:
        return "grammar", wanted.grammar
    raise ApiError(
        400, f"response_format: {json.dumps(wanted.type)} is not served. text, json_object or json_schema",
        param="response_format.type",
    )  # fmt: skip


def _chat_only(request: ChatRequest, warnings: list[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if request.max_completion_tokens is not None:
        if request.max_tokens is not None and request.max_tokens != request.max_completion_tokens:
            warnings.append("max_tokens: max_completion_tokens, which is also given, counts")
        given["max_tokens"] = request.max_completion_tokens
    elif request.max_tokens is not None:
        given["max_tokens"] = request.max_tokens
    if request.top_logprobs is not None and not request.logprobs:
        raise ApiError(400, "top_logprobs: needs logprobs to be true", param="top_logprobs")
    if request.logprobs:
        given["logprobs"] = _num_logprobs("top_logprobs", request.top_logprobs or 0)
    return given


def _completion_only(request: CompletionRequest, config: ServerConfig) -> dict[str, Any]:
    most = config.default_max_tokens if request.max_tokens is None else request.max_tokens
    given: dict[str, Any] = {"max_tokens": max(most, request.min_tokens or 0) if request.max_tokens is None else most}
    if request.best_of is not None:
        given["best_of"] = request.best_of
        if request.stream and request.best_of > (request.n or 1):
            raise ApiError(
                400, "best_of: the best are known only at the end, so they cannot be streamed", param="best_of"
            )
    if request.logprobs is not None:
        given["logprobs"] = _num_logprobs("logprobs", request.logprobs)
        if request.echo:
            given["prompt_logprobs"] = given["logprobs"]
            # Who scores texts (lm-eval) takes the last entry for that of the one token it asked for, whichever it is.
            given["include_stop_token"] = not request.stop_token_ids
    return given


def _num_logprobs(name: str, value: int) -> int:
    if not 0 <= value <= MOST_LOGPROBS:
        raise ApiError(400, f"{name}: {value} is not allowed. from 0 to {MOST_LOGPROBS}", param=name)
    return value


def _service(request: Sampled, deadline_s: float, sources: frozenset[str]) -> Service:
    wish = request.speculation
    seconds = min(request.timeout or deadline_s, deadline_s) if deadline_s else request.timeout
    most: int | None = None
    allowed: frozenset[str] | None = None
    if wish is not None:
        most = wish.max_k if wish.enabled and wish.drafter != "none" else 0
        if wish.drafter is not None:
            named = [wish.drafter] if isinstance(wish.drafter, str) else wish.drafter
            unknown = [name for name in named if name not in sources and name != "none"]
            if unknown:
                known = ", ".join(["none", *sorted(sources)])
                raise ParameterError("speculation.drafter", f"{unknown[0]!r} does not draft here", f"known: {known}")
            allowed = frozenset(named)
    return Service(
        priority=request.priority or 0,
        deadline=None if not seconds else perf_counter() + seconds,
        max_draft=most,
        sources=allowed,
    )
