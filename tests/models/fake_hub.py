"""A stand-in for the Hub on 127.0.0.1: the few endpoints huggingface_hub asks, ranges and refusals included."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """`repositories[name][file]` are the bytes. The other attributes are faults to play, by file or repository."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.tags: list[str] = ["license:apache-2.0"]
        self.commit = COMMIT
        self.listed_sha256: dict[str, str] = {}
        self.refuse: dict[str, tuple[int, str]] = {}  # repository -> status and X-Error-Code of every answer
        self.refuse_files: dict[str, tuple[int, str]] = {}  # the same, for /resolve/ only
        self.cut: dict[str, list[int]] = {}  # file -> connections to cut after so many bytes
        self.stall_after: dict[str, int] = {}  # file -> send so many bytes, then nothing
        self.ignore_ranges = False
        self.no_hashes = False
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.released = threading.Event()
        self.endpoint = ""

    def gets(self, file: str) -> list[dict[str, str]]:
        """The headers of every GET of `file`, lower-case names."""
        return [headers for method, path, headers in self.requests if method == "GET" and path.endswith(f"/{file}")]

    def listing(self, name: str) -> dict[str, object]:
        siblings = []
        for file, data in self.repositories[name].items():
            item: dict[str, object] = {"rfilename": file}
            if not self.no_hashes:
                item["size"] = len(data)
                item["blobId"] = hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()
                if file.endswith((".gguf", ".safetensors")):
                    sha256 = self.listed_sha256.get(file, hashlib.sha256(data).hexdigest())
                    item["lfs"] = {"size": len(data), "sha256": sha256, "pointerSize": 130}
            siblings.append(item)
        return {"id": name, "modelId": name, "sha": self.commit, "tags": self.tags, "siblings": siblings}


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append((self.command, path, {key.lower(): value for key, value in self.headers.items()}))
            if path.startswith("/api/models/"):
                name = "/".join(path.split("/")[3:5])
                if name in hub.refuse:
                    return self.refusal(*hub.refuse[name])
                if name not in hub.repositories:
                    return self.refusal(404, "RepoNotFound")
                return self.reply(json.dumps(hub.listing(name)).encode(), "application/json")
            name, _, file = path.removeprefix("/").partition("/resolve/")
            file = file.partition("/")[2]
            if name in hub.refuse_files:
                return self.refusal(*hub.refuse_files[name])
            if file not in hub.repositories.get(name, {}):
                return self.refusal(404, "EntryNotFound")
            return self.file(file, hub.repositories[name][file])

        def refusal(self, status: int, code: str) -> None:
            self.send_response(status)
            if code:
                self.send_header("X-Error-Code", code)
            self.send_header("X-Error-Message", f"the stand-in says {status}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def reply(self, data: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        def file(self, file: str, data: bytes) -> None:
            begin = 0
            wanted = self.headers.get("Range", "")
            if wanted.startswith("bytes=") and not hub.ignore_ranges:
                begin = int(wanted.removeprefix("bytes=").partition("-")[0])
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
            else:
                self.send_response(200)
            self.send_header("X-Repo-Commit", hub.commit)
            self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
            self.send_header("Content-Length", str(len(data) - begin))
            self.end_headers()
            if self.command == "HEAD":
                return
            end = len(data)
            if hub.cut.get(file):
                end = begin + hub.cut[file].pop(0)
                self.close_connection = True
            if file in hub.stall_after:
                self.wfile.write(data[begin : begin + hub.stall_after[file]])
                self.wfile.flush()
                hub.released.wait(60)
                self.close_connection = True
                return
            self.wfile.write(data[begin:end])

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


@contextmanager
def running_hub() -> Iterator[FakeHub]:
    """A stand-in that serves until the block ends."""
    hub = FakeHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.released.set()
        server.shutdown()
        server.server_close()
