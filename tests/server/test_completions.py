"""/v1/completions: the text is `LLM.generate`'s, streamed or not, with every parameter of the API."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.serving import Serving, reasons_of, scripted_llm, text_of

from forerun.llm import LLM

PROMPT = "the water is"
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1, "seed": 3},
    {"temperature": 0.8, "seed": 5, "top_p": 0.9, "top_k": 50, "min_p": 0.01},
    {"temperature": 1, "seed": 7, "frequency_penalty": 0.5, "presence_penalty": 0.5, "repetition_penalty": 1.1},
    {"temperature": 0, "logit_bias": {"17": 5.0, "300": -100}},
    {"temperature": 1, "seed": 9, "stop": ["e", "zz"]},
    {"temperature": 1, "seed": 9, "stop": "a", "include_stop_string": True, "min_tokens": 4},
    {"temperature": 1, "seed": 2, "bad_words": ["the"], "min_tokens": 5},
    {"temperature": 1, "seed": 2, "regex": "[a-c]{3,9}"},
    {"temperature": 1, "seed": 4, "one_of": ["yes", "no", "perhaps"]},
    {"temperature": 1, "seed": 4, "grammar": 'root ::= "a" ("b" | "c")+ "d"'},
]
NAMES = {"include_stop_string": "include_stop_str_in_output"}


def over_http(settings: dict[str, Any]) -> dict[str, Any]:
    return {NAMES.get(name, name): value for name, value in settings.items()}


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: ",".join(settings))
def test_texts_are_those_of_generate_streamed_or_not(served: Serving, plain: LLM, settings: dict[str, Any]) -> None:
    expected = plain.generate(PROMPT, max_tokens=24, **settings)
    whole = served.completion(PROMPT, max_tokens=24, **over_http(settings))
    choice = whole["choices"][0]
    assert choice["text"] == expected.text
    assert choice["finish_reason"] == expected.finish_reason
    assert whole["usage"]["prompt_tokens"] == expected.usage.prompt_tokens
    assert whole["usage"]["completion_tokens"] == expected.usage.completion_tokens
    assert whole["object"] == "text_completion"
    chunks = served.stream(
        "/v1/completions", prompt=PROMPT, max_tokens=24, stream_options={"include_usage": True}, **over_http(settings)
    )
    assert text_of(chunks) == expected.text
    assert reasons_of(chunks) == {0: expected.finish_reason}
    assert chunks[-1]["choices"] == []
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [chunks[-1]["usage"][name] for name in counts] == [whole["usage"][name] for name in counts]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_several_prompts_and_choices(served: Serving, plain: LLM) -> None:
    prompts = ["the water", "into the"]
    expected = [one.text for prompt in prompts for one in plain.generate(prompt, n=3, seed=1, max_tokens=9).choices]
    asked = {"n": 3, "seed": 1, "max_tokens": 9}
    whole = served.completion(prompts, **asked)
    assert [choice["text"] for choice in whole["choices"]] == expected
    assert [choice["index"] for choice in whole["choices"]] == list(range(6))
    chunks = served.stream("/v1/completions", prompt=prompts, stream_options={"include_usage": True}, **asked)
    assert [text_of(chunks, i) for i in range(6)] == expected
    assert sorted(reasons_of(chunks)) == list(range(6))
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] > 9


def test_prompts_of_token_ids(served: Serving, plain: LLM) -> None:
    ids = plain.encode(PROMPT)
    expected = plain.generate(ids, temperature=0, max_tokens=8).text
    assert served.completion(ids, temperature=0, max_tokens=8)["choices"][0]["text"] == expected
    both = served.completion([ids, ids[:2]], temperature=0, max_tokens=8)["choices"]
    assert both[0]["text"] == expected
    assert served.post("/v1/completions", 400, prompt=[5000])["error"]["message"].startswith("prompt token id 5000")


def test_best_of_answers_with_the_best_and_counts_all(served: Serving, plain: LLM) -> None:
    asked = {"n": 2, "best_of": 4, "seed": 6, "max_tokens": 7}
    expected = plain.generate(PROMPT, **asked)
    found = served.completion(PROMPT, **asked)
    assert [choice["text"] for choice in found["choices"]] == [one.text for one in expected.choices]
    assert found["usage"]["completion_tokens"] > sum(one.usage.completion_tokens for one in expected.choices)
    error = served.post("/v1/completions", 400, prompt=PROMPT, stream=True, **asked)["error"]
    assert error["param"] == "best_of"


@pytest.mark.parametrize("echo", [False, True])
def test_logprobs_are_generates_and_the_same_in_streams(served: Serving, plain: LLM, echo: bool) -> None:
    asked = {"temperature": 1, "seed": 8, "max_tokens": 6, "logprobs": 2}
    expected = plain.generate(PROMPT, **asked, **({"prompt_logprobs": 2} if echo else {}))
    found = served.completion(PROMPT, echo=echo, **asked)["choices"][0]
    entries = [*(expected.prompt_logprobs or ()), *(expected.logprobs or ())]
    logprobs = found["logprobs"]
    assert logprobs["token_logprobs"] == pytest.approx([None if one is None else one.logprob for one in entries])
    assert len(logprobs["tokens"]) == len(logprobs["top_logprobs"]) == len(logprobs["text_offset"]) == len(entries)
    assert [None if one is None else len(one) for one in logprobs["top_logprobs"]] == [
        None if one is None else len(one.top) for one in entries
    ]
    assert found["text"] == (PROMPT if echo else "") + expected.text
    assert logprobs["text_offset"] == sorted(logprobs["text_offset"])
    parts = [
        chunk["choices"][0]["logprobs"]
        for chunk in served.stream("/v1/completions", prompt=PROMPT, echo=echo, **asked)
        if chunk["choices"][0]["logprobs"]
    ]
    for name, value in logprobs.items():
        assert [one for part in parts for one in part[name]] == value, name


def test_a_prompt_can_be_scored_alone(served: Serving, plain: LLM) -> None:
    """What lm-eval asks: the prompt's own log probabilities and no text."""
    expected = plain.generate(PROMPT, max_tokens=0, prompt_logprobs=1).prompt_logprobs
    found = served.completion(PROMPT, echo=True, max_tokens=0, logprobs=1)["choices"][0]
    assert found["text"] == PROMPT
    assert found["logprobs"]["token_logprobs"][0] is None
    assert found["logprobs"]["token_logprobs"][1:] == pytest.approx([one.logprob for one in expected[1:]])
    assert found["finish_reason"] == "length"
    chunks = served.stream("/v1/completions", prompt=PROMPT, echo=True, max_tokens=0, logprobs=1)
    assert text_of(chunks) == PROMPT
    assert chunks[0]["choices"][0]["logprobs"] == found["logprobs"]


