"""Memory that runs out, steps that fail, grammars that explode: whoever is not concerned goes on with its own text."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.asking import COMPLETIONS, both, refused
from tests.server.faults import EXPLODING
from tests.server.serving import PATIENCE_S, Serving, slow_llm, text_of, wait_for

from forerun.constraints.grammar import CompiledGrammar
from forerun.llm import LLM
from forerun.loading import load

PROMPTS = [
    f"{word} into the long way of" for word in ("water", "people", "time", "words", "down", "over", "than", "made")
]


@pytest.mark.parametrize("max_cached", [90, 200])
@pytest.mark.parametrize("drafter", ["stack", "none"])
def test_where_memory_is_short_texts_give_way_and_stay_the_same(
    models: tuple[Path, Path], plain: LLM, max_cached: int, drafter: str
) -> None:
    asked = {"temperature": 1, "seed": 4, "max_tokens": 40, "ignore_eos": True}
    expected = [plain.generate(prompt, **asked).text for prompt in PROMPTS]
    draft = {} if drafter == "none" else {"draft": models[1], "k": 3}
    llm = load(models[0], drafter=drafter, **draft)
    target = llm.engine.target
    forward, most = target.forward, [0]

    def watched(spans: Any) -> Any:
        rows = forward(spans)
        most.append(sum(target.length(one.sequence_id) for one in llm.engine.scheduler.running))
        return rows

    target.forward = watched  # type: ignore[method-assign]
    with Serving(llm, max_cached=max_cached, max_running=8) as one, ThreadPoolExecutor(16) as pool:

        def ask(number: int) -> str:
            prompt = PROMPTS[number % 8]
            if number < 8:
                return text_of(one.stream(COMPLETIONS, prompt=prompt, **asked))
            return one.completion(prompt, **asked)["choices"][0]["text"]

        assert list(pool.map(ask, range(16))) == expected * 2
        one.wait_until_idle()
        assert 0 < max(most) <= max_cached
        kept = one.llm.engine.kept
        assert kept is not None
        assert kept.num_tokens <= max_cached
        error = refused(one, prompt=[5] * max_cached, max_tokens=1)
        assert error["code"] == "context_length_exceeded"
        ends = both(one, prompt=[5] * (max_cached - 10), temperature=0, max_tokens=100, ignore_eos=True)
        assert ends["usage"]["completion_tokens"] == 10


def failing_llm(tokens: Any, error: type[BaseException], seconds: float = 0.002) -> tuple[LLM, list[int]]:
    """A toy whose passes raise while `tokens(spans)` says so, and a list that grows with each failure."""
    llm, failures = slow_llm(seconds), []
    forward = llm.engine.target.forward

    def checked(spans: Any) -> Any:
        if tokens(spans):
            failures.append(len(spans))
            raise error("not here")
        return forward(spans)

    llm.engine.target.forward = checked  # type: ignore[method-assign]
    return llm, failures


def ask(one: Serving, prompt: str, stream: bool = False, **more: Any) -> httpx.Response:
    asked = {"prompt": prompt, "temperature": 0, "max_tokens": 60, "stream": stream, **more}
    return httpx.post(one.url + COMPLETIONS, json=asked, timeout=PATIENCE_S)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code"), [(MemoryError, 503, "no_memory"), (OSError, 500, "internal_error")]
)
def test_a_request_that_no_step_can_serve_fails_alone(error: Any, status: int, code: str, stream: bool) -> None:
    """It comes last, and whoever came before goes on with the same text."""
    poison = ord("!")
    llm, failures = failing_llm(lambda spans: any(poison in span.tokens for span in spans), error)
    with Serving(llm) as one, ThreadPoolExecutor(4) as pool:
        expected = ask(one, "abc").json()["choices"][0]["text"]
        others = [pool.submit(ask, one, "abc") for _ in range(3)]
        wait_for(lambda: sum(bool(job.first_at) for job in list(one.worker._jobs)) == 3)
        refused = ask(one, "a!c", stream)
        if stream:
            assert f'"code":"{code}"' in refused.text
            assert refused.text.endswith("data: [DONE]\n\n")
        else:
            assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)
        assert "not here" not in refused.text
        assert [other.result().json()["choices"][0]["text"] for other in others] == [expected] * 3
        assert len(failures) >= 3  # a step is done again before anybody is given up
        one.wait_until_idle()
        assert one.client.get("/health").status_code == 200


def text_or_none(response: httpx.Response) -> str | None:
    return response.json()["choices"][0]["text"] if response.status_code == 200 else None


def test_where_so_many_do_not_fit_the_last_fail_and_the_first_go_on() -> None:
    llm, _ = failing_llm(lambda spans: len(spans) > 4, MemoryError)
    with Serving(llm) as one, ThreadPoolExecutor(12) as pool:
        expected = ask(one, "abc").json()["choices"][0]["text"]
        first = [pool.submit(ask, one, "abc") for _ in range(4)]
        wait_for(lambda: sum(bool(job.first_at) for job in list(one.worker._jobs)) == 4)
        last = [pool.submit(ask, one, "xyz") for _ in range(4)]
        urgent = ask(one, "abc", priority=-1)
        assert [text_or_none(done.result()) for done in first].count(expected) >= 3
        assert urgent.json()["choices"][0]["text"] == expected
        assert {done.result().status_code for done in last} <= {200, 503}
        one.wait_until_idle()


def test_a_runtime_that_is_broken_for_good_fails_everybody_and_stays_up() -> None:
    broken = threading.Event()
    llm, failures = failing_llm(lambda spans: broken.is_set(), RuntimeError)
    with Serving(llm, max_running=2) as one, ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask, one, "abc", number % 2 == 0, max_tokens=3000) for number in range(8)]
        wait_for(lambda: one.worker.num_held == 8)
        broken.set()
        for number, done in enumerate(asked):
            assert "internal_error" in done.result().text
            assert done.result().status_code == (200 if number % 2 == 0 else 500)
        one.wait_until_idle()
        assert failures
        broken.clear()
        assert ask(one, "abc").status_code == 200


@pytest.mark.parametrize("wish", EXPLODING, ids=lambda wish: f"{next(iter(wish.items()))!r:.60}")
def test_grammars_that_explode_end_and_hold_up_nobody(served: Serving, plain: LLM, wish: dict[str, Any]) -> None:
    """They are refused, or are followed for a few tokens; the text of who runs beside them is written meanwhile."""
    asked: dict[str, Any] = {"prompt": "the long way", "temperature": 0, "max_tokens": 300, "ignore_eos": True}
    expected = plain.generate(**asked).text
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(served.stream, COMPLETIONS, **asked)
        for stream in (False, True):
            body = {"prompt": "a", "max_tokens": 3, "temperature": 1, "seed": 1, "stream": stream, **wish}
            response = served.client.post(COMPLETIONS, json=body)
            assert response.status_code in (200, 400, 422), response.text[:500]
            if response.status_code != 200:
                assert response.json()["error"]["type"] in ("invalid_request_error", "generation_error")
                assert len(response.json()["error"]["message"]) < 1000
        assert text_of(other.result()) == expected
    served.wait_until_idle()


def test_a_text_that_can_be_read_in_too_many_ways_is_not_compiled_again(
    served: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That would hold up everybody in the pass, and end no better."""
    compiled: list[str] = []
    new_matcher = CompiledGrammar.new_matcher

    def counted(self: CompiledGrammar) -> Any:
        compiled.append(threading.current_thread().name)
        return new_matcher(self)

    monkeypatch.setattr(CompiledGrammar, "new_matcher", counted)
    wish = {"grammar": EXPLODING[4]["grammar"] + "\n"}  # not compiled before
    error = served.post(COMPLETIONS, 422, prompt="a", temperature=0, max_tokens=9, **wish)["error"]
    assert "Current row has" in error["message"]
    assert len(compiled) == 1
    assert compiled[0].startswith("forerun-compiling")
