"""The host-time table: every setting runs, and the figures are of this machine."""

from __future__ import annotations

import json
import subprocess
import sys


def test_every_setting_is_measured() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "forerun.bench.host", "--vocabulary", "20000", "--repeats", "1"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    document = json.loads(done.stdout.splitlines()[-1])
    paths = document["milliseconds_per_row"]
    assert {"arrays"} <= set(paths) <= {"native", "arrays"}
    for figures in paths.values():
        assert {"greedy", "everything", "everything, seed", "verified, everything", "logprobs of 5"} <= set(figures)
        assert all(value >= 0.0 for value in figures.values())
    assert (document["vocabulary"], bool(document["hardware"]["cpu"])) == (20000, True)
