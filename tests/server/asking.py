"""One question asked in every way that there is: in one piece and streamed."""

from __future__ import annotations

from typing import Any

from tests.server.serving import Serving, reasons_of, text_of

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
ERROR = {"message", "type", "param", "code"}


def both(one: Serving, path: str = COMPLETIONS, **body: Any) -> Any:
    """The document of an answer, which its stream must equal: texts, reasons, log probabilities and counts."""
    whole = one.post(path, **body)
    chunks = one.stream(path, **body, stream_options={"include_usage": True})
    for index, choice in enumerate(whole["choices"]):
        assert choice["index"] == index
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        assert text_of(chunks, index) == text
        assert reasons_of(chunks)[index] == choice["finish_reason"]
        assert logprobs_of(chunks, index) == _listed(choice["logprobs"])
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [chunks[-1]["usage"][name] for name in counts] == [whole["usage"][name] for name in counts]
    return whole


def refused(one: Serving, path: str = COMPLETIONS, status: int = 400, **body: Any) -> Any:
    """The error that a request gets, streamed or not: before the headers of a stream."""
    errors = [one.post(path, status, **body, stream=stream)["error"] for stream in (False, True)]
    assert errors[0] == errors[1]
    assert set(errors[0]) == ERROR
    assert errors[0]["message"]
    return errors[0]


def logprobs_of(chunks: list[Any], index: int) -> list[Any]:
    """The entries of all chunks of a choice."""
    return [
        entry
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["index"] == index
        for entry in _listed(choice["logprobs"])
    ]


def _listed(logprobs: Any) -> list[Any]:
    """Entries in either shape: of chats one each, of completions in parallel lists."""
    if logprobs is None:
        return []
    if "content" in logprobs:
        return list(logprobs["content"])
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return list(zip(*(logprobs[name] for name in names), strict=True))
