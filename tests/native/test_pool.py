"""The thread pool: every piece of a loop is done once, whatever else happens."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest
from tests.helpers import in_threads
from tests.native.decoders import build, rows_of, text, tiny

from forerun import _native


@pytest.mark.parametrize("num_threads", [0, 1, 2, 3, 8])
@pytest.mark.parametrize("num_pieces", [0, 1, 2, 7, 1000])
def test_every_piece_is_done_once(num_threads: int, num_pieces: int) -> None:
    counts = np.zeros(num_pieces, np.int32)
    for _ in range(20 if num_threads else 500):
        _native.run_pieces(counts, num_threads=num_threads)
    assert (counts == (20 if num_threads else 500)).all()


@pytest.mark.parametrize("num_threads", [0, 1, 4])
@pytest.mark.parametrize("num_pieces", [1, 50])
def test_a_failing_piece_is_reported_after_all_pieces(num_threads: int, num_pieces: int) -> None:
    counts = np.zeros(num_pieces, np.int32)
    for loop in range(1, 20):
        with pytest.raises(RuntimeError, match="piece 0 failed"):
            _native.run_pieces(counts, failing=0, num_threads=num_threads)
        assert (counts == loop).all()
    _native.run_pieces(counts, num_threads=num_threads)  # and nothing of it is left
    assert (counts == 20).all()


def test_threads_take_turns() -> None:
    counts = [np.zeros(30000, np.int32) for _ in range(4)]  # long enough to meet others' loops

    def loops(mine: np.ndarray) -> None:
        for _ in range(40):
            _native.run_pieces(mine)

    in_threads([partial(loops, mine) for mine in counts])
    assert all((mine == 40).all() for mine in counts)


def test_a_sleeping_team_wakes_up() -> None:
    counts = np.zeros(16, np.int32)
    for _ in range(5):
        time.sleep(0.05)  # longer than threads spin
        _native.run_pieces(counts)
    assert (counts == 5).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_a_team_of_its_own() -> None:
    model = tiny()
    decoder = build(model)
    tokens = text(model, 60)
    expected = rows_of(decoder, tokens, model.vocabulary_size)
    child = os.fork()
    if child == 0:  # and a child of the child
        inner = os.fork()
        same = np.array_equal(rows_of(decoder, tokens, model.vocabulary_size), expected)
        if inner:
            same = same and os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]) == 0
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(rows_of(decoder, tokens, model.vocabulary_size), expected)


def with_threads(wanted: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from forerun import _native; print(_native.num_threads())"]
    env = {**os.environ, "FORERUN_THREADS": wanted}
    return subprocess.run(command, env=env, check=False, capture_output=True, text=True)


@pytest.mark.parametrize("wanted, found", [("1", 1), ("3", 3), ("", None)])
def test_the_environment_sets_the_number_of_threads(wanted: str, found: int | None) -> None:
    assert int(with_threads(wanted).stdout) == (found or len(os.sched_getaffinity(0)))


@pytest.mark.parametrize("wanted", ["0", "-3", "many", "3x", "1.5", "4097", "9" * 30])
def test_what_is_no_number_of_threads_is_refused(wanted: str) -> None:
    done = with_threads(wanted)
    assert done.returncode != 0
    assert f"RuntimeError: FORERUN_THREADS={wanted} is no number of threads from 1 to 4096" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
def test_a_system_that_allows_fewer_threads_gives_fewer() -> None:
    """Stacks of 4,095 threads do not fit: those that do take part in the work."""
    code = """
import resource
import numpy as np
from forerun import _native
counts = np.zeros(1000, np.int32)
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
_native.run_pieces(counts)
assert (counts == 1).all()
assert 1 < _native.num_threads() < 4096
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "FORERUN_THREADS": "4096"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
