"""The native runtime against transformers in float32 on the weights that the file holds, and every promise of a Model,
bit for bit."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.runtime.as_gguf import write_gguf
from tests.runtime.closeness import Closeness
from tests.runtime.contract import check_model_contract, feed, text
from tests.runtime.rows import rows_of, rows_of_transformers
from tests.runtime.stored import TYPES, rounded
from tests.runtime.test_native_description import LINEAR, LINEAR_KEYS, YARN, YARN_KEYS
from tests.runtime.tiny import tiny

from forerun import _native
from forerun.runtime.native import load_native_model
from forerun.types import Span

FLOATS = ("F32", "F16", "BF16")
FAITHFUL = {"kl": 1e-6, "largest": 2e-3, "rms": 2e-4, "top_1": 0.99}
"""Where weights are floats: what is left is 16-bit keys and values."""
QUANTISED = {"kl": 0.01, "largest": 0.15, "rms": 0.03, "top_1": 0.93}
"""Where products take int8 activations. The noise is of this size whatever the type, on random weights with logits of a
standard deviation of 8; a type that is decoded wrongly is off by far more."""
WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 256}
MIXED = {
    "token_embd.weight": "Q8_0", "blk.0.attn_v.weight": "Q6_K", "blk.0.ffn_down.weight": "Q6_K",
    "blk.1.attn_v.weight": "Q8_0", "blk.1.attn_k.weight": "Q5_0", "blk.1.ffn_down.weight": "Q4_1",
    "blk.1.attn_output.weight": "F16", "blk.0.attn_q.weight": "Q3_K", "blk.0.attn_k.weight": "IQ4_NL",
    "blk.0.attn_output.weight": "Q5_K", "blk.0.ffn_gate.weight": "Q2_K", "blk.0.ffn_up.weight": "IQ4_XS",
    "blk.1.ffn_gate.weight": "MXFP4", "blk.1.ffn_up.weight": "Q5_1",
}  # fmt: skip
"""A file like the real ones, but more so: a type of every kind."""

ALL_ISAS = ["avx512vnni", "avx2vnni", "avx2", "neon", "portable"]  # best first


def tokens_below(size: int, count: int) -> list[int]:
    return np.random.default_rng(count).integers(0, size, count).tolist()


@pytest.mark.parametrize("name", ["llama", "qwen2"])
@pytest.mark.parametrize("quantisation", TYPES)
def test_every_type_of_every_family(name: str, quantisation: str, tmp_path: Path) -> None:
    module = tiny(name, **WIDE, max_position_embeddings=512)
    model = load_native_model(write_gguf(tmp_path / "m.gguf", module, name, quantisation))
    tokens = tokens_below(256, 300)
    found = rows_of(model, tokens)
    bounds = FAITHFUL if quantisation in FLOATS else QUANTISED
    Closeness.of(found, rows_of_transformers(rounded(module, lambda _: quantisation), tokens)).check(**bounds)


@pytest.mark.parametrize("tied", [True, False])
def test_types_side_by_side_and_tied_embeddings(tied: bool, tmp_path: Path) -> None:
    """With tied embeddings one packed copy serves as both, so nothing is larger than where they are apart."""
    module = tiny("qwen2", **WIDE, tie_word_embeddings=tied)
    model = load_native_model(write_gguf(tmp_path / "m.gguf", module, "qwen2", "Q4_K", types=MIXED))
    from tests.runtime.as_gguf import LAYER

    def type_of(name: str) -> str:
        if "layers" not in name:
            return "Q8_0" if "embed" in name else "Q4_K"
        _, _, layer, rest = name.split(".", 3)
        return MIXED.get(f"blk.{layer}.{LAYER[rest.removesuffix('.weight')]}.weight", "Q4_K")

    tokens = tokens_below(256, 90)
    found = rows_of(model, tokens)
    Closeness.of(found, rows_of_transformers(rounded(module, type_of), tokens)).check(**QUANTISED)


@pytest.mark.parametrize("inner", [32, 96, 224, 288, 480])
def test_widths_that_fill_no_block(inner: int, tmp_path: Path) -> None:
    """K = 896 and 576 of the real files are no multiples of 256: every tail, and an odd number of panels."""
    changes = {"hidden_size": 96, "intermediate_size": inner, "vocab_size": 100, "num_attention_heads": 2}
    for quantisation in ("Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1", "IQ4_NL", "MXFP4"):
        module = tiny("llama", **changes)
        model = load_native_model(write_gguf(tmp_path / f"{quantisation}.gguf", module, "llama", quantisation))
        tokens = tokens_below(100, 60)
        found = rows_of(model, tokens)
        Closeness.of(found, rows_of_transformers(rounded(module, lambda _, q=quantisation: q), tokens)).check(
            **QUANTISED | {"kl": 0.02, "rms": 0.04, "top_1": 0.85}
        )


ROPES = [
    ("llama", {}, {}, {}),
    ("qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, {}, {}),
    ("llama", {"rope_parameters": LINEAR}, LINEAR_KEYS, {}),
    ("qwen2", {"rope_parameters": YARN | {"original_max_position_embeddings": 1024}}, YARN_KEYS, {}),
    ("llama, llama3 rope", {}, {}, {"rope_freqs.weight": ...}),
]


@pytest.mark.parametrize("name, changes, metadata, tensors", ROPES)
def test_positions_up_to_4096(
    name: str, changes: dict[str, Any], metadata: dict[str, Any], tensors: dict[str, Any], tmp_path: Path
) -> None:
    """The last positions as closely as the first: angles, caches of many pages, long sums. Weights are floats, so that
    nothing hides in the noise of quantisation."""
    module = tiny(name, **changes, num_hidden_layers=1, max_position_embeddings=4096)
    if metadata == YARN_KEYS:
        metadata = metadata | {"rope.scaling.original_context_length": 1024}
    if tensors:
        default = tiny("llama", max_position_embeddings=4096).model.rotary_emb.inv_freq
        tensors = {"rope_freqs.weight": (default / module.model.rotary_emb.inv_freq).numpy()}
    family = name.partition(",")[0]
    model = load_native_model(write_gguf(tmp_path / "m.gguf", module, family, metadata=metadata, tensors=tensors))
    tokens = tokens_below(67, 4096)
    found, expected = rows_of(model, tokens), rows_of_transformers(module, tokens)
    for first, last in ((0, 64), (1000, 1064), (4032, 4096)):
        Closeness.of(found[first:last], expected[first:last]).check(**FAITHFUL | {"largest": 5e-3, "rms": 5e-4})


def test_a_bias_on_everything_and_one_kv_head(tmp_path: Path) -> None:
    module = tiny("llama, biased and tied", num_key_value_heads=1)
    model = load_native_model(write_gguf(tmp_path / "m.gguf", module, "llama"))
    tokens = tokens_below(67, 80)
    Closeness.of(rows_of(model, tokens), rows_of_transformers(module, tokens)).check(**FAITHFUL)


def test_normalised_heads(tmp_path: Path) -> None:
    module = tiny("qwen3", head_dim=32)
    model = load_native_model(write_gguf(tmp_path / "m.gguf", module, "qwen3"))
    tokens = tokens_below(67, 80)
    Closeness.of(rows_of(model, tokens), rows_of_transformers(module, tokens)).check(**FAITHFUL)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small qwen2 of many types."""
    path = tmp_path_factory.mktemp("native") / "mixed.gguf"
    return write_gguf(path, tiny("qwen2", **WIDE), "qwen2", "Q4_K", types=MIXED)


