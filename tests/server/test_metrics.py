"""What Prometheus is told is what happened: counters against the figures of the requests themselves."""

from __future__ import annotations

import json
import re
import runpy
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.server.serving import Serving, slow_llm, wait_for

from forerun.control.policy import FixedLength
from forerun.control.records import Prediction
from forerun.loading import load
from forerun.server.metrics import LENGTHS, MeteredPolicy, Metrics
from forerun.types import Round, Step

ROOT = Path(__file__).parents[2]
PROMPT = "the water is"
SPECULATION = "vllm:spec_decode_num_"
Key = tuple[str, tuple[tuple[str, str], ...]]


class Readings:
    """All samples of a /metrics page; `found - before` is what has been added."""

    def __init__(self, text: str) -> None:
        families = text_string_to_metric_families(text)
        self.samples: dict[Key, float] = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families
            for sample in family.samples
        }

    def __sub__(self, before: Readings) -> Readings:
        found = Readings("")
        found.samples = {key: value - before.samples.get(key, 0.0) for key, value in self.samples.items()}
        return found

    def __call__(self, name: str, **labels: str) -> float:
        wanted = tuple(sorted({"model_name": "tiny", "engine": "0", **labels}.items()))
        return self.samples[name, wanted]


@pytest.fixture(scope="module")
def metered(models: tuple[Path, Path]) -> Iterator[Serving]:
    with Serving(load(models[0], draft=models[1], k=3, drafter="stack"), max_requests=64) as serving:
        yield serving


def read(serving: Serving) -> Readings:
    """What is told once everything has ended."""
    serving.wait_until_idle()
    response = serving.client.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return Readings(response.text)


def ask(serving: Serving, **body: Any) -> tuple[list[tuple[int, int]], dict[str, Any], Readings]:
    """(rounds as (proposed, accepted), the request's own figures, what the metrics gained)."""
    before = read(serving)
    asked = {"max_tokens": 60, "ignore_eos": True, "speculation": {"explain": True}, **body}
    chunks = serving.stream("/v1/completions", prompt=PROMPT, **asked)
    rounds = [
        (one["proposed"], one["accepted"]) for chunk in chunks for one in chunk.get("forerun", {}).get("rounds", ())
    ]
    return rounds, chunks[-1]["speculation"]["choices"][0], read(serving) - before


def test_vllms_counters_have_its_names_labels_and_values(metered: Serving) -> None:
    rounds, own, gained = ask(metered, temperature=1, seed=3)
    drafts = [one for one in rounds if one[0]]
    assert len(drafts) < len(rounds), "the first round has no draft"
    assert own["num_rounds"] == len(rounds)
    assert gained(f"{SPECULATION}drafts_total") == len(drafts)
    assert gained(f"{SPECULATION}draft_tokens_total") == sum(proposed for proposed, _ in drafts)
    num_accepted = sum(accepted for _, accepted in drafts)
    assert gained(f"{SPECULATION}accepted_tokens_total") == num_accepted > 0
    by_position = [sum(accepted > position for _, accepted in drafts) for position in range(4)]
    assert by_position[:3] == sorted(by_position[:3], reverse=True)
    for position, expected in enumerate(by_position):
        assert gained(f"{SPECULATION}accepted_tokens_per_pos_total", position=str(position)) == expected
    # what is made of them by vLLM's own recipe is what the request says of itself
    assert num_accepted / sum(proposed for proposed, _ in drafts) == pytest.approx(own["acceptance_rate"])
    names = {name for name, _ in gained.samples if name.startswith("vllm:spec") and name.endswith("_total")}
    assert names == {
        f"{SPECULATION}{name}_total"
        for name in ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")
    }


def test_rounds_without_a_draft_are_no_drafts(metered: Serving) -> None:
    rounds, own, gained = ask(metered, temperature=0, speculation={"enabled": False, "explain": True})
    assert rounds == [(0, 0)] * 60
    assert own["acceptance_rate"] is None
    for name in ("drafts_total", "draft_tokens_total", "accepted_tokens_total"):
        assert gained(SPECULATION + name) == 0
    assert gained("forerun_rounds_total", source="none") == 60
    assert gained("forerun_draft_length_bucket", le="0.0") == 60


