"""Datasheets and shapes: every device, the 70B on an A100, what binds, and from which target on a draft pays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.tiny_gguf import write_tiny_gguf

from forerun.errors import InputError, ParameterError
from forerun.planning.datasheet import Assumed, Pair, document, shrinkage, smallest_target
from forerun.planning.devices import DEVICES, Device, find_device, own_device
from forerun.planning.memory import num_cards
from forerun.planning.roofline import Roofline
from forerun.planning.shapes import Shape, estimated_cache_bytes, find_shape, parse_shape, shape_of_files


def shape(text: str) -> Shape:
    found = parse_shape(text)
    assert found is not None
    return found


@pytest.mark.parametrize("device", DEVICES.values(), ids=lambda device: device.name)
def test_every_device_plans_a_pair(device: Device) -> None:
    """The figures are plausible, sourced with a year, and all of a plan can be made from them."""
    assert device.gb_per_s > 100
    assert device.tflops > 10
    assert device.memory_gb is not None
    assert device.memory_gb >= 24
    assert any(str(year) in device.source for year in range(2020, 2027)), "a source with its date"
    assert 10 <= device.tflops * 1e3 / device.gb_per_s <= 500, "FLOP per byte of machines of these years"
    found = document(shape("70b@4.5"), [shape("1b@4.5")], device, Assumed())
    assert found["best"]["drafter"] == "1b@4.5"
    assert found["token_ms"] == pytest.approx(70e9 * 4.5 / 8 / device.gb_per_s / 1e6, rel=0.05)


def test_a_70b_in_16_bits_on_an_a100() -> None:
    """140 GB at 2 TB/s: about 70 ms a token, on two cards of 80 GB; a 16-bit 8B costs about a ninth of that."""
    found = document(shape("70b@16"), [shape("8b@16")], DEVICES["a100"], Assumed())
    assert found["roofline"]["70b@16"]["weight_bytes"] == 140e9
    assert 67 < found["token_ms"] < 72
    assert found["memory"]["cards_needed"] == 2
    assert {found["roofline"]["70b@16"]["bound"][n] for n in ("1", "8", "64")} == {"memory"}
    assert found["roofline"]["70b@16"]["bound"]["256"] == "arithmetic"
    assert found["roofline"]["70b@16"]["ridge_rows"] == pytest.approx(312e12 / 2039e9, rel=1e-6)
    two = document(shape("70b@16"), [], DEVICES["a100"], Assumed(cards=2))
    assert two["token_ms"] == pytest.approx(found["token_ms"] / 2, rel=0.01)


def test_weights_in_sram_gains_shrink() -> None:
    """Where a row's arithmetic takes longer than its bytes, verifying is no longer free."""
    machine = Roofline(gb_per_s=80_000, tflops=188, overhead_ms=0.05)
    pair = Pair(shape("70b@16"), shape("1b@16"), machine, (0.8,))
    far = shrinkage(pair, 8, 1, 1024)
    assert far["speedup"] < 0.5 * far["by_size_alone"]
    assert far["verifying_bound"] == "arithmetic"
    assert far["verifying"] > 3
    assert far["drafting_bound"] == "overhead"
    assert pair.best(range(9), 1, 1024)[0] < 4
    near = shrinkage(Pair(pair.target, pair.draft, Roofline(2039, 312), (0.8,)), 8, 1, 0)
    assert near["speedup"] == pytest.approx(near["by_size_alone"])


def test_a_round_by_hand() -> None:
    """1 GB at 1000 GB/s takes 1 ms, a row of a billion parameters at 1 TFLOP/s 2 ms: arithmetic binds at once."""
    target = Shape("t", 1e9, 1e9, 1e9, 1e6)
    draft = Shape("d", 1e8, 1e8, 1e8, 0.0)
    machine = Roofline(1000, 1, 0.5)
    assert machine.cost(target, 1).ms == pytest.approx(2.5)
    assert machine.cost(target, 0.25, sequences=2, context=500).ms == pytest.approx(1 + 1 + 0.5), "two caches of 0.5 GB"
    pair = Pair(target, draft, machine, (1.0,))
    assert pair.round_ms(3, 1, 0) == pytest.approx(4 * 2 + 0.5 + 3 * (0.2 + 0.5))
    assert pair.round_ms(3, 2, 0) == pytest.approx(8 * 2 + 0.5 + 3 * (0.4 + 0.5))
    assert pair.speedup(3, 1, 0) == pytest.approx(4 * 2.5 / 10.6)