def test_offsets_say_where_each_token_begins(served: Serving) -> None:
    """Also where a character of the prompt is spread over several tokens."""
    prompt = "the 日本 \U0001f642 é water"
    found = served.completion(prompt, echo=True, logprobs=0, temperature=0, max_tokens=4)["choices"][0]
    tokens, offsets = found["logprobs"]["tokens"], found["logprobs"]["text_offset"]
    assert any(token.startswith("bytes:") for token in tokens)
    for token, offset in zip(tokens, offsets, strict=True):
        assert token.startswith("bytes:") or found["text"][offset:].startswith(token)


def test_signs_that_end_lines_elsewhere_are_in_one_event() -> None:
    text = "a\x85b\u2028c\u2029d\ne\rf"
    with Serving(scripted_llm(text)) as one:
        chunks = one.stream("/v1/completions", prompt="<a>", temperature=0, max_tokens=40)  # split as splitlines does
        assert text_of(chunks) == text


def test_stop_strings_of_several_texts_end_each_where_it_stands(served: Serving, plain: LLM) -> None:
    settings: dict[str, Any] = {"n": 4, "seed": 9, "max_tokens": 30}
    freely = [one.text for one in plain.generate(PROMPT, **settings).choices]
    settings["stop"] = [freely[0][5:8], freely[1][20:23]]
    expected = plain.generate(PROMPT, logprobs=1, **settings).choices
    assert [one.finish_reason for one in expected[:2]] == ["stop", "stop"]
    assert all(one.text != all_of_it for one, all_of_it in zip(expected[:2], freely, strict=False))
    found = served.completion(PROMPT, logprobs=1, **settings)["choices"]
    chunks = served.stream("/v1/completions", prompt=PROMPT, logprobs=1, **settings)
    for i, one in enumerate(expected):
        assert (found[i]["text"], found[i]["finish_reason"]) == (one.text, one.finish_reason)
        assert (text_of(chunks, i), reasons_of(chunks)[i]) == (one.text, one.finish_reason)
        parts = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["index"] == i]
        assert [each for part in parts if part for each in part["tokens"]] == found[i]["logprobs"]["tokens"]
        assert len(found[i]["logprobs"]["tokens"]) == len(one.tokens)