def test_rounds_passes_and_chosen_k(metered: Serving) -> None:
    rounds, own, gained = ask(metered, temperature=0)
    sources = {dict(labels)["source"] for name, labels in gained.samples if name == "forerun_rounds_total"}
    by_source = {source: gained("forerun_rounds_total", source=source) for source in sources}
    assert by_source["none"] == sum(proposed == 0 for proposed, _ in rounds)
    assert sum(by_source.values()) == len(rounds) == gained("forerun_passes_total")
    assert sources > {"none"}, "drafts have the names of their sources"
    assert gained("forerun_emitted_tokens_total") == 60
    assert gained("forerun_draft_length_count") == len(rounds)
    assert gained("forerun_draft_length_sum") == sum(proposed for proposed, _ in rounds)
    for le in LENGTHS:
        expected = sum(proposed <= le for proposed, _ in rounds)
        assert gained("forerun_draft_length_bucket", le=f"{le:.1f}") == expected
    assert gained("forerun_rows_total") == sum(proposed + 1 for proposed, _ in rounds)
    assert gained("forerun_batch_sequences_sum") == gained("forerun_batch_sequences_count") == len(rounds)
    for part in ("draft", "target", "verify", "host"):
        assert gained("forerun_round_seconds_total", part=part) == pytest.approx(own[f"{part}_s"], rel=1e-6, abs=1e-9)
    all_s = sum(own[f"{part}_s"] for part in ("draft", "target", "verify", "host"))
    assert gained("forerun_pass_seconds_sum") == pytest.approx(all_s, rel=1e-6)


def test_latencies_are_the_requests_own(metered: Serving) -> None:
    _, own, gained = ask(metered, temperature=0, max_tokens=20)
    for name in ("queue_seconds", "time_to_first_token_seconds", "time_per_output_token_seconds", "request_seconds"):
        assert gained(f"forerun_{name}_count") == 1
    first_s = gained("forerun_time_to_first_token_seconds_sum")
    assert first_s >= own["time_to_first_token_s"] > 0, "the wait before the engine took it is part of it"
    assert 0 <= gained("forerun_queue_seconds_sum") <= first_s <= gained("forerun_request_seconds_sum")
    expected = 1 / own["tokens_per_s"]
    assert gained("forerun_time_per_output_token_seconds_sum") == pytest.approx(expected, rel=1e-6)


def test_tokens_and_outcomes(metered: Serving) -> None:
    before = read(metered)
    answer = metered.completion([PROMPT, PROMPT + " now"], n=2, max_tokens=5, ignore_eos=True, seed=1)
    metered.completion(PROMPT, max_tokens=400, seed=1, stop=["e", "a", "o"])
    metered.completion(PROMPT, max_tokens=400, ignore_eos=True, timeout=1e-9, status=504)
    gained = read(metered) - before
    assert gained("forerun_requests_total", outcome="length") == 2, "each prompt is one"
    assert gained("forerun_requests_total", outcome="stop") == 1
    assert gained("forerun_requests_total", outcome="deadline") == 1
    assert gained("forerun_requests_total", outcome="error") == 0
    assert gained("forerun_tokens_total", kind="completion") >= answer["usage"]["completion_tokens"] == 20
    assert gained("forerun_tokens_total", kind="prompt") > answer["usage"]["prompt_tokens"]
    assert gained("forerun_http_responses_total", route="/v1/completions", method="POST", status="200") == 2
    assert gained("forerun_http_responses_total", route="/v1/completions", method="POST", status="504") == 1


def test_prompts_that_begin_alike_are_told(metered: Serving) -> None:
    prompt = [7 * i % 500 + 3 for i in range(200)]
    metered.completion(prompt, max_tokens=4)
    before = read(metered)
    metered.completion([*prompt, 9, 11], max_tokens=4)
    gained = read(metered) - before
    assert gained("forerun_tokens_total", kind="prompt") == 202
    assert 190 <= gained("forerun_tokens_total", kind="shared") <= 201
    assert read(metered)("forerun_kept_tokens") >= 200


def test_a_client_that_hangs_up_counts_as_cancelled(metered: Serving) -> None:
    before = read(metered)
    body = {"prompt": PROMPT, "max_tokens": 480, "ignore_eos": True, "stream": True}
    with metered.client.stream("POST", "/v1/completions", json=body) as response:
        next(response.iter_lines())
    wait_for(lambda: (read(metered) - before)("forerun_request_seconds_count") == 1)
    gained = read(metered) - before
    ended = {one: gained("forerun_requests_total", outcome=one) for one in ("cancelled", "length")}
    assert sum(ended.values()) == 1
    # A tiny model may have written everything before the server hears of it; then all of it is counted.
    assert ended["cancelled"] or gained("forerun_tokens_total", kind="completion") == 480


def test_refusals_are_told_by_status_and_labels_stay_few(metered: Serving) -> None:
    before = read(metered)
    metered.completion(PROMPT, temperature=-1, status=400)
    for i in range(3):
        assert metered.client.get(f"/nothing/{i}").status_code == 404
        metered.client.request(f"STRANGE{i}", "/v1/models")
    gained = read(metered) - before
    assert gained("forerun_http_responses_total", route="/v1/completions", method="POST", status="400") == 1
    assert gained("forerun_http_responses_total", route="other", method="GET", status="404") == 3
    text = metered.client.get("/metrics").text
    assert "STRANGE" not in text
    assert "/nothing" not in text


