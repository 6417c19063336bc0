"""Instruction sets that this machine lacks, run in an emulator: they compute what it computes, bit for bit.

The harness (emulated/harness.cpp) writes down what kernels, rows and whole decoders compute. It is built for this
machine, with AVX-VNNI as AVX2 models it, and for 64-bit ARM, where QEMU runs it. Debian: apt install
g++-aarch64-linux-gnu qemu-user-static.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.programs import find_program

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build"
ARM = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64", "-DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++"]
QEMU = "qemu-aarch64-static"

pytestmark = [pytest.mark.slow, pytest.mark.needs("cmake", "c++")]
needs_arm = pytest.mark.needs("aarch64-linux-gnu-g++", QEMU)


def build(name: str, *options: str) -> str:
    """The harness, built or brought up to date: its path."""
    cmake, ninja, folder = find_program("cmake"), find_program("ninja"), BUILD / f"emulated-{name}"
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []
    configure = [cmake, "-S", HERE / "emulated", "-B", folder, "-DCMAKE_BUILD_TYPE=Release", *generator, *options]
    for command in (configure, [cmake, "--build", folder, "--parallel", str(len(os.sched_getaffinity(0)))]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return str(folder / "harness")


def start(command: list[str], isa: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "FORERUN_ISA": isa}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def records(path: Path) -> Iterator[tuple[str, bytes]]:
    data, at = path.read_bytes(), 0
    while at < len(data):
        name_size, size = (int.from_bytes(data[at + i : at + i + 4], "little") for i in (0, 4))
        yield data[at + 8 : at + 8 + name_size].decode(), data[at + 8 + name_size : at + 8 + name_size + size]
        at += 8 + name_size + size


def assert_same(computed: Path, reference: Path) -> None:
    if computed.read_bytes() == reference.read_bytes():
        return
    mine, theirs = list(records(computed)), list(records(reference))
    different = [a[0] for a, b in zip(mine, theirs, strict=False) if a != b]
    pytest.fail(f"{len(different)} records differ, {len(mine)} of {len(theirs)} are there; the first: {different[:5]}")


@pytest.fixture(scope="module")
def native() -> str:
    return build("native", "-DFORERUN_MODEL_VNNI=ON")


@pytest.fixture(scope="module")
def arm() -> str:
    return build("aarch64", *ARM)


@pytest.fixture(scope="module")
def reference(native: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reference") / "portable"
    done = start([native, str(path)], "portable")
    assert done.returncode == 0, done.stderr
    assert sum(1 for _ in records(path)) > 10_000
    return path


@pytest.mark.thorough
def test_every_set_that_runs_here(native: str, reference: Path, tmp_path: Path) -> None:
    isas = start([native, "--isas"]).stdout.split()
    assert isas[-1] == "portable"
    for isa in isas[:-1]:
        done = start([native, str(tmp_path / isa)], isa)
        assert done.stdout.startswith(f"{isa}, rows {isa}\n"), done.stderr
        assert_same(tmp_path / isa, reference)


@needs_arm
@pytest.mark.parametrize("cpu, isa", [("cortex-a76", "neon"), ("cortex-a53", "portable")])
def test_arm(arm: str, reference: Path, tmp_path: Path, cpu: str, isa: str) -> None:
    """The best set is chosen: dot products where the processor has them (a Cortex-A53 has not)."""
    done = start([QEMU, "-cpu", cpu, arm, str(tmp_path / isa)])
    assert done.stdout.startswith(f"{isa}, rows {isa}\n"), done.stderr
    assert_same(tmp_path / isa, reference)


@needs_arm
@pytest.mark.parametrize(
    "cpu, isas", [("neoverse-n1", ["neon", "portable"]), ("cortex-a72", ["portable"]), ("a64fx", ["portable"])]
)
def test_an_arm_processor_is_asked_what_it_runs(arm: str, cpu: str, isas: list[str]) -> None:
    assert start([QEMU, "-cpu", cpu, arm, "--isas"]).stdout.split() == isas


@needs_arm
@pytest.mark.parametrize("isa", ["neon", "avx2"])
def test_an_arm_processor_refuses_what_it_does_not_run(arm: str, isa: str, tmp_path: Path) -> None:
    done = start([QEMU, "-cpu", "cortex-a53", arm, str(tmp_path / "none")], isa)
    assert done.returncode == 1
    assert done.stderr == f"FORERUN_ISA={isa} cannot run here: this machine runs portable\n"
