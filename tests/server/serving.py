"""Servers in this process, on free ports, and what a test asks them with."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import numpy as np
from tests.cli.toys import EOS, LETTERS, SIZE, ByteTokenizer

from forerun.llm import LLM
from forerun.runtime.toy import ToyModel
from forerun.server.config import ServerConfig
from forerun.server.run import Server, bind, prepare

PATIENCE_S = 900.0
"""Long enough for a machine that stands still for minutes; only a hang is caught by it."""


class Serving:
    """A server over an LLM, in a thread; `with Serving(llm, max_requests=2) as one: one.post(...)`."""

    def __init__(self, llm: LLM, name: str = "tiny", **settings: Any) -> None:
        config = ServerConfig(**{"port": 0, **settings})
        prepare(llm, config)
        listening = bind(config)
        self.llm, self.server = llm, Server(llm, config, name, listening)
        self.url, self.worker = self.server.url, self.server.service.worker
        self._thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listening]}, daemon=True)

    def __enter__(self) -> Serving:
        self._thread.start()
        wait_for(lambda: self.server.started)
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE_S)
        return self

    def __exit__(self, *_: Any) -> None:
        self.client.close()
        self.stop()
        self.join()

    def stop(self) -> None:
        """What SIGTERM does."""
        self.server.should_exit = True

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the server does not end"

    def post(self, path: str, status: int = 200, headers: Any = None, **body: Any) -> Any:
        """The document of an answer with this status."""
        response = self.client.post(path, json=body, headers=headers)
        assert response.status_code == status, response.text
        return response.json()

    def completion(self, prompt: Any, **body: Any) -> Any:
        return self.post("/v1/completions", prompt=prompt, **body)

    def chat(self, content: Any, **body: Any) -> Any:
        messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
        return self.post("/v1/chat/completions", messages=messages, **body)

    def stream(self, path: str, **body: Any) -> list[Any]:
        """The documents of a streamed answer; it must end as one does."""
        if "prompt" not in body and "messages" not in body:
            body["messages"] = [{"role": "user", "content": "hi"}]
        with self.client.stream("POST", path, json={**body, "stream": True}) as response:
            lines = [line for line in response.iter_lines() if line]
            assert response.status_code == 200, lines
            assert response.headers["content-type"].startswith("text/event-stream")
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1] if not line.startswith(":")]

    def wait_until_idle(self) -> None:
        """Nothing is held any more: no job, no sequence, and no cache but those that are kept."""
        engine = self.llm.engine
        wait_for(lambda: self.worker.num_held == 0 and engine.is_idle and not engine.scheduler.running)
        assert not engine.scheduler.waiting
        assert not self.llm._outbox


def wait_for(condition: Callable[[], Any], what: str = "") -> None:
    """Come back when it is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"never: {what or condition}"
        time.sleep(0.005)


def slow_llm(seconds: float = 0.03, gate: threading.Event | None = None, fail: Callable[[], None] | None = None) -> LLM:
    """A toy that writes letters without end, `seconds` a pass; passes wait for `gate`, and `fail` may raise."""

    def logits_of(tokens: tuple[int, ...]) -> np.ndarray:
        if gate is not None:
            assert gate.wait(PATIENCE_S)
        if fail is not None:
            fail()
        time.sleep(seconds)
        row = np.full(SIZE, -40.0)
        row[LETTERS] = np.random.default_rng(tokens[-2:]).normal(0.0, 4.0, len(LETTERS))
        return row

    return LLM(ToyModel(logits_of, SIZE, 4096), ByteTokenizer())  # type: ignore[arg-type]


def gated_llm() -> tuple[LLM, threading.Semaphore]:
    """`slow_llm` without delays, whose passes each wait for a release of the semaphore."""
    gate, llm = threading.Semaphore(0), slow_llm(0)
    forward = llm.engine.target.forward

    def gated(spans: Any) -> Any:
        assert gate.acquire(timeout=PATIENCE_S)
        return forward(spans)

    llm.engine.target.forward = gated  # type: ignore[method-assign]
    return llm, gate


def scripted_llm(text: str, opening: str = "", drafter: Any = None) -> LLM:
    """A toy that answers every chat and prompt with `text`, a byte a token, and ends. Each of several texts of one
    request gets the same. Its chats end in `opening`, "<think>" of a model that always thinks."""
    script = [*text.encode(), EOS]

    def logits_of(tokens: tuple[int, ...]) -> np.ndarray:
        row = np.full(SIZE, -40.0)
        row[script[min(_num_after(tokens), len(script) - 1)]] = 0.0
        return row

    def _num_after(tokens: tuple[int, ...]) -> int:
        marker = tuple(b"<a>")
        at = next((i for i in range(len(tokens) - 3, -1, -1) if tokens[i : i + 3] == marker), None)
        if at is None:
            return len(tokens) - 1
        rest = bytes(tokens[at + 3 :])  # bytes alone: the end of the text is the last token there is
        for shown in (f"{opening}</think>\n\n", opening) if opening else ():
            if rest.startswith(shown.encode()):
                return len(rest) - len(shown)
        return len(rest)

    return LLM(ToyModel(logits_of, SIZE, 4096), ChattyTokenizer(opening), drafter)  # type: ignore[arg-type]


class ChattyTokenizer(ByteTokenizer):
    """The toys' tokenizer, whose chats end in <a>, and which is asked as a real one is. Those of a model that thinks
    end in `opening`, and close it where no thoughts are wanted."""

    def __init__(self, opening: str = "") -> None:
        super().__init__()
        self.opening, self.chat_template = opening, opening

    def encode_chat(self, messages: Sequence[Any], enable_thinking: bool = True, **extra: Any) -> list[int]:
        end = self.opening if enable_thinking or not self.opening else f"{self.opening}</think>\n\n"
        return self.encode("".join(f"<{m['role'][0]}>{m['content']}" for m in messages) + "<a>" + end)

    def decode(self, ids: Sequence[int], **settings: Any) -> str:
        return bytes(one for one in ids if one < 256).decode(errors="replace")


def text_of(chunks: Sequence[Any], index: int = 0) -> str:
    """The text of one choice of a stream, of a completion or a chat."""
    parts = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] == index:
                parts.append(choice["text"] if "text" in choice else choice["delta"].get("content") or "")
    return "".join(parts)


def reasons_of(chunks: Sequence[Any]) -> dict[int, str]:
    """Choice -> why it ended; each ends once."""
    found: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["finish_reason"] is not None:
                assert choice["index"] not in found
                found[choice["index"]] = choice["finish_reason"]
    return found


logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
