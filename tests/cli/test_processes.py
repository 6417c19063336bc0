"""What only a real process shows: Ctrl-C, broken pipes, full disks, and what gets imported."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.conftest import PATIENCE_S, Terminal, start

HEAVY = ("torch", "transformers", "tokenizers", "numpy", "llguidance")
GREEDY = ("--temperature", "0", "--max-tokens", "2000")

needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for another process")


def wait_for(process: subprocess.Popen[bytes], word: bytes = b"begun") -> None:
    """Until the model says `word` on standard error."""
    assert process.stderr is not None
    assert any(line == word + b"\n" for line in iter(process.stderr.readline, b"")), f"{word!r} never came"


@pytest.fixture(scope="module")
def whole_text() -> bytes:
    out, _ = start("generate", "hello", "--target", "toy", *GREEDY).communicate(timeout=PATIENCE_S)
    assert len(out) == 2000
    return out


@needs_signals
def test_ctrl_c_keeps_what_there_is(whole_text: bytes) -> None:
    process = start("generate", "hello", "--target", "toy-slow", *GREEDY)
    wait_for(process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert 0 < len(out) < 2000
    assert whole_text.startswith(out)
    assert f"{len(out)} (cancelled)".encode() in err, "the table counts what was printed"
    assert err.endswith(b"interrupted\n")
    assert b"Traceback" not in err


@needs_signals
def test_ctrl_c_in_json_prints_the_document(whole_text: bytes) -> None:
    process = start("generate", "hello", "--target", "toy-slow", *GREEDY, "--drafter", "lookup", "--compare", "--json")
    wait_for(process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    document = json.loads(out)
    assert document["finish_reason"] == "cancelled"
    assert document["comparison"] is None
    assert 0 < len(document["tokens"]) == document["usage"]["completion_tokens"] < 2000
    assert whole_text.decode().startswith(document["text"])
    assert err == b"interrupted\n"


@needs_signals
@pytest.mark.parametrize("prompt, num_tokens", [("hello", 3), ("long prompt", 0)])
def test_ctrl_c_ends_a_pass_that_does_not_end(whole_text: bytes, prompt: str, num_tokens: int) -> None:
    """While reading the prompt the first one is enough; later a second one is."""
    process = start("generate", prompt, "--target", "toy-stuck", *GREEDY)
    wait_for(process)
    process.send_signal(signal.SIGINT)
    if num_tokens:
        wait_for(process, b"asked")
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert out == whole_text[:num_tokens]
    assert b"Traceback" not in err


def test_a_reader_that_leaves_ends_it_quietly() -> None:
    process = start("generate", "hello", "--target", "toy-slow", *GREEDY)
    assert process.stdout is not None
    assert process.stdout.read(1)
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() in (b"", b"begun\n")
    assert process.wait(PATIENCE_S) == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_said_once() -> None:
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
        process = start("generate", "hello", "--target", "toy", *GREEDY, stdout=full)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert err.count(b"No space left on device") == 1
    assert b"Exception ignored" not in err


@pytest.mark.parametrize("args", ["--help", "--version", "", "generate --help", "chat --help", "pull --help"])
def test_help_imports_nothing_heavy(args: str) -> None:
    code = (
        "import sys; sys.argv[1:] = sys.argv[1].split()\n"
        "from forerun.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert end.code == 0, end.code\n"
        f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, args], capture_output=True, timeout=PATIENCE_S, check=True)
    assert done.stderr.decode().strip() == "[]"
    assert b"forerun" in done.stdout


def test_importing_forerun_imports_nothing_heavy() -> None:
    code = f"import sys, forerun; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=PATIENCE_S, check=True)
    assert done.stdout.strip() == b"[]"


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "forerun", "genrate"], capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 2
    assert done.stderr.decode() == (
        "error: there is no command 'genrate'. perhaps you meant generate. see forerun --help.\n"
    )


# -- chat on a terminal ----------------------------------------------------------------------------------------------


def test_a_conversation_on_a_terminal(terminal: type[Terminal]) -> None:
    one = terminal("chat", "--target", "toy", "--temperature", "0", "--max-tokens", "9", NO_COLOR="1")
    one.read_until("> ")
    one.type("hello\n")
    one.read_until("(9 tokens")
    one.read_until("> ")
    one.type("/stats\n")
    assert "1 (9 tokens)" in one.read_until("> ")
    one.type("/exit\n")
    assert one.wait() == 0


def test_ctrl_c_stops_an_answer_and_keeps_the_session(terminal: type[Terminal]) -> None:
    one = terminal("chat", "--target", "toy-slow", "--temperature", "0", NO_COLOR="1")
    one.read_until("> ")
    one.type("x\n")
    one.read_until("begun")
    one.type("\x03")
    assert "stopped" in one.read_until("> ")
    # readline shows its prompt a moment before it listens for signals; a person is never that quick.
    time.sleep(0.5)
    one.type("\x03")
    one.read_until("/exit or Ctrl-D ends the session")
    one.read_until("> ")
    one.type("/stats\n")
    assert "answers" in one.read_until("> ")
    one.type("\x04")
    assert one.wait() == 0
