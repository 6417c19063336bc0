"""Settings: flags over the environment over a file; the command, and what it refuses."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.cli.conftest import invoke, quiet_environment, start  # noqa: F401
from tests.server.serving import PATIENCE_S

from forerun.errors import InputError, ParameterError
from forerun.extras import install_line
from forerun.server.config import ServerConfig, make_config, model_settings
from forerun.server.logs import JsonLines, TextLines

FILE = """
[server]
port = 9000
host = "0.0.0.0"
api_keys = ["a", "b"]
tenants = true
deadline_s = 5

[model]
target = "toy"
k = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "serve.toml"
    path.write_text(FILE)
    return path


def test_flags_go_before_the_environment_before_the_file(file: Path) -> None:
    environment = {"FORERUN_SERVE_PORT": "9001", "FORERUN_SERVE_MAX_RUNNING": "3", "FORERUN_SERVE_DRAFT": "toy-draft"}
    config = make_config({"max_running": 5, "host": None}, environment, file)
    assert (config.host, config.port, config.max_running) == ("0.0.0.0", 9001, 5)
    assert (config.api_keys, config.tenants, config.deadline_s) == (("a", "b"), True, 5.0)
    models = model_settings({"k": "auto"}, environment, file)
    assert models == {"target": "toy", "draft": "toy-draft", "k": "auto"}
    assert make_config({}, {"FORERUN_SERVE_API_KEYS": "x, y"}).api_keys == ("x", "y")
    assert make_config({}, {}) == ServerConfig()


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"FORERUN_SERVE_PORTS": "1"}, "ports: unknown setting of the server in the environment"),
        ({"FORERUN_SERVE_PORT": "many"}, "port: 'many' is not allowed in the environment"),
        ({"FORERUN_SERVE_PORT": "70000"}, "port: 70000 is not allowed"),
        ({"FORERUN_SERVE_TENANTS": "perhaps"}, "tenants"),
        ({"FORERUN_SERVE_LOG_FORMAT": "xml"}, "log_format"),
        ({"FORERUN_SERVE_API_KEYS": "a,,b"}, "an empty key"),
        ({"FORERUN_SERVE_MAX_REQUESTS": "2"}, "below max_running"),
    ],
)
def test_settings_that_are_wrong_are_named(environment: dict[str, str], words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        make_config({}, environment)


def test_files_that_are_wrong_are_named(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    for text, words in (
        ("= 1", "no TOML"),
        ("port = 1", r"tables \[server\] and \[model\]"),
        ("[server]\nx = 1", "x: unknown"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=words):
            make_config({}, {}, path)
    path.write_text("[model]\nx = 1")
    with pytest.raises(ParameterError, match="x: unknown setting of the model"):
        model_settings({}, {}, path)
    with pytest.raises(InputError, match="cannot read the configuration"):
        make_config({}, {}, tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"host": "0.0.0.0"}, "anybody who can reach 0.0.0.0"), ({"cors_origins": ("*",)}, "any web page")],
)
def test_open_doors_are_warned_of(settings: dict[str, Any], words: str) -> None:
    assert words in ServerConfig(**settings).warnings[0]
    assert ServerConfig(**settings, api_keys=("k",)).warnings == []
    assert ServerConfig().warnings == []
    assert not ServerConfig(host="::1").is_public
    assert ServerConfig(host="example.org").is_public


def test_lines_are_json_or_text() -> None:
    record = logging.LogRecord("forerun.server", logging.INFO, __file__, 1, "said %s", ("so",), None)
    record.request_id, record.status = "r1", 200
    line = json.loads(JsonLines().format(record))
    assert (line["message"], line["level"], line["request_id"], line["status"]) == ("said so", "info", "r1", 200)
    assert TextLines().format(record).endswith("said so [r1]")
    record.args = ("é\n12:00:00 INFO forged \x1b[31m\u2028",)
    assert TextLines().format(record).endswith("said é\\n12:00:00 INFO forged \\x1b[31m\\u2028 [r1]")


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_refuses_before_anything_is_loaded(invoke: Any, tmp_path: Path) -> None:  # noqa: F811
    for args, words in (
        ((), "there is no TARGET"),
        (("toy", "--port", "99999"), "--port: 99999"),
        (("toy", "--config", str(tmp_path / "none.toml")), "cannot read the configuration"),
        (("toy", "--host", "203.0.113.7"), "cannot listen at 203.0.113.7"),
        (("toy", "--bogus"), "--bogus"),
    ):
        done = invoke("serve", *args)
        assert done.exit_code == 2, done.output
        assert words in done.stderr.replace("\n", " ")


def test_the_command_says_what_to_install(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    done = invoke("serve", "toy")
    assert done.exit_code == 6
    assert "uvicorn is not installed" in done.stderr
    assert install_line("serve") in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_the_command_serves_until_it_is_told_to_stop(number: int) -> None:
    process = start("serve", "toy", "--port", "0", "--log-format", "json", "--model-name", "mine")
    try:
        url = _url(process)
        asked = {"prompt": "hello", "max_tokens": 5, "temperature": 0}
        response = httpx.post(f"{url}/v1/completions", json=asked, timeout=PATIENCE_S)
        assert len(response.json()["choices"][0]["text"]) == 5
        assert httpx.get(f"{url}/v1/models", timeout=PATIENCE_S).json()["data"][0]["id"] == "mine"
        process.send_signal(number)
        _, rest = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, rest
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM")
def test_running_streams_end_before_the_process() -> None:
    process = start("serve", "toy-slow", "--port", "0", "--drain", "600")
    try:
        url = _url(process)
        asked = {"prompt": "hello", "max_tokens": 30, "temperature": 0, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=asked, timeout=PATIENCE_S) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert "error" not in rest[-2]
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()


def _url(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if b"serving " in line:
            return line.decode().split(" at ")[1].strip()
    raise AssertionError(f"never served: {process.wait()}")


def test_an_address_that_is_taken_is_told() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = subprocess.run(
            [sys.executable, str(Path(__file__).parents[1] / "cli" / "toy_forerun.py"), "serve", "toy",
             "--port", str(taken.getsockname()[1])],
            capture_output=True, text=True, timeout=PATIENCE_S, env=dict(os.environ), check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert "cannot listen at 127.0.0.1" in done.stderr