def test_who_runs_and_who_waits() -> None:
    """One place: the first runs, the second waits, both are held; then all is free again."""
    gate = threading.Event()
    gate.set()
    with Serving(slow_llm(0.0, gate), max_running=1, max_requests=4) as serving:
        gate.clear()
        works = [
            threading.Thread(target=lambda: serving.completion("a", max_tokens=3, ignore_eos=True)) for _ in range(2)
        ]
        for work in works:
            work.start()
        wait_for(lambda: serving.worker.num_held == 2)
        now = Readings(httpx.get(f"{serving.url}/metrics", timeout=900).text)
        assert now("forerun_requests_held") == 2
        assert now("forerun_requests_limit") == 4
        assert now("forerun_sequences_limit") == 1
        assert now("forerun_memory_bytes") > 1e6
        gate.set()
        for work in works:
            work.join()
        after = read(serving)
        assert after("forerun_queue_seconds_count") == 2
        for name in ("requests_held", "sequences_running", "sequences_waiting", "cached_tokens"):
            assert after(f"forerun_{name}") == 0


def test_the_gauges_are_the_schedulers(models: tuple[Path, Path]) -> None:
    from forerun.sampling import SamplingParams
    from forerun.server.config import ServerConfig
    from forerun.server.run import prepare
    from forerun.server.service import Service

    with load(models[0]) as llm:
        config = ServerConfig(max_running=2)
        prepare(llm, config)
        service = Service(llm, config, "tiny")
        streams = [llm.open([5, 6, 7], SamplingParams(max_tokens=9, ignore_eos=True)) for _ in range(3)]
        llm.pump()
        service.refresh_metrics()
        now = Readings(service.metrics.text().decode())
        assert now("forerun_sequences_running") == 2
        assert now("forerun_sequences_waiting") == 1
        assert now("forerun_cached_tokens") == llm.engine.scheduler.num_cached > 0
        assert [stream.has_begun for stream in streams] == [True, True, False]


def test_preemptions_are_counted_under_both_names_and_the_policy_forgets_who_has_ended(
    models: tuple[Path, Path],
) -> None:
    from forerun.control import AdaptiveLength
    from forerun.engine import Service as Wishes
    from forerun.sampling import SamplingParams
    from forerun.server.config import ServerConfig
    from forerun.server.run import prepare
    from forerun.server.service import Service

    with load(models[0], draft=models[1]) as llm:
        config = ServerConfig(max_running=1)
        prepare(llm, config)
        policy = llm.engine.policy
        assert isinstance(policy, AdaptiveLength)
        service = Service(llm, config, "tiny")
        params = SamplingParams(max_tokens=30, ignore_eos=True, temperature=0)
        streams = [llm.open([5, 6, 7], params, service=Wishes(priority=9))]
        for _ in range(3):
            llm.pump()
        (first,) = policy._known
        streams.append(llm.open([5, 6, 8], params))
        for _ in range(3):
            llm.pump()
        for _ in range(2):  # read twice: what was counted stays counted once
            service.refresh_metrics()
            now = Readings(service.metrics.text().decode())
            assert now("forerun_preemptions_total") == now("vllm:num_preemptions_total") == 1
        assert first in policy._known
        streams[0].close()
        assert first not in policy._known
        while llm.pump():
            pass
        assert not policy._known
        assert not policy._pending


class Foreteller(FixedLength):
    """A policy that expected something."""

    def __init__(self, *predictions: Prediction) -> None:
        super().__init__(0)
        self._predictions = list(predictions)
        self.prediction: Prediction | None = None

    def plan(self, sequences: Any, prospects: Any, load: Any) -> Any:
        self.prediction = self._predictions.pop(0)
        return super().plan(sequences, prospects, load)


@pytest.mark.parametrize("purpose", ["best", "rest"])
def test_predictions_are_set_against_the_same_passes_alone(purpose: str) -> None:
    best = Prediction(20.0, 2.5, 12.0, 1, purpose)
    trial = Prediction(20.0, 2.5, 12.0, 1, purpose="probe")
    metrics = Metrics("tiny")
    policy = MeteredPolicy(Foreteller(best, trial, best), metrics)
    step = Step(1, 4, 4, 50, draft_s=0.010, target_s=0.014, verify_s=0.0005, host_s=0.0005)
    with_a_prompt = Step(2, 80, 4, 50, draft_s=0.010, target_s=0.5, verify_s=0.0, host_s=0.0)
    for what in (step, step, with_a_prompt):
        policy.plan([], [], None)  # type: ignore[arg-type]
        policy.update([Round(1, 3, 2, 3, source="model")], what)
    found = Readings(metrics.text().decode())
    assert found("forerun_predicted_seconds_total") == pytest.approx(0.020)
    assert found("forerun_actual_seconds_total") == pytest.approx(0.025)
    assert found("forerun_predicted_tokens_total") == 2.5
    assert found("forerun_actual_tokens_total") == 3
    assert found("forerun_actual_to_predicted_count") == 1
    assert found("forerun_actual_to_predicted_sum") == pytest.approx(1.25)
    assert found("forerun_pass_seconds_count") == found("forerun_passes_total") == 3
    assert found("forerun_rounds_total", source="model") == 3