def test_what_speculation_does_is_told_and_never_shows_in_the_text(served: Serving, plain: LLM) -> None:
    expected = plain.generate(PROMPT, temperature=0, max_tokens=30)
    asked = {"temperature": 0, "max_tokens": 30}
    for wish in (
        {},
        {"enabled": False},
        {"max_k": 1},
        {"drafter": "suffix"},
        {"drafter": ["model"]},
        {"drafter": "none"},
    ):
        found = served.completion(PROMPT, speculation={**wish, "explain": True}, **asked)
        assert found["choices"][0]["text"] == expected.text, wish
        (told,) = found["speculation"]["choices"]
        if wish in ({"enabled": False}, {"drafter": "none"}):
            assert told["num_rounds"] == 30
            assert told["tokens_per_pass"] == 1.0
        elif wish == {}:
            assert told["tokens_per_pass"] > 1.0
        elif wish == {"max_k": 1}:
            assert len(told["acceptance_by_depth"]) <= 1
    chunks = served.stream("/v1/completions", prompt=PROMPT, speculation={"explain": True}, **asked)
    tokens = [token for chunk in chunks if "forerun" in chunk for token in chunk["forerun"]["tokens"]]
    assert [token["token"] for token in tokens] == list(expected.tokens)
    assert {token["origin"] for token in tokens} >= {"drafted", "bonus"}
    rounds = [one for chunk in chunks if "forerun" in chunk for one in chunk["forerun"]["rounds"]]
    assert sum(one["accepted"] + 1 for one in rounds) >= 30
    assert len(rounds) == chunks[-1]["speculation"]["choices"][0]["num_rounds"]
    error = served.post("/v1/completions", 400, prompt=PROMPT, speculation={"drafter": "magic"})["error"]
    assert "'magic' does not draft here" in error["message"]
    assert served.post("/v1/completions", 400, prompt=PROMPT, speculation={"k": 3})["error"]["param"] == "speculation.k"


def test_the_middle_is_filled_in_where_a_model_can(
    served: Serving, plain: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = served.post("/v1/completions", 400, prompt="a", suffix="b")["error"]
    assert error["param"] == "suffix"
    assert "filling in the middle" in error["message"]
    monkeypatch.setattr("forerun.server.prompts.INFILLING", [("<|im_start|>", "<tool_call>", "</tool_call>")])
    tokenizer = plain.tokenizer
    assert tokenizer is not None
    parts = ("<|im_start|>", "the water", "<tool_call>", " into", "</tool_call>")
    ids = [token for part in parts for token in tokenizer.encode(part)]
    expected = plain.generate(ids, temperature=0, max_tokens=6)
    found = served.completion("the water", suffix=" into", temperature=0, max_tokens=6)
    assert found["choices"][0]["text"] == expected.text
    assert found["usage"]["prompt_tokens"] == len(ids)


def test_beginnings_that_were_read_are_counted(served: Serving) -> None:
    prompt = "way find use may water long little very after words called just " * 3
    served.completion(prompt, max_tokens=2, temperature=0)
    again = served.completion(prompt, max_tokens=2, temperature=0)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 16
