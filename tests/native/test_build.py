"""Building the compiled module: what is shipped, and what somebody without a compiler is told."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytest.importorskip("scikit_build_core", reason="the build backend is not installed here")


def without_compilers(folder: Path) -> dict[str, str]:
    """An environment whose PATH has cmake and ninja and nothing else."""
    tools = folder / "bin"
    tools.mkdir()
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    for name in ("cmake", "ninja"):
        found = shutil.which(name, path=search)
        if found is None:
            pytest.skip(f"there is no {name}")
        (tools / name).symlink_to(found)
    kept = {name: value for name, value in os.environ.items() if name not in ("CXX", "CC", "CXXFLAGS")}
    return {**kept, "PATH": str(tools)}


@pytest.mark.skipif(os.name != "posix", reason="hides compilers by PATH")
@pytest.mark.parametrize("compiler", [None, "/nonexistent/c++"])
def test_without_a_compiler_pip_ends_with_what_to_install(compiler: str | None, tmp_path: Path) -> None:
    env = without_compilers(tmp_path)
    if compiler is not None:
        env["CXX"] = compiler
    arguments = ["pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(tmp_path / "wheels")]
    done = subprocess.run(
        [sys.executable, "-m", *arguments, "-C", f"build-dir={tmp_path / 'build'}", str(ROOT)],
        capture_output=True, text=True, check=False, env=env,
    )  # fmt: skip
    assert done.returncode != 0
    lines = (done.stdout + done.stderr).strip().splitlines()
    said = " ".join(line.strip(" │") for line in lines[-25:])
    assert "forerun's native runtime needs a C++17 compiler and none was found." in said
    assert "apt install g++" in said
    assert "CXX=/path/to/compiler" in said


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_a_build_for_two_processors_at_once_is_refused(tmp_path: Path) -> None:
    """Each has its own kernels, and one run of CMake compiles every source for both."""
    source = ROOT / "tests" / "native" / "emulated"  # the same csrc/CMakeLists.txt, without what the module needs
    done = subprocess.run(
        ["cmake", "-S", source, "-B", tmp_path, "-DCMAKE_OSX_ARCHITECTURES=arm64;x86_64"],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])},
    )  # fmt: skip
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    assert "compiled for one processor at a time" in said
    assert "not universal2" in said


def test_the_source_distribution_has_what_a_build_needs(tmp_path: Path) -> None:
    code = f"from scikit_build_core.build import build_sdist; print(build_sdist({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    with tarfile.open(tmp_path / done.stdout.split()[-1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {
        "CMakeLists.txt",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "src/forerun/_native.pyi",
        "src/forerun/py.typed",
    }
    needed |= {str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*") if path.is_file()}
    needed |= {str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*.py")}
    needed |= {"src/forerun/models/registry.json", "tests/conftest.py", "docs/design.md"}
    assert not needed - names
    unwanted = [name for name in names if name.endswith((".so", ".pyc", ".gguf")) or name.startswith((".git", "build"))]
    assert not unwanted


@pytest.mark.slow
def test_the_wheel_has_the_module_and_nothing_strange(tmp_path: Path) -> None:
    """From the build directory that `make` keeps, so that only what changed is compiled."""
    arguments = [
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-w",
        str(tmp_path),
        str(ROOT),
    ]
    subprocess.run([sys.executable, "-m", *arguments], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    compiled = [name for name in names if name.endswith((".so", ".pyd"))]
    assert len(compiled) == 1
    assert compiled[0].startswith("forerun/_native.")
    modules = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    assert not {*modules, "forerun/_native.pyi", "forerun/py.typed", "forerun/models/registry.json"} - names
    assert all(name.startswith(("forerun/", "forerun-")) for name in names)
    assert wheel.stat().st_size < 5_000_000


MINGW = "x86_64-w64-mingw32-g++-posix"
CORE = [
    path
    for folder in ("core", "weights", "decoder", "rows", "kernels")
    for path in sorted((ROOT / "csrc" / folder).glob("*.cpp"))
    if path.name != "kernels.cpp"
]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(MINGW) is None, reason=f"there is no {MINGW}: the Windows build is not checked")
def test_the_sources_compile_for_windows() -> None:
    """All but the Python bindings, whose headers are Windows' own."""
    flags = ["-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'csrc'}"]
    kernels = [*sorted((ROOT / "csrc/kernels/per_isa").glob("*.cpp")), ROOT / "csrc/rows/kernels.cpp"]
    for source in CORE:
        subprocess.run([MINGW, *flags, "-DFORERUN_HAS_AVX2", "-DFORERUN_HAS_AVX512VNNI", str(source)], check=True)
    for isa, options in {"portable": [], "avx2": ["-mavx2", "-mfma", "-mf16c", "-DFORERUN_LANES_AVX2"]}.items():
        for source in kernels:
            names = [f"-DFORERUN_ISA={isa}", f'-DFORERUN_ISA_NAME="{isa}"']
            subprocess.run([MINGW, *flags, *names, *options, str(source)], check=True)


def test_wheels_are_configured_for_every_system() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no tomllib")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["cibuildwheel"]
    assert {"linux", "macos", "windows"} <= set(settings)
    assert "universal2" not in settings["macos"]["archs"], "kernels are chosen by processor"
    assert (ROOT / settings["test-command"].split("{project}/")[1]).is_file()


def test_the_smoke_test_of_wheels_refuses_the_checkout() -> None:
    """It would prove nothing about the wheel."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/wheel_smoke.py")],
        capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert done.returncode == 1
    assert "from the checkout" in done.stdout