def test_the_adaptive_policys_predictions_arrive(models: tuple[Path, Path]) -> None:
    with Serving(load(models[0], draft=models[1])) as serving:
        rounds, _, gained = ask(serving, temperature=0, max_tokens=100)
    assert gained("forerun_predicted_seconds_total") > 0
    assert 1 <= gained("forerun_actual_to_predicted_count") <= len(rounds)
    assert gained("forerun_actual_seconds_total") <= gained("forerun_pass_seconds_sum") * (1 + 1e-9)


def exposed() -> dict[str, set[str]]:
    """Name of every sample of a new server -> its labels."""
    found: dict[str, set[str]] = {}
    metrics = Metrics("m")
    metrics.note_response("/", "GET", 200)
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def _check_board(board: dict[str, Any]) -> None:
    """What Grafana needs to import a dashboard and to draw its panels."""
    assert isinstance(board["schemaVersion"], int)
    assert board["schemaVersion"] >= 36, "data sources as objects"
    assert board["uid"]
    assert board["title"]
    assert "id" not in board, "Grafana gives ids itself"
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    assert all(isinstance(one, int) and one > 0 for one in ids)
    variables = {one["name"]: one for one in board["templating"]["list"]}
    sources = [name for name, one in variables.items() if one["type"] == "datasource"]
    assert sources == ["source"]
    assert variables["source"]["query"] == "prometheus"
    source = {"type": "prometheus", "uid": "$source"}
    assert all(one["datasource"] == source for one in variables.values() if one["type"] == "query")
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place.keys() == {"x", "y", "w", "h"}
        assert all(isinstance(one, int) and one >= 0 for one in place.values())
        assert place["w"] > 0
        assert place["h"] > 0
        assert place["x"] + place["w"] <= 24
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert not cells & taken, f"{panel['title']} lies over another panel"
        taken |= cells
        if panel["type"] == "row":
            assert panel["panels"] == []
            continue
        assert panel["type"] == "timeseries"
        assert panel["datasource"] == source
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        references = [target["refId"] for target in panel["targets"]]
        assert references
        assert len(set(references)) == len(references)
        assert all(target["expr"] and target["legendFormat"] for target in panel["targets"])


UNITS = ("short", "s", "ops", "bytes", "percentunit")
"""Of Grafana's units, those that are meant here."""


def test_the_dashboard_asks_for_what_there_is() -> None:
    make = runpy.run_path(str(ROOT / "docs" / "grafana" / "make.py"))
    text = (ROOT / "docs" / "grafana" / "forerun.json").read_text(encoding="utf-8")
    assert text == make["text"](), "run `python docs/grafana/make.py`"
    board = json.loads(text)
    known, asked = exposed(), set()
    _check_board(board)
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    for panel in panels:
        for target in panel["targets"]:
            expression = target["expr"]
            names = re.findall(r"(?:vllm:|forerun_|process_)\w+", expression)
            assert names, expression
            asked.update(names)
            for name, selector in re.findall(r"([\w:]+)\{(.*?)\}", expression):
                labels = set(re.findall(r"(\w+)=", selector))
                assert labels <= {*known[name], "instance"}, f"{name} has no {labels - known[name]}"
            for grouping in re.findall(r"by \((.*?)\)", expression):
                groups = {label.strip() for label in grouping.split(",")}
                assert groups <= set().union(*(known[name] for name in names)), expression
            assert expression.count("(") == expression.count(")")
    assert asked <= known.keys(), f"unknown: {asked - known.keys()}"
    variables = {one["name"] for one in board["templating"]["list"]}
    used = set(re.findall(r"\$(\w+)", json.dumps(panels))) - {"__rate_interval"}
    assert used <= variables
    families = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in asked}
    families |= {name.replace("forerun_", "vllm:num_") for name in families if name == "forerun_preemptions"}
    every = {family.name for family in Metrics("m").registry.collect() if not family.name.startswith("process_")}
    assert every <= families | {"forerun_info"}, "each metric has a panel"