def test_the_smallest_target_by_hand() -> None:
    """Weights alone cost: k = 1 pays where 1 + a > 1 + c, so from a target of draft / a parameters on."""
    pair = Pair(shape("70b@16"), shape("1b@16"), Roofline(2000, 1e9), (0.8,))
    found = smallest_target(pair, (0, 1), 1, 0)
    assert found == pytest.approx(1e9 / 0.8, rel=2e-3)
    assert smallest_target(Pair(pair.target, pair.draft, pair.machine, (0.0,)), (0, 1, 2), 1, 0) is None


@given(st.floats(0.05, 0.98), st.floats(5e8, 5e9))
def test_a_draft_pays_above_the_smallest_target_and_not_below(a: float, parameters: float) -> None:
    draft = Shape("d", parameters, 2 * parameters, 2 * parameters, estimated_cache_bytes(parameters))
    pair = Pair(shape("70b@16"), draft, Roofline(2039, 312, 0.2), (a,))
    found = smallest_target(pair, range(9), 1, 1024)
    assert found is not None

    def best(size: float) -> int:
        target = Shape("t", size, 2 * size, 2 * size, estimated_cache_bytes(size))
        return Pair(target, draft, pair.machine, pair.acceptance).best(range(9), 1, 1024)[0]

    scaled = shape("70b@16").cache_bytes / estimated_cache_bytes(70e9)
    assert scaled == pytest.approx(1.0)
    assert best(1.02 * found) > 0
    assert best(0.98 * found) == 0


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.integers(1, 64), st.integers(1, 32_768))
def test_higher_acceptance_never_plans_slower(one: float, other: float, batch: int, context: int) -> None:
    low, high = sorted((one, other))
    gains = [
        Pair(shape("8b@16"), shape("1b@16"), Roofline(2039, 312, 0.2), (a,)).best(range(9), batch, context)[1]
        for a in (low, high)
    ]
    assert 1.0 <= gains[0] <= gains[1]


def test_shapes_as_they_are_typed() -> None:
    assert shape("70b@16").weight_bytes == 140e9
    assert shape("0.5B").weight_bytes == 1e9
    assert shape("135m@8").weight_bytes == 135e6
    assert shape("70e9@4").weight_bytes == 35e9
    assert shape("70b@16:80x8x128").cache_bytes == 2 * 80 * 8 * 128 * 2
    assert shape("70b@16").cache_bytes == pytest.approx(shape("70b:80x8x128").cache_bytes, rel=0.01)
    assert shape("8b").cache_bytes == pytest.approx(2 * 32 * 8 * 128 * 2, rel=0.01)
    for text in ("qwen2.5-coder-1.5b", "70", "b", "70b@", "70b:80x8", "models/70b", "70b@16.gguf"):
        assert parse_shape(text) is None, text
    for text in ("0b", "1k@0.1", "1e40", "70b@100", "70b:0x8x128"):
        with pytest.raises(InputError):
            parse_shape(text)


def test_shapes_of_names_and_files(tmp_path: Path) -> None:
    registered = find_shape("qwen2.5-coder-1.5b")
    assert registered.parameters == pytest.approx(1.54e9, rel=0.2)
    tiny = shape_of_files("tiny", write_tiny_gguf(tmp_path / "tiny.gguf"), "gguf")
    assert tiny is not None
    assert tiny.cache_bytes == 2 * 2 * 2 * 16 * 2  # keys and values, layers, heads, size, bytes
    assert (tiny.row_bytes, tiny.bits, tiny.is_cache_estimated) == (2400.0, 32.0, False)
    untied = shape_of_files("untied", write_tiny_gguf(tmp_path / "untied.gguf", tied=False), "gguf")
    assert untied is not None
    assert untied.stored_bytes - untied.weight_bytes == 600 * 64 * 4, "of an embedding that is no head one row is read"
    assert find_shape(str(tmp_path / "tiny.gguf")).cache_bytes == tiny.cache_bytes
    assert shape_of_files("none", tmp_path / "none.gguf", "gguf") is None


