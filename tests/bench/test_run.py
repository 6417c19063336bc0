"""A whole bench over toy models: the document, the text, the picture, and the differences it must find."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from tests.bench.toys import PROMPTS, Scripted, draft, quick_probe, settings, toy_llm

from forerun.bench import hardware
from forerun.bench.models import models_of
from forerun.bench.plot import _panel, check_plot, write_plot
from forerun.bench.report import print_report
from forerun.bench.run import bench, own_variants
from forerun.bench.summary import PLAIN
from forerun.bench.variants import DRAFT_MODELS
from forerun.bench.weights import bytes_per_pass
from forerun.errors import InputError, MissingDependencyError, ParameterError
from forerun.extras import install_line


def run(peers: Any = (), prompts: Any = PROMPTS, **changed: Any) -> dict[str, Any]:
    wanted = settings(**changed)
    drafts = {name: draft() for name in DRAFT_MODELS if name in wanted.drafters}
    return bench(
        toy_llm(), drafts, wanted, prompts, weights={"target": 3_000_000_000, "model": None}, peers=peers,
        not_run={"assisted": "no reason"}, command="forerun bench chat edit", probe=quick_probe(),
    )  # fmt: skip


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return run([Scripted("transformers", 50.0)])


def test_the_document_is_json_with_everything_in_it(document: dict[str, Any]) -> None:
    again = json.loads(json.dumps(document, allow_nan=False))
    assert set(again) == {
        "command", "commit", "date", "hardware", "versions", "settings", "probe", "cost_curve", "floor",
        "prompt_tokens", "not_run", "interrupted", "workloads", "best",
    }  # fmt: skip
    assert list(again["workloads"]) == list(PROMPTS)
    assert set(again["hardware"]) == {"cpu", "cores", "memory_gb", "isa", "gpu", "system"}
    assert again["versions"]["forerun"]
    assert again["settings"]["k"] == [1, 3]
    assert set(again["cost_curve"]) == {"target", "model"}
    assert "1" in again["cost_curve"]["target"]["ms"]
    assert again["floor"]["target"]["ms"] == pytest.approx(3e9 / again["probe"]["median"] / 1e6)
    assert again["not_run"] == {"assisted": "no reason"}
    assert again["prompt_tokens"] == {"chat": [3, 2], "edit": [7, 5]}


def test_every_variant_has_its_figures(document: dict[str, Any]) -> None:
    figures = document["workloads"]["chat"]
    assert list(figures) == [PLAIN, "model k=1", "model k=3", "lookup k=1", "lookup k=3", "transformers"]
    for name, figure in figures.items():
        assert figure["runs"] == 4
        assert figure["ms_per_token"] > 0
        assert (PLAIN in figure["speedup_over"]) == (name != PLAIN)
    model = figures["model k=3"]
    assert model["k"] == 3
    assert 1.0 < model["tokens_per_pass"] <= 4.0
    assert 0.0 < model["acceptance_rate"] <= 1.0
    assert len(model["acceptance_by_depth"]) == 3
    assert sum(model["share"].values()) == pytest.approx(1.0, abs=0.02)
    assert model["share"]["draft"] > figures[PLAIN]["share"]["draft"]
    assert figures[PLAIN]["tokens_per_pass"] == 1.0
    assert figures[PLAIN]["acceptance_rate"] is None


def test_greedy_texts_equal_plain_decoding(document: dict[str, Any]) -> None:
    for figures in document["workloads"].values():
        for name, figure in figures.items():
            if name != "transformers":
                assert figure["text"] == {"prompts": 2, "equal_to_plain": 2, "differences": []}, name


def test_a_different_text_is_found_with_its_gap(document: dict[str, Any]) -> None:
    # The scripted peer writes 0, 1, 2, ...: no text of the toy model.
    text = document["workloads"]["chat"]["transformers"]["text"]
    assert text["equal_to_plain"] == 0
    (first, _) = text["differences"]
    assert first["prompt"] == 0
    assert first["gap"] >= first["top2_gap"] > 0
    assert first["plain_token"] != first["token"] == first["position"]


def test_best_names_a_variant_of_each_drafter(document: dict[str, Any]) -> None:
    for workload, best in document["best"].items():
        assert set(best) == {"model", "lookup", "overall"}
        assert best["lookup"]["variant"].startswith("lookup k=")
        assert best["overall"]["variant"] in document["workloads"][workload]
        assert "transformers" not in best["overall"]["variant"]


def test_seeded_samples_are_compared_with_each_other_but_not_with_peers() -> None:
    figures = run([Scripted("transformers")], temperature=1.0, seed=7, rounds=1)["workloads"]["edit"]
    assert figures["model k=3"]["text"]["equal_to_plain"] == 2
    assert figures["transformers"]["text"] is None


def test_unseeded_samples_are_not_compared() -> None:
    figures = run(temperature=1.0, rounds=1)["workloads"]["edit"]
    assert all(figure["text"] is None for figure in figures.values())


def test_variants_share_the_models_and_leave_no_cache() -> None:
    llm, model = toy_llm(), draft()
    bench(llm, {"model": model}, settings(rounds=1), PROMPTS, probe=quick_probe())
    assert llm.engine.target.num_sequences == 0  # type: ignore[attr-defined]
    assert model.num_sequences == 0
    assert {id(variant._llm.engine.target) for variant in own_variants(llm, {"model": model}, settings())} == {
        id(llm.engine.target)
    }


def test_prompts_that_leave_no_room_are_refused_before_measuring() -> None:
    with pytest.raises(InputError, match=r"190 tokens do not fit behind prompt 0 of long"):
        bench(toy_llm(), {}, settings(drafters=("lookup",), max_tokens=190), {"long": [[1] * 20]}, probe=quick_probe())


def test_a_drafter_without_its_model_is_refused() -> None:
    with pytest.raises(ParameterError, match="draft model"):
        own_variants(toy_llm(), {}, settings())


def test_an_interrupted_bench_reports_the_workloads_it_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupting(Scripted):
        def generate(self, prompt, num_tokens):  # type: ignore[no-untyped-def]
            if tuple(prompt) == tuple(PROMPTS["edit"][0]):
                raise KeyboardInterrupt
            return super().generate(prompt, num_tokens)

    document = run([Interrupting("transformers")], rounds=1)
    assert document["interrupted"]
    assert "chat" in document["workloads"]
    printed(document)
    json.dumps(document, allow_nan=False)


def printed(document: dict[str, Any]) -> str:
    file = io.StringIO()
    print_report(document, file)
    return file.getvalue()


def test_the_report_prints_all_variants_losers_included(document: dict[str, Any]) -> None:
    text = printed(document)
    for needed in (document["command"], document["commit"], document["hardware"]["cpu"], "GB/s", "t(rows)", "floor"):
        assert needed in text
    assert "not run: assisted: no reason" in text
    assert "best k for model" in text
    ran = "num tokens 4, schedule constant, confidence 0.0"
    assert f"transformers ran with {ran}; tried on the shortest prompts: num tokens 4" in text
    for workload, figures in document["workloads"].items():
        assert f"{workload}: 2 prompts" in text
        for name, figure in figures.items():
            assert any(
                line.startswith(f"|{name} ") and f"{figure['ms_per_token']:.1f}" in line for line in text.splitlines()
            ), name
    assert "…" not in text


def test_the_report_says_when_nothing_beats_plain_and_gives_both_regimes(document: dict[str, Any]) -> None:
    slow = json.loads(json.dumps(document))
    slow["probe"]["threshold"] = 20.0
    figures = slow["workloads"]["chat"]
    for name, figure in figures.items():
        figure["regimes"] = {"slow": {"ms_per_token": 9.0, "measurements": 2, "speedup_over": {}}}
        if name == "transformers":
            figure["regimes"]["fast"] = {
                "ms_per_token": 5.0, "measurements": 1, "speedup_over": {PLAIN: {"median": 1.5}},
            }  # fmt: skip
    slow["best"]["chat"]["overall"] = {**slow["best"]["chat"]["overall"], "variant": PLAIN, "k": 0}
    text = printed(slow)
    assert "no drafter beats plain decoding here" in text
    assert "two regimes, parted at 20.0 GB/s" in text
    assert "slow memory, ms/token (runs): plain 9.0 (2)" in text
    assert "fast memory, ms/token (runs): transformers 5.0 1.50x (1)" in text


def test_the_plot_is_a_png(document: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "plot.png"
    check_plot(path)
    write_plot(document, path)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = (int(n) for n in np.frombuffer(data[16:24], dtype=">u4"))
    assert width >= 1000
    assert height >= 500


def test_every_drafter_and_peer_is_in_the_picture(document: dict[str, Any]) -> None:
    figures = document["workloads"]["chat"]
    drawn = next(one for one in figures.values() if one.get("drafter"))
    names = ["model", "requantised", "lookup", "suffix", "stack", "adaptive"]
    many = {name: {**drawn, "drafter": name, "k": 0 if name == "adaptive" else 2} for name in names}
    axis = Figure().subplots()
    handles = _panel(axis, many, names, [])
    assert list(handles) == ["forerun plain", *(f"forerun, {name}" for name in names)]
    assert list(axis.get_xticks()) == [2]  # adaptive has no k of its own
    colours = [handles[f"forerun, {name}"].lines[0].get_color() for name in names[:-1]]
    assert len({*colours, handles["forerun, adaptive"].get_color()}) == len(names)


def test_adaptive_ends_drafts_as_the_settings_say() -> None:
    llm, model = toy_llm(), draft()
    asked = settings(drafters=("adaptive",), draft_min_confidence=0.4)
    (_, adaptive) = own_variants(llm, {"model": model}, asked)
    *_, by_model = adaptive._llm.engine.drafter.sources.values()
    assert by_model.min_confidence == 0.4


def test_of_two_draft_models_adaptive_takes_the_one_as_stored() -> None:
    """As the help says. Models are loaded in this order, whichever order --drafters had."""
    assert models_of(("requantised", "adaptive", "model"), "d") == ["model", "requantised"]
    drafts = {name: draft() for name in models_of(("requantised", "adaptive", "model"), "d")}
    variants = own_variants(toy_llm(), drafts, settings(drafters=("requantised", "adaptive", "model")))
    (adaptive,) = (one for one in variants if one.name == "adaptive")
    *_, by_model = adaptive._llm.engine.drafter.sources.values()
    assert by_model.model is drafts["model"]


def test_the_plot_takes_one_workload_or_five(document: dict[str, Any], tmp_path: Path) -> None:
    one = document["workloads"]["chat"]
    for count in (1, 5):
        many = {**document, "workloads": {f"w{i}": one for i in range(count)}}
        write_plot(many, tmp_path / f"{count}.png")
        assert (tmp_path / f"{count}.png").stat().st_size > 10_000


def test_a_plot_needs_a_png_name_and_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    check_plot(None)
    with pytest.raises(ParameterError, match=r"\.png"):
        check_plot(Path("plot.jpg"))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=re.escape(install_line("bench"))):
        check_plot(Path("plot.png"))


def test_the_commit_is_this_repositorys_or_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, str | None] = {}
    monkeypatch.setattr(hardware, "_git", lambda directory, *arguments: answers.get(arguments[0] + arguments[-1]))
    root = Path(hardware.__file__).parents[3]
    answers = {"rev-parse--show-toplevel": str(root), "rev-parseHEAD": "abc", "status--untracked-files=no": ""}
    assert hardware.commit() == "abc"
    answers["status--untracked-files=no"] = " M x"
    assert hardware.commit() == "abc-dirty"
    answers["rev-parse--show-toplevel"] = str(root.parent)  # installed inside somebody else's repository
    assert hardware.commit().startswith("forerun ")
    answers = {}
    assert hardware.commit().startswith("forerun ")


def test_hardware_is_told_without_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_cpuinfo", dict)
    machine = hardware.hardware()
    assert machine["cpu"]
    assert machine["isa"] == []


@pytest.mark.parametrize(
    ("tensors", "head_rows", "expected"),
    [
        ({"model.embed_tokens.weight": (10, 4), "model.layers.0.w.weight": (4, 4)}, None, 2 * (40 + 16)),  # tied
        ({"model.embed_tokens.weight": (10, 4), "lm_head.weight": (10, 4), "w": (4, 4)}, None, 2 * (40 + 16)),
        ({"model.embed_tokens.weight": (10, 4), "lm_head.weight": (10, 4), "w": (4, 4)}, 3, 2 * (12 + 16)),
        ({"model.embed_tokens.weight": (10, 4), "w": (4, 4)}, 99, 2 * (40 + 16)),
        ({"model.embed_tokens.weight": (10, 4), "mlp.experts.0.w": (4, 4)}, None, None),
        ({"something": (10, 4)}, None, None),
    ],
)
def test_bytes_of_a_pass(
    tmp_path: Path, tensors: dict[str, tuple[int, ...]], head_rows: int | None, expected: int | None
) -> None:
    from safetensors.numpy import save_file

    arrays = {name: np.zeros(shape, dtype=np.float16) for name, shape in tensors.items()}
    save_file(arrays, tmp_path / "model.safetensors")
    assert bytes_per_pass(tmp_path, "transformers", 2, head_rows) == expected


def test_an_interruption_before_anything_was_measured_still_gives_a_document() -> None:
    class Interrupting(Scripted):
        def prepare(self, prompts, num_tokens):  # type: ignore[no-untyped-def]
            raise KeyboardInterrupt

    document = run([Interrupting("transformers")], rounds=1)
    assert document["interrupted"]
    assert document["workloads"] == document["best"] == {}
    assert "interrupted" in printed(document)
    json.dumps(document, allow_nan=False)
