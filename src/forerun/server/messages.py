"""Messages of the OpenAI API as chat templates read them: one text each, calls with their arguments as data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from forerun.server.errors import ApiError

ROLES = {"developer": "system"}
"""What templates know a role as."""

TEXT_PARTS = ("text", "input_text", "output_text", "refusal")


def for_template(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Parts of text are joined, null is no text, arguments of calls are read. ApiError 400 for what is no text."""
    return [_message(number, message) for number, message in enumerate(messages)]


def _message(number: int, message: dict[str, Any]) -> dict[str, Any]:
    place = f"messages.{number}"
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise ApiError(400, f"{place}.role: a role is needed, for example user", param=f"{place}.role")
    found = {**message, "role": ROLES.get(role, role), "content": _text(f"{place}.content", message.get("content"))}
    calls = message.get("tool_calls")
    if calls is None:
        found.pop("tool_calls", None)
    else:
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise ApiError(400, f"{place}.tool_calls: a list of calls is needed", param=f"{place}.tool_calls")
        found["tool_calls"] = [_call(call) for call in calls]
    return found


def _text(place: str, content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(400, f"{place}: text, or a list of parts of text, is needed", param=place)
    texts = []
    for part in content:
        kind = part.get("type", "text") if isinstance(part, dict) else None
        text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) else None
        if kind not in TEXT_PARTS or not isinstance(text, str):
            raise ApiError(
                400, f"{place}: the model reads text alone, and here is a part of type {kind!r}", param=place,
                code="unsupported_content",
            )  # fmt: skip
        texts.append(text)
    return "".join(texts)


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """Templates write arguments as JSON themselves, so they are given as data where they are an object."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call
