"""Servers that say what a test wants them to, for tests of the load test itself."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Script = Callable[[dict[str, Any]], Iterator[bytes | None]]
"""A request's body -> the bytes to send one after the other; None hangs up."""


def chunk(text: str, reason: str | None = None, *, tokens: int | None = None, name: str = "c-1") -> bytes:
    """A chunk of a streamed completion; `tokens` so far where the server counts them."""
    document: dict[str, Any] = {"id": name, "choices": [{"index": 0, "text": text, "finish_reason": reason}]}
    if tokens is not None:
        document["usage"] = {"prompt_tokens": 3, "completion_tokens": tokens}
    return event(document)


def event(document: Any) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def total(tokens: int) -> bytes:
    """The last chunk but [DONE]: what was used."""
    return event({"id": "c-1", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": tokens}})


DONE = b"data: [DONE]\n\n"


class Fake:
    """`with Fake(script, owner="forerun") as one: one.url`; `bodies` are the requests that came. It may close the
    connection after each answer, and say so beforehand."""

    def __init__(
        self, script: Script, owner: str = "somebody", status: int = 200, closes: bool = False, says_so: bool = False
    ) -> None:
        fake = self
        self.bodies: list[dict[str, Any]] = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                document = {"data": [{"id": "it", "owned_by": owner}]} if self.path == "/v1/models" else {}
                self.whole(200, document)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                fake.bodies.append(body)
                if status != 200:
                    return self.whole(status, {"error": {"message": "too many"}})
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                if closes and says_so:
                    self.send_header("Connection", "close")
                self.end_headers()
                try:
                    for piece in script(body):
                        if piece is None:
                            self.close_connection = True
                            return None
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                        self.wfile.flush()
                    self.wfile.write(b"0\r\n\r\n")
                    self.close_connection = self.close_connection or closes
                except OSError:
                    self.close_connection = True
                return None

            def whole(self, status: int, document: Any) -> None:
                raw = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Fake:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.shutdown()
        self._server.server_close()


def saying(*pieces: bytes | None) -> Script:
    """The same answer to everything."""
    found: Sequence[bytes | None] = pieces
    return lambda body: iter(found)
