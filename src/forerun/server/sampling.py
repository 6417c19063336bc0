"""From a request to what is asked of the engine; whatever of it has no effect is told."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from forerun.engine import Service
from forerun.errors import ParameterError
from forerun.sampling import SamplingParams
from forerun.server.errors import ApiError
from forerun.server.requests import REFUSED, WITHOUT_EFFECT, ChatRequest, CompletionRequest, ResponseFormat, Sampled
from forerun.types import LogprobsKind

ANY_OBJECT: dict[str, Any] = {"type": "object"}
MOST_LOGPROBS = 20


@dataclass(frozen=True)
class Asked:
    """A request as the engine understands it. `warnings` are for the answer."""

    params: SamplingParams
    service: Service
    warnings: list[str] = field(default_factory=list)
    explains: bool = False


def understood(
    request: CompletionRequest | ChatRequest,
    *,
    default_max_tokens: int | None,
    deadline_s: float,
    sources: frozenset[str],
    tenant: str | None,
    schema: dict[str, Any] | None = None,
    kind: LogprobsKind = "raw",
) -> Asked:
    """Parameters and service of a request. `schema` is what its text must be besides (a tool's call). ApiError 400 names
    what cannot be served."""
    warnings = _warnings(request)
    names = ("top_k", "min_p", "seed", "stop_token_ids", "ignore_eos", "min_tokens", "logit_bias", "repetition_penalty",
             "frequency_penalty", "presence_penalty", "bad_words", "allowed_token_ids", "temperature", "top_p", "n",
             "stop")  # fmt: skip
    given: dict[str, Any] = {name: getattr(request, name) for name in names if getattr(request, name) is not None}
    if request.include_stop_str_in_output is not None:
        given["include_stop_string"] = request.include_stop_str_in_output
    for name in ("stop_token_ids", "bad_words", "allowed_token_ids"):
        if name in given:
            given[name] = tuple(given[name])
    if isinstance(given.get("stop"), list):
        given["stop"] = tuple(given["stop"])
    if "seed" in given:
        given["seed"] = given["seed"] % (1 << 64)  # negative ones are legal elsewhere
    given |= _structure(request, schema)
    if isinstance(request, ChatRequest):
        given |= _chat_only(request, warnings)
    else:
        given |= _completion_only(request)
    if given.get("max_tokens") is None and default_max_tokens is not None:
        given["max_tokens"] = default_max_tokens
    if tenant is not None:
        given["tenant"] = tenant
    given["logprobs_kind"] = kind
    return Asked(
        SamplingParams.from_keywords(given), _service(request, deadline_s, sources), warnings,
        bool(request.speculation and request.speculation.explain),
    )  # fmt: skip


def _warnings(request: Sampled) -> list[str]:
    found = []
    for name in request.unknown:
        if name in REFUSED:
            if request.model_extra and request.model_extra[name] is not None:
                raise ApiError(400, f"{name}: not served. {REFUSED[name]}", param=name, code="unsupported_parameter")
        elif name in WITHOUT_EFFECT:
            found.append(f"{name}: no effect here ({WITHOUT_EFFECT[name]})")
        else:
            found.append(f"{name}: unknown, and ignored")
    for name in ("stream_options",):
        part = getattr(request, name)
        if part is not None:
            found += [f"{name}.{inner}: unknown, and ignored" for inner in part.unknown]
    return found


def _structure(request: Sampled, schema: dict[str, Any] | None) -> dict[str, Any]:
    given: dict[str, Any] = {}
    regex = request.regex if request.regex is not None else request.guided_regex
    if regex is not None:
        given["regex"] = regex
    if request.guided_json is not None:
        given["json_schema"] = request.guided_json
    if request.response_format is not None:
        wanted = _schema_of(request.response_format)
        if wanted is not None:
            if given:
                raise ApiError(400, f"response_format: cannot be combined with {next(iter(given))}", param="response_format")
            given["json_schema"] = wanted
    if schema is not None:
        if given:
            raise ApiError(400, "tool_choice: a forced call cannot be combined with a format", param="tool_choice")
        given["json_schema"] = schema
    return given


def _schema_of(wanted: ResponseFormat) -> Any:
    if wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return ANY_OBJECT
    if wanted.type == "json_schema":
        if wanted.json_schema is None or wanted.json_schema.schema_ is None:
            raise ApiError(
                400, "response_format: json_schema needs {\"json_schema\": {\"name\": ..., \"schema\": {...}}}",
                param="response_format.json_schema",
            )  # fmt: skip
        return wanted.json_schema.schema_
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


def _completion_only(request: CompletionRequest) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if request.max_tokens is not None:
        given["max_tokens"] = request.max_tokens
    if request.best_of is not None:
        given["best_of"] = request.best_of
        if request.stream and request.best_of > (request.n or 1):
            raise ApiError(400, "best_of: the best are known only at the end, so they cannot be streamed", param="best_of")
    if request.logprobs is not None:
        given["logprobs"] = _num_logprobs("logprobs", request.logprobs)
        if request.echo:
            given["prompt_logprobs"] = given["logprobs"]
    return given


def _num_logprobs(name: str, value: int) -> int:
    if not 0 <= value <= MOST_LOGPROBS:
        raise ApiError(400, f"{name}: {value} is not allowed. from 0 to {MOST_LOGPROBS}", param=name)
    return value


def _service(request: Sampled, deadline_s: float, sources: frozenset[str]) -> Service:
    wish = request.speculation
    seconds = min(request.timeout or deadline_s, deadline_s) if deadline_s else request.timeout
    most = None
    allowed: frozenset[str] | None = None
    if wish is not None:
        most = 0 if not wish.enabled else wish.max_k
        if wish.drafter is not None:
            named = [wish.drafter] if isinstance(wish.drafter, str) else wish.drafter
            unknown = [name for name in named if name not in sources and name != "none"]
            if unknown:
                known = ", ".join(sorted(sources)) or "none"
                raise ParameterError("speculation.drafter", f"{unknown[0]!r} does not draft here", f"one of {known}")
            allowed = frozenset(named)
    return Service(
        priority=request.priority or 0,
        deadline=None if not seconds else perf_counter() + seconds,
        max_draft=most,
        sources=allowed,
    )