def test_devices_by_name_and_by_figures() -> None:
    assert find_device(" H100 ") is DEVICES["h100"]
    with pytest.raises(ParameterError, match="one of a100, "):
        find_device("h101")
    assert own_device(80_000, 188, None).memory_gb is None
    arguments: list[tuple[Any, Any, Any]] = [(None, 1, 1), (1, None, 1), (0, 1, 1), (1, float("nan"), 1), (1, 1, 0)]
    for given_ in arguments:
        with pytest.raises(ParameterError):
            own_device(*given_)


def test_cards() -> None:
    assert [num_cards(size, 80) for size in (1e9, 80e9, 80.1e9, 161e9)] == [1, 1, 2, 3]


def test_the_smallest_target_is_of_the_sequences_asked_for() -> None:
    """With sixty-four at once rows are no longer free, so a draft has to be beside a larger target."""
    one, many = (
        document(shape("70b@16"), [shape("8b@16")], DEVICES["a100"], Assumed(sequences=n))["smallest_target"]["8b@16"]
        for n in (1, 64)
    )
    assert many > 1.04 * one


def test_the_textbook_is_told_the_mean_acceptance() -> None:
    """k = 2 at .9 and .5: 1.35 of 1.9 examined tokens are accepted."""
    found = document(shape("70b@16"), [shape("1b@16")], DEVICES["a100"], Assumed(acceptance=(0.9, 0.5), ks=(0, 1, 2)))
    rows, machine = found["predicted"]["1b@16"], Assumed().roofline(DEVICES["a100"])
    c, a = Pair(shape("70b@16"), shape("1b@16"), machine, (0.9,)).ratio, 1.35 / 1.9
    assert rows["2"]["textbook_acceptance"] == pytest.approx((1 + a + a * a) / (2 * c + 1))
    assert rows["1"]["textbook_acceptance"] == pytest.approx(1.9 / (c + 1))
    assert rows["2"]["textbook_accepted"] == pytest.approx(2.35 / (2 * c + 1))
    assert rows["0"]["textbook_acceptance"] == 1.0


def test_the_figures_of_the_page() -> None:
    """docs/planning.md states these."""
    found = document(shape("70b@16"), [shape("8b@16"), shape("1b@16")], DEVICES["a100"], Assumed())
    assert round(found["token_ms"]) == 69
    assert int(found["roofline"]["70b@16"]["ridge_rows"]) == 153
    assert found["best_k"]["8b@16"] == 5
    assert f"{found['predicted']['8b@16']['5']['speedup']:.2f}" == "2.32"
    assert round(found["smallest_target"]["8b@16"] / 1e9) == 10
    assert f"{max(one['speedup'] for one in found['predicted']['1b@16'].values()):.1f}" == "3.8"
    many = document(shape("70b@16"), [shape("8b@16")], DEVICES["a100"], Assumed(sequences=64))
    assert f"{many['predicted']['8b@16']['8']['speedup']:.2f}" == "0.96"
    sram = own_device(80_000, 188, None)
    there = document(shape("70b@16"), [shape("1b@16")], sram, Assumed(overhead_ms=0.05))
    assert 2 < there["roofline"]["70b@16"]["ridge_rows"] < 3
    assert there["best_k"]["1b@16"] == 2
    assert f"{there['predicted']['1b@16']['2']['speedup']:.2f}" == "1.81"
    assert f"{there['predicted']['1b@16']['8']['speedup']:.2f}" == "1.06"
    far = shrinkage(Pair(shape("70b@16"), shape("1b@16"), Roofline(80_000, 188, overhead_ms=0.05), (0.8,)), 8, 1, 1024)
    assert f"{far['verifying']:.1f}" == "3.7"
    assert f"{far['by_size_alone']:.1f}" == "3.9"
