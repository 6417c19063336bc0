"""The native runtime under bad files, bad settings and too little memory: what it refuses is refused by name before any
weight is read."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.models.tiny_gguf import write_tiny_gguf
from tests.runtime.native_pair import LONG, PROMPTS

from forerun.errors import FileFormatError, ForerunError, ModelError, ParameterError, UnsupportedModelError
from forerun.loading import load
from forerun.models.gguf import open_gguf
from forerun.runtime import select
from forerun.runtime.native import check_native_model


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any, **settings: Any) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(select.Choice, "load", never)


# -- settings and files ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    "settings",
    [
        {"strict": "no"}, {"strict": None}, {"device": None}, {"device": 0}, {"dtype": None},
        {"draft_requantise": "no"}, {"draft_requantise": 1}, {"draft_vocabulary": True}, {"draft_context": 2.0},
        {"draft_runtime": None}, {"runtime": ["native"]}, {"draft_min_confidence": float("nan")},
    ],
    ids=str,
)  # fmt: skip
def test_settings_of_another_kind_are_refused_by_name(pair: tuple[Path, Path], settings: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=f"^{next(iter(settings))}: "):
        load(pair[0], draft=pair[1], **settings)


@pytest.mark.usefixtures("no_weights")
def test_a_draft_that_cannot_be_rounded_anew_is_refused_before_weights(pair: tuple[Path, Path], tmp_path: Path) -> None:
    odd = write_tiny_gguf(tmp_path / "odd.gguf", seed=3, feed_forward=50)
    check_native_model(odd)
    with pytest.raises(ParameterError, match=r"draft_requantise: .*blk.0.ffn_down.weight .* rows of 50"):
        load(pair[0], draft=odd, draft_requantise=True)


YARN = {"qwen2.rope.scaling.type": "yarn", "qwen2.rope.scaling.original_context_length": 32}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "metadata, error, message",
    [
        ({"qwen2.rope.freq_base": float("inf")}, FileFormatError, "rope.freq_base"),
        ({"qwen2.rope.freq_base": float("nan")}, FileFormatError, "rope.freq_base"),
        ({"qwen2.rope.freq_base": 1e-30}, UnsupportedModelError, "rotary frequency"),
        (YARN | {"qwen2.rope.scaling.factor": 2.0, "qwen2.rope.freq_base": 1.0}, FileFormatError, "with yarn"),
        (YARN | {"qwen2.rope.scaling.factor": float("inf")}, FileFormatError, "scaling.factor"),
        ({"qwen2.attention.layer_norm_rms_epsilon": float("inf")}, FileFormatError, "epsilon"),
        ({"qwen2.attention.layer_norm_rms_epsilon": -1.0}, FileFormatError, "epsilon"),
        ({"qwen2.context_length": 4294967295}, UnsupportedModelError, r"context_length is 4294967295: .* 1 to 2\^31"),
        ({"qwen2.block_count": 4294967295}, FileFormatError, "block_count is 4294967295"),
        ({"qwen2.attention.head_count": 128}, FileFormatError, "key_length"),
        ({"qwen2.attention.head_count": [4, 2]}, UnsupportedModelError, "from layer to layer"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_metadata_that_cannot_be(
    metadata: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", metadata=metadata)
    with pytest.raises(error, match=message):
        check_native_model(path)


def test_a_lowered_context_serves_a_file_that_names_none_that_can_be(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", metadata={"qwen2.context_length": 4294967295})
    with load(path, context_length=64, runtime="native") as llm:
        assert len(llm.generate([5, 6], ignore_eos=True, seed=1).tokens) == 62


def test_damaged_files_end_in_an_error_of_ours(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Bits of the header turned over, words of it replaced, and the file cut off anywhere."""
    whole, path, seen = pair[0].read_bytes(), tmp_path / "damaged.gguf", set()
    with open_gguf(pair[0]) as file:
        header = min(tensor.offset for tensor in file.tensors.values())
    for seed in range(150):
        generator, data = random.Random(seed), bytearray(whole)
        if seed % 3 == 0:
            data = data[: generator.randrange(len(data))]
        elif seed % 3 == 1:
            data[generator.randrange(header)] ^= 1 << generator.randrange(8)
        else:
            at = generator.randrange(header - 4)
            data[at : at + 4] = generator.choice([bytes(4), b"\xff" * 4, b"\x80\0\0\0"])
        path.write_bytes(data)
        try:
            with load(path, runtime="native") as llm:
                llm.generate([5, 6], max_tokens=1, seed=1)
            seen.add("fine")
        except ForerunError as error:
            seen.add(type(error).__name__)
    assert {"fine", "FileFormatError", "UnsupportedModelError"} <= seen


def test_a_file_may_change_or_vanish_once_it_is_loaded(
    pair: tuple[Path, Path], texts: list[tuple[int, ...]], tmp_path: Path
) -> None:
    files = [tmp_path / path.name for path in pair]
    for path, copy in zip(pair, files, strict=True):
        copy.write_bytes(path.read_bytes())
    with load(files[0], draft=files[1], k=3) as llm:
        files[0].write_bytes(bytes(100))
        files[1].unlink()
        assert [result.tokens for result in llm.generate(PROMPTS, seed=1, **LONG)] == texts
    with pytest.raises(ModelError):
        load(files[0])


# -- the environment and the machine -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "variable, value, runtime",
    [
        ("FORERUN_ISA", "AVX2", "native"),
        ("FORERUN_ISA", "mmx", "torch"),  # its rows go through the compiled module too
        ("FORERUN_THREADS", "many", "native"),
        ("FORERUN_THREADS", "0", "auto"),
    ],
)
def test_an_environment_that_cannot_be_obeyed_is_refused_before_weights(
    variable: str, value: str, runtime: str, pair: tuple[Path, Path]
) -> None:
    arguments = ["generate", "hi", "--target", str(pair[0]), "--runtime", runtime, "--max-tokens", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "forerun", *arguments],
        env={**os.environ, variable: value}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {variable}={value} ")
    assert "unset it" in done.stderr
    assert "loading" not in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
def test_weights_that_do_not_fit_into_memory_are_an_error_of_ours(pair: tuple[Path, Path]) -> None:
    code = """
import resource, sys
from pathlib import Path
from forerun import _native
from forerun.errors import ModelError
from forerun.runtime.native import check_native_model, load_native_model
path = Path(sys.argv[1])
check_native_model(path)
_native.num_threads()
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (16 << 20), resource.RLIM_INFINITY))
try:
    load_native_model(path)
except ModelError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
load_native_model(path)
"""
    done = subprocess.run([sys.executable, "-c", code, str(pair[0])], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "does not fit into memory" in done.stdout
    assert "bytes of weights" in done.stdout


def test_models_that_were_dropped_leave_nothing_behind(pair: tuple[Path, Path]) -> None:
    """Neither memory nor threads: one model's weights and workspaces are some megabytes."""

    def used() -> tuple[int, int]:
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE"), len(list(Path("/proc/self/task").iterdir()))

    if not Path("/proc/self/task").exists():
        pytest.skip("asks /proc")
    found = []
    for _ in range(2):
        for _ in range(15):
            with load(pair[0], draft=pair[1], k=3) as llm:
                llm.generate([5, 6], max_tokens=4, seed=1)
        found.append(used())
    assert found[1][0] - found[0][0] < 15 << 20
    assert found[1][1] == found[0][1]