@pytest.mark.parametrize("quantisation", ["F32", "Q8_0", "Q4_0"])
def test_contract_bit_for_bit(quantisation: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tiny("llama", intermediate_size=64), "llama", quantisation)
    check_model_contract(lambda: load_native_model(path), tolerance=0.0)


def test_contract_of_many_types_bit_for_bit(mixed: Path) -> None:
    check_model_contract(lambda: load_native_model(mixed), tolerance=0.0, num_tokens=40)


def test_any_number_of_rows_gives_the_same_bits(mixed: Path) -> None:
    model = load_native_model(mixed)
    tokens = text(model, 70)
    model.begin(1)
    one_by_one = feed(model, 1, tokens, [1] * 70)
    for num_rows in (*range(2, 18), 31, 32, 33):
        model.keep(1, 0)
        sizes = [num_rows] * (70 // num_rows)
        sizes += [70 - sum(sizes)] * (sum(sizes) < 70)
        assert np.array_equal(feed(model, 1, tokens, sizes), one_by_one), num_rows


def test_a_tree_gives_its_branches_bits(mixed: Path) -> None:
    model = load_native_model(mixed)
    prompt, tree, parents = text(model, 20), [16, 23, 42, 9, 11, 7], (-1, 0, 0, 1, 2, -1)
    model.begin(1)
    feed(model, 1, prompt)
    rows = model.forward([Span(1, 20, tree, 6, parents)]).matrix
    for key, branch in enumerate([[0, 1, 3], [0, 2, 4], [5]], 2):
        model.begin(key)
        feed(model, key, prompt)
        assert np.array_equal(rows[branch], feed(model, key, [tree[node] for node in branch]))
    model.keep(1, 20, (0, 2))
    model.keep(3, 22)
    assert model.length(1) == 22
    assert np.array_equal(feed(model, 1, [11, 5]), feed(model, 3, [11, 5]))


DIGEST = """
import hashlib, sys
from pathlib import Path
from forerun.runtime.native import load_native_model
from forerun.types import Span
model = load_native_model(Path(sys.argv[1]))
model.begin(0)
rows = model.forward([Span(0, 0, [(31 * i + 7) % 256 for i in range(60)], 60)]).matrix
print(hashlib.sha256(rows.tobytes()).hexdigest())
"""


@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize("isa", _native.usable_isas())
def test_every_instruction_set_and_number_of_threads_gives_the_same_bits(isa: str, threads: str, mixed: Path) -> None:
    model = load_native_model(mixed)
    here = hashlib.sha256(rows_of(model, [(31 * i + 7) % 256 for i in range(60)]).tobytes()).hexdigest()
    env = {**os.environ, "FORERUN_ISA": isa, "FORERUN_THREADS": threads}
    done = subprocess.run(
        [sys.executable, "-c", DIGEST, str(mixed)], capture_output=True, text=True, check=True, env=env
    )
    assert done.stdout.strip() == here


@pytest.mark.parametrize("isa", sorted({"mmx", "AVX2", *ALL_ISAS} - set(_native.usable_isas())))
def test_an_instruction_set_that_cannot_run_is_refused_by_name(isa: str) -> None:
    env = {**os.environ, "FORERUN_ISA": isa}
    code = "from forerun import _native; _native.isa()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert done.returncode != 0
    usable = ", ".join(_native.usable_isas())
    assert f"FORERUN_ISA={isa} cannot run here: this machine runs {usable}\n" in done.stderr


def test_the_best_instruction_set_is_chosen() -> None:
    usable = _native.usable_isas()
    assert usable == [isa for isa in ALL_ISAS if isa in usable]
    assert usable[-1] == "portable"
    env = {name: value for name, value in os.environ.items() if name != "FORERUN_ISA"}
    code = "from forerun import _native; print(_native.isa())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.strip() == usable[0]


@pytest.mark.parametrize("name, value", [("FORERUN_ISA", "mmx"), ("FORERUN_THREADS", "many")])
def test_an_environment_that_does_not_fit_is_refused_before_weights_are_read(
    name: str, value: str, mixed: Path
) -> None:
    code = f"""
from pathlib import Path
from forerun.errors import InputError
from forerun.runtime.native import check_native_model
try:
    check_native_model(Path({str(mixed)!r}))
except InputError as error:
    print(error)
"""
    env = {**os.environ, name: value}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert f"{name}={value} " in done.stdout
    assert "unset it" in done.stdout


def test_requantised_weights_change_rows_a_little(mixed: Path) -> None:
    tokens = tokens_below(256, 90)
    stored, anew = load_native_model(mixed), load_native_model(mixed, requantise=True)
    assert anew.weight_bytes < stored.weight_bytes
    close = Closeness.of(rows_of(anew, tokens), rows_of(stored, tokens))
    close.check(kl=1.0, largest=1.0, rms=0.25, top_1=0.5)
    assert close.rms > 1e-3


def test_a_cut_head(mixed: Path) -> None:
    tokens = tokens_below(256, 30)
    whole = rows_of(load_native_model(mixed), tokens)
    first = load_native_model(mixed, num_head_rows=37)
    assert np.array_equal(rows_of(first, tokens), whole[:, :37])
    ids = [3, 4, 100, 255]
    chosen = load_native_model(mixed, head_ids=ids)
    found = rows_of(chosen, tokens)
    assert np.array_equal(found[:, ids], whole[:, ids])
    assert (np.delete(found, ids, axis=1) == -np.inf).all()
    assert max(first.weight_bytes, chosen.weight_bytes) < load_native_model(mixed).weight_bytes


def test_a_nan_stays_visible(tmp_path: Path) -> None:
    """In the row of the token whose embedding holds it, and in every later one; in no other sequence."""
    module = tiny("llama")
    with torch.no_grad():
        module.get_input_embeddings().weight[9, 3] = float("nan")
    model = load_native_model(write_gguf(tmp_path / "m.gguf", module, "llama"))
    model.begin(1)
    model.begin(2)
    rows = model.forward([Span(1, 0, [5, 9, 6], 3), Span(2, 0, [5, 6], 2)]).matrix
    assert np.isnan(rows).all(axis=1).tolist() == [False, True, True, False, False]
    assert np.isfinite(rows[[0, 3, 4]]).all()
