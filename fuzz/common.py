"""What every harness shares: what counts as a finding, where findings go, and limits on time and memory.

A harness gives `main` a function of bytes. ForerunError and nothing else may come out of it. Whatever does (another
exception, more than MAX_CPU_S of processor time, a mapping out of proportion) is written to the folder FUZZ_FINDINGS
names, once for each place in our code, and the run goes on; crashes, sanitizer reports and large allocations end the
process, and libFuzzer or the sanitizer writes what they were. With FUZZ_STRICT=1 the first finding ends the run.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_CPU_S = 5.0
"""Processor time of one input, all threads together: wall time says little on a machine that others use too."""
FINDINGS = Path(os.environ.get("FUZZ_FINDINGS", "findings"))
SCRATCH = Path(os.environ.get("FUZZ_SCRATCH", "/dev/shm" if Path("/dev/shm").is_dir() else "."))
BASES = Path(os.environ.get("FUZZ_BASES", "bases"))
"""What fuzz/bases.py made."""
_seen: set[str] = set()


class HangError(BaseException):
    """The input took too long. Not an Exception, so that nothing swallows it."""


class ProportionError(BaseException):
    """The input made us map far more memory than it has bytes."""


def main(one: Callable[[bytes], None], name: str) -> None:
    """Run `one` under libFuzzer, with the command line's options and corpus folders."""
    import atheris

    signal.signal(signal.SIGPROF, late)
    atheris.Setup(sys.argv, lambda data: run(one, data, name) and None)
    atheris.Fuzz()


def run(one: Callable[[bytes], None], data: bytes, name: str) -> str:
    """`one` on one input: "fine", the name of an error of ours, or "finding", which is written down."""
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)
    try:
        one(data)
        return "fine"
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        signal.setitimer(signal.ITIMER_PROF, 0)
        if _is_ours(error):
            return type(error).__name__
        _report(error, data, name)
        return "finding"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def scratch(name: str) -> Path:
    """A file of this process in memory."""
    return SCRATCH / f"forerun-fuzz-{os.getpid()}-{name}"


def check_mapped(before: int, file_bytes: int) -> None:
    """ProportionError if the process has mapped out of proportion since `before` (from `mapped`): threads' stacks and
    allocator's arenas are the 320 MiB."""
    grown = mapped() - before
    if grown > (320 << 20) + 64 * file_bytes:
        raise ProportionError(f"{grown >> 20} MiB were mapped for a file of {file_bytes} bytes")


def mapped() -> int:
    """Bytes of this process's mappings."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")


def use(model: Any, take: Any) -> None:
    """One pass of a NativeModel over a few tokens, and a step back."""
    from forerun.types import Span

    size, limit = model.capabilities.vocabulary_size, model.capabilities.context_length
    tokens = [take.ConsumeIntInRange(0, size - 1) for _ in range(min(5, limit))]
    model.begin(0)
    rows = model.forward([Span(0, 0, tokens, min(2, len(tokens)))]).matrix
    assert rows.shape == (min(2, len(tokens)), size)
    model.keep(0, 1)
    model.free(0)


def late(*_: object) -> None:
    """The signal that an input takes too long."""
    raise HangError(f"more than {MAX_CPU_S} s")


def _is_ours(error: BaseException) -> bool:
    from forerun.errors import ForerunError

    return isinstance(error, ForerunError)


def _report(error: BaseException, data: bytes, name: str) -> None:
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if f"{os.sep}forerun{os.sep}" in frame.filename
    ]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    kind = f"{type(error).__name__} at {place}"
    if kind in _seen:
        return
    _seen.add(kind)
    FINDINGS.mkdir(parents=True, exist_ok=True)
    stem = FINDINGS / f"{name}-{hashlib.sha256(kind.encode()).hexdigest()[:10]}"
    stem.with_suffix(".input").write_bytes(data)
    stem.with_suffix(".txt").write_text(kind + "\n" + "".join(traceback.format_exception(error))[-6000:])
    print(f"FINDING {kind}: {str(error)[:200]}", file=sys.stderr, flush=True)
    if os.environ.get("FUZZ_STRICT"):
        raise error
