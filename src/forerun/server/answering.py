"""Answers on their way to the client: in one piece, or as server-sent events while they are written."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from forerun.result import Piece, Result
from forerun.server.answers import CompletionChoice, Head, speculation, usage
from forerun.server.chats import ChatChoice
from forerun.server.errors import ApiError, api_error
from forerun.server.jobs import Said, Ticket
from forerun.server.requests import Sampled
from forerun.server.sampling import Asked

log = logging.getLogger("forerun.server")

LINE_ENDS = "\x85\u2028\u2029"
"""Signs that end a line, of those that JSON leaves as they are."""

PING = ": still here\n\n"
"""A comment, which clients skip; whoever stands in between sees that the connection lives."""


@dataclass
class Answer:
    """An answer to come. `choices` has one for each text: those of the first prompt, then those of the second.
    `ping_s`: a stream that is silent for so long says so (0: never)."""

    request: Sampled
    asked: Asked
    head: Head
    ticket: Ticket
    choices: Sequence[ChatChoice] | Sequence[CompletionChoice]
    ping_s: float

    @property
    def usage(self) -> dict[str, Any]:
        """Tokens so far."""
        ticket = self.ticket
        found = usage(ticket.num_prompt, ticket.num_written, sum(choice.num_reasoning for choice in self.choices))
        if ticket.num_shared:
            found["prompt_tokens_details"] = {"cached_tokens": ticket.num_shared}
        return found

    def index(self, number: int, choice: int) -> int:
        """Which of the choices is text `choice` of prompt `number`."""
        return number * self.asked.params.n + choice


async def respond(http: Request, answer: Answer) -> Response:
    """The response to a request that was taken; its ticket is closed when it ends, however it ends."""
    http.state.told.update(id=answer.head.id, prompt_tokens=answer.ticket.num_prompt)
    if answer.request.stream:
        return EventStream(answer, http.state.told)
    try:
        response = await _while_there(http.receive, _whole(answer))
    finally:
        answer.ticket.close()
        http.state.told.update(completion_tokens=answer.ticket.num_written)
    if response is None:
        raise ApiError(499, "the client has gone", code="client_closed_request")
    return response


async def _while_there(receive: Receive, work: Awaitable[Response | None]) -> Response | None:
    """What comes of `work`; None, and an end of it, if the client hangs up first."""

    async def hung_up() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    watching, working = asyncio.ensure_future(hung_up()), asyncio.ensure_future(work)
    try:
        await asyncio.wait({watching, working}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (watching, working):
            task.cancel()
        with contextlib.suppress(Exception):
            await asyncio.gather(watching, working, return_exceptions=True)


# -- in one piece ------------------------------------------------------------------------------------------------------


async def _whole(answer: Answer) -> Response:
    asked, n = answer.asked, answer.asked.params.n
    said: dict[tuple[int, int], list[Piece]] = {}
    results: dict[int, Result] = {}
    async for event in answer.ticket.events():
        if event is None:
            continue
        number, what = event
        if isinstance(what, Result):
            results[number] = what
            continue
        for piece in what.pieces:
            said.setdefault((number, piece.choice), []).append(piece)
    in_order = [results[number] for number in sorted(results)]
    for number, result in enumerate(in_order):
        for place, one in enumerate(result.choices[:n]):  # with best_of, the best
            choice = answer.choices[answer.index(number, place)]
            if isinstance(choice, CompletionChoice):
                choice.begin(result.prompt_logprobs, answer.ticket.jobs[number].prompt)
            choice.add(said.get((number, one.choice), []))
    document = answer.head.with_(choices=[choice.whole() for choice in answer.choices], usage=answer.usage)
    if asked.explains:
        document["speculation"] = speculation(in_order)
    if asked.warnings:
        document["warnings"] = asked.warnings
    return JSONResponse(document)


# -- in events ---------------------------------------------------------------------------------------------------------


class EventStream(Response):
    """Sends an answer's events as they come. Headers go out at once: what is wrong with a request was said before."""

    media_type = "text/event-stream"

    def __init__(self, answer: Answer, told: dict[str, Any]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._answer, self._told = answer, told

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await _while_there(receive, self._send(send))
        finally:
            self._answer.ticket.close()
            self._told.update(completion_tokens=self._answer.ticket.num_written)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        events = _events(self._answer)
        try:
            async for event in events:
                await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
        finally:
            await events.aclose()  # type: ignore[attr-defined]
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _events(answer: Answer) -> AsyncIterator[str]:
    """Server-sent events, the last one [DONE]. An error in the middle is an event of its own, the last but one."""
    asked, options = answer.asked, answer.request.stream_options
    wants_usage = options is not None and options.include_usage
    keeps_counting = options is not None and options.continuous_usage_stats
    results: dict[int, Result] = {}
    warnings = asked.warnings
    try:
        async for event in answer.ticket.events(answer.ping_s or None):
            if event is None:
                yield PING
                continue
            number, what = event
            if isinstance(what, Result):
                results[number] = what
                continue
            for index, pieces in _by_choice(answer, number, what):
                chunk = answer.choices[index].add(pieces)
                if chunk is None and not asked.explains:
                    continue
                document = answer.head.with_(choices=[chunk or answer.choices[index].nothing()])
                if wants_usage:
                    document["usage"] = answer.usage if keeps_counting else None
                if asked.explains:
                    document["forerun"] = _explained(answer, number, index, pieces, what)
                if warnings:
                    document["warnings"], warnings = warnings, []
                yield _event(document)
        last = answer.head.with_(choices=[])
        if asked.explains:
            last["speculation"] = speculation([results[number] for number in sorted(results)])
        if wants_usage:
            last["usage"] = answer.usage
        if wants_usage or asked.explains:
            yield _event(last)
    except Exception as error:
        found = api_error(error)
        if found.status >= 500 and not isinstance(error, ApiError):
            log.error("a stream has failed", exc_info=error)
        yield _event(found.body)
    yield "data: [DONE]\n\n"


def _by_choice(answer: Answer, number: int, said: Said) -> list[tuple[int, list[Piece]]]:
    """(choice, its pieces). The prompt's own log probabilities, which come with the first, go to every choice."""
    found: dict[int, list[Piece]] = {}
    for piece in said.pieces:
        found.setdefault(answer.index(number, piece.choice), []).append(piece)
    if said.scores is not None:
        for place in range(answer.asked.params.n):
            choice = answer.choices[answer.index(number, place)]
            if isinstance(choice, CompletionChoice):
                choice.begin(said.scores, answer.ticket.jobs[number].prompt)
    return sorted(found.items())


def _explained(answer: Answer, number: int, index: int, pieces: Sequence[Piece], said: Said) -> dict[str, Any]:
    """Where the tokens of a chunk are from."""
    return {
        "tokens": [
            {"text": piece.text, "token": piece.token, "origin": piece.origin}
            for piece in pieces if piece.token is not None
        ],
        "rounds": [
            {"proposed": proposed, "accepted": accepted}
            for place, proposed, accepted in said.rounds if answer.index(number, place) == index
        ],
    }  # fmt: skip


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
"""Made once: json.dumps makes an encoder for every event."""


def _event(document: dict[str, Any]) -> str:
    """An event of one line, also to clients that end lines where Python's splitlines does (httpx)."""
    text = _encode(document)
    for sign in LINE_ENDS:
        if sign in text:
            text = text.replace(sign, f"\\u{ord(sign):04x}")
    return f"data: {text}\n\n"
