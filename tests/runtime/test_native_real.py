"""The native runtime on real weights: how close to float32, how much memory, and the same text under speculation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.closeness import Closeness
from tests.runtime.contract import feed
from tests.runtime.real import pulled

from forerun.runtime.native import NativeModel, load_native_model

pytestmark = pytest.mark.slow

NAMES = ["smollm2-135m", "qwen2.5-coder-0.5b"]
PROSE = Path(__file__).parents[2] / "docs" / "design.md"
NUM_TOKENS = 512


@pytest.mark.thorough("qwen2.5-coder-0.5b")
@pytest.mark.parametrize("name", NAMES)
def test_close_to_float32(name: str) -> None:
    """The torch runtime in float32 on the dequantised weights is transformers (test_torch_gguf)."""
    from forerun.models.tokenizer import load_tokenizer
    from forerun.runtime.torch import load_torch_model

    path = pulled(name)
    tokens = load_tokenizer(path).encode(PROSE.read_text(encoding="utf-8"))[:NUM_TOKENS]
    native = load_native_model(path)
    native.begin(0)
    found = feed(native, 0, tokens)
    exact: Any = load_torch_model(path, kind="gguf", device="cpu", dtype="float32")
    exact.begin(0)
    close = Closeness.of(found, feed(exact, 0, tokens))
    print(name, close)
    close.check(kl=0.01, largest=0.6, rms=0.06, top_1=0.92)


@pytest.mark.parametrize("name", NAMES)
def test_any_cutting_gives_the_same_bits(name: str) -> None:
    model = load_native_model(pulled(name))
    tokens = [(7919 * i + 13) % 40000 for i in range(64)]
    model.begin(0)
    expected = feed(model, 0, tokens)
    for sizes in ([1] * 64, [1, 2, 3, 4, 5, 6, 7, 8, 28], [33, 31]):
        model.keep(0, 0)
        assert np.array_equal(feed(model, 0, tokens, sizes), expected), sizes


@pytest.mark.thorough("settings1")
@pytest.mark.parametrize("settings", [{}, {"draft_requantise": True, "draft_vocabulary": 32768}])
def test_text_under_speculation_is_plain_decodings(settings: dict[str, Any]) -> None:
    from forerun.bench.workloads import load_workload
    from forerun.loading import load

    name = "qwen2.5-coder-0.5b"
    pulled(name)
    prompts = [task.prompt for task in load_workload("humaneval", 4)]
    with load(name) as plain, load(name, draft=name, k=4, **settings) as llm:
        assert type(llm.engine.target) is NativeModel
        for params in ({"temperature": 0}, {"seed": 3, "temperature": 0.8, "top_p": 0.95}):
            expected = plain.generate(prompts, max_tokens=32, **params)
            found = llm.generate(prompts, max_tokens=32, **params)
            assert [result.tokens for result in found] == [result.tokens for result in expected]
            if not settings:
                assert all(result.speculation.acceptance_rate == 1.0 for result in found)


MEASURE = """
import json, sys
from pathlib import Path
from forerun.runtime.native import load_native_model
from forerun.types import Span

def status():
    lines = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
    return {name: int(lines[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM")}

before = status()["VmRSS"]
open("/proc/self/clear_refs", "w").write("5")  # the peak begins here
model = load_native_model(Path(sys.argv[1]))
loaded = status()
model.begin(0)
model.forward([Span(0, 0, [(31 * i) % 40000 for i in range(512)], 1)])
print(json.dumps({"before": before, **loaded, "fed": status()["VmRSS"], "cache": model.cache_bytes}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", NAMES)
def test_memory_holds_one_copy_of_the_weights(name: str) -> None:
    """After load and at its peak, at most the file, a tenth, and 250 MB; the peak is at most one tensor above."""
    from forerun.models.gguf import open_gguf

    path = pulled(name)
    done = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True)
    found = {key: value / 1e6 for key, value in json.loads(done.stdout).items()}
    print(name, {key: round(value) for key, value in found.items()})
    with open_gguf(path) as file:
        largest = max(tensor.num_bytes for tensor in file.tensors.values()) / 1e6
    size = path.stat().st_size / 1e6
    assert found["VmRSS"] <= size * 1.1 + 250
    assert found["VmHWM"] <= found["VmRSS"] + largest + 30
    assert found["fed"] <= size * 1.1 + 250 + found["cache"]
