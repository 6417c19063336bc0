"""docs/serving.md is executed: every command, request and file in it, against servers of tiny models."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.serving import PATIENCE_S, Serving, wait_for

from forerun.loading import load
from forerun.server.app import REFUSED

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
FENCED = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
COMMANDS = [
    line.strip()
    for line in re.findall(
        r"^ {4}\S.*$", re.sub(r"^```.*?^```", "", PAGE, flags=re.DOTALL | re.MULTILINE), re.MULTILINE
    )
]
DEFAULT = "http://127.0.0.1:8000"


def blocks(language: str, begin: str = "") -> list[str]:
    return [text for kind, text in FENCED if kind == language and text.startswith(begin)]


def test_every_example_is_one_that_is_run_here() -> None:
    assert [kind for kind, _ in FENCED] == ["", "python", "json", "json", "toml"]
    assert all(command.startswith("forerun serve") for command in COMMANDS)
    assert len(COMMANDS) == 3


# -- requests ----------------------------------------------------------------------------------------------------------


def test_the_request_of_curl(served: Serving) -> None:
    """By curl itself where there is one; its words are what is sent in any case."""
    (command,) = blocks("", "curl")
    words = shlex.split(command.replace("\\\n", " "))
    assert words[0] == "curl"
    assert words[1].startswith(DEFAULT)
    url, header, data = (
        words[1].replace(DEFAULT, served.url),
        words[words.index("-H") + 1],
        words[words.index("-d") + 1],
    )
    name, _, value = header.partition(": ")
    answer = httpx.post(url, content=data, headers={name: value}, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    asked, found = json.loads(data), answer.json()
    assert "warnings" not in found
    expected = served.chat(asked["messages"], temperature=0, max_tokens=60)["choices"]
    assert found["choices"] == expected
    if curl := shutil.which("curl"):
        ran = subprocess.run([curl, "-s", url, *words[2:]], capture_output=True, check=True, timeout=PATIENCE_S)
        assert json.loads(ran.stdout)["choices"] == expected


def test_the_example_of_the_openai_client(served: Serving) -> None:
    (example,) = blocks("python")
    assert DEFAULT in example
    assert '"TARGET"' in example
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(example.replace(DEFAULT, served.url).replace("TARGET", "tiny"), "serving.md", "exec"), {})
    assert shown.getvalue()


def test_the_wishes_and_explanations_of_speculation(models: tuple[Path, Path]) -> None:
    with Serving(load(models[0], drafter="suffix")) as served:
        _check_speculation(served)


def _check_speculation(served: Serving) -> None:
    (wish,), (shown,) = (map(json.loads, blocks("json", f'{{"{name}"')) for name in ("speculation", "forerun"))
    plain = served.completion("the water is", temperature=0, max_tokens=30)
    found = served.completion("the water is", temperature=0, max_tokens=30, **wish)
    assert found["choices"] == plain["choices"]
    assert "warnings" not in found
    (figures,) = found["speculation"]["choices"]
    assert len(figures["histogram"]) <= wish["speculation"]["max_k"] + 1
    chunks = served.stream("/v1/completions", prompt="the water is", temperature=0, max_tokens=30, **wish)
    events = [chunk["forerun"] for chunk in chunks if "forerun" in chunk]
    assert {*events[0]} == {*shown["forerun"]}
    for part in ("tokens", "rounds"):
        assert {key for event in events for one in event[part] for key in one} == {*shown["forerun"][part][0]}
    origins = set(re.findall(r"\w+", re.search(r"where `origin` is (.*)\.", PAGE)[1])) - {"or"}  # type: ignore[index]
    assert {token["origin"] for event in events for token in event["tokens"]} <= origins


def test_every_path_is_served_or_refused_as_the_page_says(served: Serving) -> None:
    documented = set(served.client.get("/openapi.json").json()["paths"])
    named = re.findall(r"`(GET|POST) (/[\w/.]*)`", PAGE)
    for method, path in named:
        assert path in documented or path in ("/", "/openapi.json"), path
        if method == "GET":
            assert served.client.get(path).status_code == 200, path
    assert documented - {path for _, path in named} <= {"/v1/models/{name}"}, "each path is on the page"
    for path in re.findall(r"`(/v1/\w+)`(?=[^\n]* (?:are )?refused)", PAGE):
        assert path in REFUSED
        assert served.post(path, 404)["error"]["code"] == "not_served"


# -- commands ----------------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def running(words: list[str], port: int, env: dict[str, str] | None = None) -> Iterator[httpx.Client]:
    """What a command of the page starts, stopped by SIGTERM as the page says."""
    started = subprocess.Popen(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as client:

            def is_ready() -> bool:
                assert started.poll() is None, started.stdout.read()  # type: ignore[union-attr]
                try:
                    return client.get("/ready").status_code == 200
                except httpx.TransportError:
                    return False

            wait_for(is_ready)
            yield client
        started.terminate()
        assert started.wait(PATIENCE_S) == 0, started.stdout.read()  # type: ignore[union-attr]
    finally:
        started.kill()
        started.communicate()


def words_of(command: str, models: tuple[Path, Path], port: int) -> list[str]:
    """A command with models that are there, at a port that is free."""
    named = {"TARGET": str(models[0]), "DRAFT": str(models[1])}
    words = [named.get(word, word) for word in shlex.split(command.partition("#")[0])]
    if "--port" in words:
        words[words.index("--port") + 1] = str(port)
    return words


def ask(client: httpx.Client, key: str | None = None) -> httpx.Response:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return client.post("/v1/completions", json={"prompt": "the water", "max_tokens": 3}, headers=headers)


@pytest.mark.parametrize("number", range(len(COMMANDS)))
def test_the_commands_start_servers(number: int, models: tuple[Path, Path], tmp_path: Path) -> None:
    """With the settings that they name, those of the page's file, and those of the environment."""
    command, port = COMMANDS[number], free_port()
    words, env, key = words_of(command, models, port), {}, None
    if "--api-key" in words:
        key = words[words.index("--api-key") + 1]
    if "--config" in words:
        (text,) = blocks("toml")
        for name, model in zip(re.findall(r'^(?:target|draft) = "(.*)"', text, re.MULTILINE), models, strict=True):
            text = text.replace(f'"{name}"', json.dumps(str(model)))
        path = tmp_path / words[words.index("--config") + 1]
        path.write_text(text, encoding="utf-8")
        words[words.index("--config") + 1] = str(path)
        names = re.findall(r"`(FORERUN_SERVE_\w+)=(\S+?)`", PAGE)
        assert [name for name, _ in names] == ["FORERUN_SERVE_PORT", "FORERUN_SERVE_API_KEYS"]
        env = {**dict(names), "FORERUN_SERVE_PORT": str(port)}  # the environment goes before the file
        key = env["FORERUN_SERVE_API_KEYS"].split(",")[0]
    elif "--port" not in words:
        words += ["--port", str(port)]
    with running(words, port, env) as client:
        assert ask(client, key).status_code == 200
        assert ask(client).status_code == (200 if key is None else 401)
        assert "playground" in client.get("/").text.lower()
        settings: Any = client.get("/metrics", headers={"Authorization": f"Bearer {key}"}).text
        if "--config" in words:
            places = re.search(r"^forerun_sequences_limit\{.*\} (.*)$", settings, re.MULTILINE)
            assert places is not None
            assert float(places[1]) == 8, "max_running of the file"
