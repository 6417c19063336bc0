"""What a bench says of its own figures: noise, too few prompts, and the best k where the range ends."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.bench.test_run import printed, run
from tests.bench.toys import Scripted, sample, session_of

from forerun.bench.doubts import MIN_PROMPTS, doubts, has_interval, longer
from forerun.bench.probe import ProbeSummary
from forerun.bench.rounds import Measurement, Session
from forerun.bench.summary import PLAIN, is_noise, summarise
from forerun.bench.variants import Sample


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    return run(prompts={"chat": [[1, 2, 3], [4, 5], [6, 7, 8]]})


def changed(document: dict[str, Any], **plain: Any) -> dict[str, Any]:
    """The document with figures that give no cause for doubt, but for those of plain decoding given here."""
    made = copy.deepcopy(document)
    for figure in made["workloads"]["chat"].values():
        figure["noisy_pairs"] = 0
    made["workloads"]["chat"][PLAIN] |= {"ms_per_token_range": [10.0, 10.5], **plain}
    for winner in made["best"]["chat"].values():
        winner["k"] = 1
    return made


def test_sound_figures_are_not_doubted(measured: dict[str, Any]) -> None:
    assert list(doubts(changed(measured), "chat")) == []


def test_plain_decoding_that_varies(measured: dict[str, Any]) -> None:
    (said,) = doubts(changed(measured, ms_per_token_range=[10.0, 12.5]), "chat")
    assert "plain decoding took 10.0 to 12.5 ms a token" in said
    assert "25 %" in said


def test_the_best_k_at_the_end_of_the_range(measured: dict[str, Any]) -> None:
    document = changed(measured)
    document["best"]["chat"]["model"]["k"] = 3
    document["best"]["chat"]["model"]["speedup_over"][PLAIN]["median"] = 1.2
    (said,) = doubts(document, "chat")
    assert said == "k = 3 is the best for model, and the longest that was tried: --k 3,6 tries a longer one"
    document["best"]["chat"]["model"]["speedup_over"][PLAIN]["median"] = 0.9
    assert list(doubts(document, "chat")) == [], "of those that lose, none is the best"


def test_longer_lengths_end_somewhere() -> None:
    assert [longer(ks) for ks in ([1, 8], [40], [64], [0], [])] == [16, 64, None, None, None]


@pytest.mark.parametrize("num_prompts", [1, 2, 3])
def test_too_few_prompts_have_no_interval(num_prompts: int) -> None:
    document = run(prompts={"chat": [[1, 2, 3], [4, 5], [6, 7, 8]][:num_prompts]}, drafters=("lookup",))
    text = printed(document)
    (row,) = [line for line in text.splitlines() if line.startswith("|lookup k=1 ")]
    is_enough = num_prompts >= MIN_PROMPTS
    assert ("x (" in row.split("|")[5]) == is_enough, row
    assert ("too few for intervals" in text) != is_enough
    assert ("1 prompt is too few" in text) == (num_prompts == 1)


def test_an_interval_needs_three_prompts() -> None:
    assert [has_interval({"prompts": n}) for n in (1, 2, 3)] == [False, False, True]


def test_noise_is_a_ratio_above_the_tokens_per_pass() -> None:
    assert not is_noise(1.9, 1.9)
    assert not is_noise(1.93, 1.9), "a clock's error"
    assert is_noise(2.0, 1.9)


def test_noisy_pairs_are_counted_by_prompt_and_round() -> None:
    """Two tokens a pass allow a factor of two: of 20 ms a token, 10 ms are possible and 8 are not. The median of the
    prompts' ratios may lie above the tokens per pass of all prompts together, and be sound."""
    plain, drafted = Scripted(PLAIN, is_peer=False), Scripted("model k=1", is_peer=False)
    drafted.drafter = "model"

    def halved(ms: float) -> Sample:
        one = sample(ms)
        return Sample(one.tokens, 1, one.first_s, one.total_s, num_passes=one.num_decoded // 2)

    session: Session = session_of({PLAIN: [[20.0, 20.0], [20.0, 20.0]]})
    for place, ms in (((0, 0), 10.0), ((0, 1), 8.0), ((1, 0), 19.0), ((1, 1), 7.0), ((2, 0), 1.0)):
        session.measurements.append(Measurement("chat", *place, "model k=1", halved(ms), 30.0))
    for variant in (plain, drafted):
        session.described["chat", variant.name] = {"drafter": variant.drafter, "k": variant.k}
    figures = summarise(session, [plain, drafted], "chat", ProbeSummary.of([30.0]), {})
    assert figures["model k=1"]["noisy_pairs"] == 2, "and what plain decoding never met does not count"
    assert figures[PLAIN]["noisy_pairs"] == 0


def test_noise_is_said_with_its_rows(measured: dict[str, Any]) -> None:
    document = changed(measured)
    document["workloads"]["chat"]["lookup k=3"]["noisy_pairs"] = 2
    (said,) = doubts(document, "chat")
    assert said.startswith("noise: ")
    assert "lookup k=3 (2 of 6)" in said
    assert said in printed(document)
