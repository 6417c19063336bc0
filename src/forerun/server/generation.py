"""The routes that generate: from a request to its answer, whole or streamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from forerun.server.answering import Answer, respond
from forerun.server.answers import CompletionChoice, Head
from forerun.server.bodies import ERRORS
from forerun.server.chats import ChatChoice
from forerun.server.config import ServerConfig
from forerun.server.forms import left_over, written_parameters
from forerun.server.prompts import text_of
from forerun.server.requests import ChatRequest, CompletionRequest
from forerun.server.sampling import Asked, understood
from forerun.server.service import Service
from forerun.server.tools import CallReader, ToolWish, wish_of

STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer; with stream: true, server-sent events with its parts and then [DONE].",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    }
}


def add_generation(app: FastAPI, service: Service, config: ServerConfig) -> None:
    """Add /v1/completions and /v1/chat/completions."""

    @app.post("/v1/completions", responses={**ERRORS, **STREAMED})
    async def completions(request: CompletionRequest, http: Request) -> Response:
        """Texts that go on from prompts."""
        service.require_model(request.model)
        asked = _understood(service, config, request, http)
        ticket = await service.open_completion(request, asked)
        head = Head("text_completion", request.model or service.name, service.fingerprint, "cmpl")
        choices = _completion_choices(service, request, asked, [job.prompt for job in ticket.jobs])
        return await respond(http, Answer(request, asked, head, ticket, choices, config.ping_s))

    @app.post("/v1/chat/completions", responses={**ERRORS, **STREAMED})
    async def chats(request: ChatRequest, http: Request) -> Response:
        """The next message of a conversation."""
        service.require_model(request.model)
        wish = wish_of(request)
        asked = _understood(service, config, request, http, wish)
        wish = left_over(wish, asked)
        ticket, is_inside = await service.open_chat(request, asked, wish)
        kind = "chat.completion.chunk" if request.stream else "chat.completion"
        head = Head(kind, request.model or service.name, service.fingerprint, "chatcmpl")
        names = [tool.function.name for tool in wish.tools]
        marks = service.call_marks
        parameters = written_parameters(wish, marks)
        choices = [
            ChatChoice(i, CallReader(marks, names, parameters) if wish.may_call else None, is_inside, service.spelling)
            for i in range(asked.params.n)
        ]
        return await respond(http, Answer(request, asked, head, ticket, choices, config.ping_s))


def _understood(
    service: Service, config: ServerConfig, request: CompletionRequest | ChatRequest, http: Request,
    wish: ToolWish | None = None,
) -> Asked:  # fmt: skip
    tenant = getattr(http.state, "tenant", None) if config.tenants else None
    return understood(request, config, sources=service.sources, tenant=tenant, wish=wish)


def _completion_choices(
    service: Service, request: CompletionRequest, asked: Asked, prompts: Sequence[Sequence[int]]
) -> list[CompletionChoice]:
    """One for each text: those of the first prompt, then those of the second, as in the OpenAI API."""
    return [
        CompletionChoice(
            number * asked.params.n + i, service.spelling, text_of(service.llm, tokens) if request.echo else ""
        )
        for number, tokens in enumerate(prompts)
        for i in range(asked.params.n)
    ]
