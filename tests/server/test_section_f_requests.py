"""What other engines got wrong in requests, over HTTP, streamed and not: shared/cases.md, sections A to E.

The engine's own tests of the same faults are in tests/cases; here it is the request, the answer and the stream.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.server.asking import CHATS, both, refused
from tests.server.serving import Serving, scripted_llm

from forerun.llm import LLM

PROMPT = "the water is"


def repr_id(value: Any) -> str:
    return repr(value)[:24]


PLAIN = {"speculation": {"enabled": False}}


def text_of(document: Any) -> str:
    return document["choices"][0]["text"]


# -- A. stops and budgets ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 1, 2, 3, 5, 8])
def test_c01_a_stop_id_ends_the_text_wherever_it_stands_in_a_block(served: Serving, plain: LLM, place: int) -> None:
    """What stops a text is none of it, nor is what was drafted behind it."""
    asked: dict[str, Any] = {"temperature": 9, "seed": 4, "max_tokens": 24}
    tokens = plain.generate(PROMPT, ignore_eos=True, **asked).tokens
    stop = tokens[place]
    assert tokens.index(stop) == place
    expected = plain.generate(PROMPT, stop_token_ids=(599, stop), **asked)
    found = both(served, prompt=PROMPT, stop_token_ids=[599, stop], logprobs=1, **asked)
    assert found["usage"]["completion_tokens"] == expected.usage.completion_tokens == place
    assert found["choices"][0]["finish_reason"] == "stop"
    assert len((found["choices"][0]["logprobs"] or {"tokens": ()})["tokens"]) == place
    assert text_of(found) == expected.text
    longer = both(served, prompt=PROMPT, ignore_eos=True, **asked)
    assert (longer["usage"]["completion_tokens"], longer["choices"][0]["finish_reason"]) == (24, "length")


@pytest.mark.parametrize("drafter", ["model", "lookup", "none"])
def test_c03_c05_budgets_are_kept_to_the_token(served: Serving, plain: LLM, drafter: str) -> None:
    drafters = {"speculation": {"drafter": drafter if drafter in served.server.service.sources else "model"}}
    for most in (0, 1, 2, 3, 4, 5, 8, 9):
        found = both(
            served, prompt=PROMPT, temperature=0, max_tokens=most, logprobs=1, ignore_eos=True, **drafters
        )  # fmt: skip
        assert found["usage"]["completion_tokens"] == most
        assert found["choices"][0]["finish_reason"] == "length"
        assert len((found["choices"][0]["logprobs"] or {"tokens": ()})["tokens"]) == most
        expected = plain.generate(PROMPT, temperature=0, max_tokens=most, ignore_eos=True)
        assert text_of(found) == expected.text


@pytest.mark.parametrize(
    ("text", "stop", "shown"),
    [
        ("Lima.\nmore", "\n", "Lima."),
        (" Ivo,\nIvo:", ["\n", "Ivo:"], " Ivo,"),
        ("\nGuest: hi", "\nGuest:", ""),
        ("red blue green", " green\n==", "red blue green"),
        ("ab\U0001f680cd", "\U0001f680", "ab"),
        ("aXYbXYZc", "XYZ", "aXYb"),
        ("<think>\nno stop</think>x STOP y", "STOP", None),
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", CHATS])
def test_c06_no_part_of_a_stop_string_is_ever_sent_and_nothing_else_is_lost(
    text: str, stop: Any, shown: str | None, path: str
) -> None:
    with Serving(scripted_llm(text)) as one:
        asked: dict[str, Any] = {"temperature": 0, "max_tokens": 200, "stop": stop}
        if path == CHATS:
            choice = both(one, path, messages=[{"role": "user", "content": "hi"}], **asked)["choices"][0]
            found = choice["message"]["content"]
            expected = "x " if shown is None else shown
        else:
            found = text_of(both(one, path, prompt="<a>", **asked))
            expected = text.partition("STOP")[0] if shown is None else shown
        assert found == expected


@pytest.mark.parametrize(
    "stop", ["", [""], ["", "x"], ["a"] * 257, ["a"] * 200_001, [5], "x" * 65_537, {"a": 1}, 7], ids=repr_id
)
def test_c07_stops_that_could_only_be_a_mistake_are_refused_by_name(served: Serving, stop: Any) -> None:
    for path, more in (("/v1/completions", {"prompt": PROMPT}), (CHATS, {"messages": [{"role": "user"}]})):
        error = refused(served, path, stop=stop, max_tokens=4, **more)
        assert "stop" in error["message"]
        assert len(error["message"]) < 1000
    assert text_of(both(served, prompt=PROMPT, temperature=0, max_tokens=3))


@pytest.mark.parametrize(
    "stop", [[], None, ["zq" * 5000], "\u0000", "water is", [f"q{i}" for i in range(5)]], ids=repr_id
)
def test_c07_stops_that_do_not_come_change_nothing(served: Serving, plain: LLM, stop: Any) -> None:
    """The prompt's own end is no stop, and a long one is flushed at the end."""
    expected = plain.generate(PROMPT, temperature=0, max_tokens=20).text
    assert "water is" not in expected
    assert text_of(both(served, prompt=PROMPT, temperature=0, max_tokens=20, stop=stop)) == expected


# -- B. distributions, seeds, penalties --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "penalty",
    [{"frequency_penalty": -2}, {"frequency_penalty": 2}, {"presence_penalty": 2}, {"repetition_penalty": 1.3}],
)
def test_c10_penalties_hold_under_speculation(served: Serving, plain: LLM, penalty: dict[str, float]) -> None:
    prompt = "over over over over time"
    expected = plain.generate(prompt, temperature=0, max_tokens=24, **penalty)
    for wish in ({}, {"max_k": 2}, {"max_k": 8}, {"drafter": "model"}, {"drafter": "suffix"}, {"enabled": False}):
        found = both(served, prompt=prompt, temperature=0, max_tokens=24, speculation=wish, **penalty)
        assert text_of(found) == expected.text, wish
    error = refused(served, prompt=prompt, frequency_penalty=9)
    assert error["param"] == "frequency_penalty"


@pytest.mark.parametrize("only", [{"top_k": 40}, {"top_p": 0.95}, {"min_p": 0.001}, {}])
@pytest.mark.parametrize("enabled", [True, False])
def test_c12_without_a_temperature_it_is_one(served: Serving, plain: LLM, only: dict[str, Any], enabled: bool) -> None:
    asked = {"prompt": "Name a colour:", "max_tokens": 12, "speculation": {"enabled": enabled}, **only}
    # More than half of all texts are one and the same: sixty-four of it in a row are as likely as 1 in 10^15.
    first = text_of(served.completion(**asked))
    assert any(text_of(served.completion(**asked)) != first for _ in range(64))
    expected = plain.generate("Name a colour:", max_tokens=12, temperature=1.0, seed=3, **only).text
    assert text_of(both(served, seed=3, **asked)) == expected
    assert text_of(both(served, seed=3, **{**asked, "temperature": None})) == expected  # null is not given


def test_c13_seeds(served: Serving, plain: LLM) -> None:
    asked: dict[str, Any] = {"prompt": "A short rule for robots:", "temperature": 1.5, "max_tokens": 16}
    alone = text_of(both(served, seed=11, **asked))
    assert alone == plain.generate(asked["prompt"], temperature=1.5, max_tokens=16, seed=11).text

    def ask(seed: int | None) -> str:
        return text_of(served.completion(**asked, **({} if seed is None else {"seed": seed})))

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, [11, None, 11, None, 12, 11, None, 13]))
        assert [together[place] for place in (0, 2, 5)] == [alone] * 3
        unseeded = list(pool.map(ask, [None] * 12))
    assert len(set(unseeded)) >= 9
    assert len({ask(None) for _ in range(12)}) >= 9
    assert len({ask(seed) for seed in range(1, 13)}) >= 9
    four = both(served, **asked, seed=11, n=4)["choices"]
    assert len({choice["text"] for choice in four}) == 4
    assert four[0]["text"] == alone
    for seed in (-1, 2**63, 2**64 - 1, 0):
        assert text_of(both(served, seed=seed, **asked))


@pytest.mark.parametrize(
    "extreme",
    [
        {"temperature": 1e-30}, {"temperature": 1e-4}, {"temperature": 1, "top_p": 1e-9},
        {"temperature": 1, "top_k": 1}, {"temperature": 2, "min_p": 1},
    ],
    ids=str,
)  # fmt: skip
def test_c16_what_leaves_one_token_is_greedy(served: Serving, plain: LLM, extreme: dict[str, Any]) -> None:
    expected = plain.generate(PROMPT, temperature=0, max_tokens=16).text
    assert text_of(both(served, prompt=PROMPT, max_tokens=16, seed=1, **extreme)) == expected


@pytest.mark.parametrize(
    "name, value",
    [
        ("temperature", -1), ("temperature", "inf"), ("temperature", "0.5"), ("temperature", True), ("top_p", 0),
        ("top_p", 1.0000001), ("top_p", -0.5), ("top_k", -2), ("top_k", 1.5), ("min_p", 1.5), ("min_p", -0.1),
        ("repetition_penalty", 0), ("presence_penalty", 1e9), ("max_tokens", -1), ("n", 0), ("n", 10**9),
        ("min_tokens", -1), ("logprobs", -1), ("logprobs", 21), ("logprobs", True), ("seed", 1.5), ("seed", "a"),
        ("priority", 10**30), ("timeout", 0), ("timeout", -1), ("best_of", 0),
    ],
)  # fmt: skip
def test_c16_what_is_out_of_range_is_refused_by_name_and_a_normal_request_follows(
    served: Serving, plain: LLM, name: str, value: Any
) -> None:
    error = refused(served, **{"prompt": PROMPT, "max_tokens": 4, name: value})
    assert error["param"] == name
    assert name in error["message"]
    expected = plain.generate(PROMPT, temperature=0, max_tokens=4).text
    assert text_of(served.completion(PROMPT, temperature=0, max_tokens=4)) == expected


@pytest.mark.parametrize(
    "extreme",
    [
        {"temperature": 100}, {"temperature": 1e6}, {"top_k": 10**7}, {"top_k": 600}, {"top_k": 601}, {"top_k": -1},
        {"top_k": 0}, {"top_p": 1}, {"min_p": 0}, {"max_tokens": 10**9}, {"max_tokens": 10**30},
        {"min_tokens": 12},
    ],
    ids=str,
)  # fmt: skip
def test_c16_extremes_that_are_legal_are_generates(served: Serving, plain: LLM, extreme: dict[str, Any]) -> None:
    asked = {"temperature": 1, "seed": 2, "max_tokens": 12, **extreme}
    if "min_tokens" in extreme or extreme.get("max_tokens"):
        asked["stop_token_ids"] = [5]
    expected = plain.generate(PROMPT, **{**asked, "stop_token_ids": tuple(asked.get("stop_token_ids", ()))})
    found = both(served, prompt=PROMPT, **asked)
    assert text_of(found) == expected.text
    assert found["usage"]["completion_tokens"] == len(expected.tokens)


# -- C. log probabilities, text, biases --------------------------------------------------------------------------------


@pytest.mark.parametrize("wish", [{}, {"drafter": "model"}, {"drafter": "suffix"}, {"max_k": 1}], ids=str)
def test_c18_log_probabilities_are_those_of_plain_decoding(served: Serving, wish: dict[str, Any]) -> None:
    asked = {"prompt": PROMPT, "temperature": 0, "max_tokens": 10, "logprobs": 3, "ignore_eos": True}
    found = both(served, speculation=wish, **asked)["choices"][0]["logprobs"]
    assert found == both(served, **PLAIN, **asked)["choices"][0]["logprobs"]
    assert all(value <= 0 for value in found["token_logprobs"])
    for token, value, top in zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True):
        assert top[token] == value == max(top.values())
    turn = [{"role": "user", "content": "hi"}]
    for number in (0, 3):
        chat = both(served, CHATS, messages=turn, temperature=0, max_tokens=6, logprobs=True, top_logprobs=number)
        entries = chat["choices"][0]["logprobs"]["content"]
        assert len(entries) == chat["usage"]["completion_tokens"]
        assert all(len(entry["top_logprobs"]) == number for entry in entries)
    assert both(served, prompt=PROMPT, max_tokens=3, temperature=0)["choices"][0]["logprobs"] is None


@pytest.mark.parametrize(
    "text",
    [
        "hi \U0001f680 ok",
        "日本",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "e\u0301",
        "    .",
        " a",
        "\x00\x1b[31m",
    ],
)
def test_c20_characters_are_whole_wherever_they_are_cut(text: str) -> None:
    num = len(text.encode())
    with Serving(scripted_llm(text)) as one:
        for most in range(num + 1):
            found = text_of(both(one, prompt="<a>", temperature=0, max_tokens=most, logprobs=1))
            whole = text.encode()[:most].decode(errors="ignore")
            assert found.rstrip("\ufffd") == whole
            assert len(found) - len(whole) <= 1  # what is broken is told once, at the end
        assert text_of(both(one, prompt="<a>", temperature=0, max_tokens=num + 5)) == text


def test_c18_the_token_behind_an_echoed_prompt_has_an_entry_even_if_it_ends_the_text(
    served: Serving, plain: LLM
) -> None:
    """lm-eval asks for one token more than it scores, and leaves out the last entry."""
    ends = sorted(plain.engine.eos_ids)
    for value, reason in ((100, "stop"), (-100, "length")):
        bias = {str(end): value for end in ends}
        asked = {"prompt": PROMPT, "temperature": 0, "max_tokens": 1, "logprobs": 1, "logit_bias": bias}
        found = both(served, echo=True, **asked)
        choice, num = found["choices"][0], found["usage"]["prompt_tokens"]
        assert choice["finish_reason"] == reason
        assert len(choice["logprobs"]["tokens"]) == num + 1
        assert found["usage"]["completion_tokens"] == 1
        assert choice["text"].startswith(PROMPT)
        if reason == "stop":
            assert choice["text"] == PROMPT
            assert both(served, **asked)["usage"]["completion_tokens"] == 0


def test_c20_invalid_bytes_stall_nothing(served: Serving, plain: LLM) -> None:
    """Bytes that are never UTF-8, forced by their ids, and then text."""
    tokenizer = plain.tokenizer
    assert tokenizer is not None
    bad = [token for token in range(600) if tokenizer.token_bytes(token) in (b"\xff", b"\xfe", b"\x80", b"\xc3")]
    assert len(bad) == 4
    asked = {"temperature": 99, "seed": 1, "max_tokens": 30, "ignore_eos": True}
    expected = plain.generate(PROMPT, allowed_token_ids=(*bad, *tokenizer.encode(" water")), **asked)
    assert "\ufffd" in expected.text
    found = both(served, prompt=PROMPT, allowed_token_ids=[*bad, *tokenizer.encode(" water")], logprobs=2, **asked)
    assert text_of(found) == expected.text
    assert found["usage"]["completion_tokens"] == 30


@pytest.mark.parametrize(
    "bias",
    [
        {"600": 1}, {"601": 1}, {"-1": 5}, {"3.0": 1}, {"abc": 1}, {"5": 101}, {"5": -101}, {"5": 1e9}, {"5": None},
        {"5": "1"}, {"": 1}, {"007": 1}, {"9" * 5000: 1}, [1, 2], "5",
    ],
    ids=repr_id,
)  # fmt: skip
def test_c21_biases_that_are_none_are_refused_by_name(served: Serving, bias: Any) -> None:
    error = refused(served, prompt=PROMPT, max_tokens=4, logit_bias=bias)
    assert error["param"].startswith("logit_bias")
    assert len(error["message"]) < 1000
    assert text_of(served.completion(PROMPT, temperature=0, max_tokens=3))


def test_c21_biases_force_and_forbid_under_speculation(served: Serving, plain: LLM) -> None:
    favourite = plain.generate(PROMPT, temperature=0, max_tokens=1).tokens[0]
    for bias in ({str(favourite): -100}, {"300": 100}, {"0": 100}, {str(favourite): 0}):
        expected = plain.generate(PROMPT, temperature=0, max_tokens=12, logit_bias=bias)
        for wish in ({}, {"drafter": "model"}, {"enabled": False}):
            found = both(served, prompt=PROMPT, temperature=0, max_tokens=12, logit_bias=bias, speculation=wish)
            assert text_of(found) == expected.text


# -- D and E. context, drafters ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [509, 510, 511])
def test_c26_a_text_ends_at_the_context(served: Serving, plain: LLM, length: int) -> None:
    ids = [5 + i % 90 for i in range(length)]
    for more in ({"max_tokens": 100}, {"max_tokens": 512 - length}):
        found = both(served, prompt=ids, temperature=0, ignore_eos=True, **more)
        assert found["usage"]["completion_tokens"] == 512 - length
        assert found["choices"][0]["finish_reason"] == "length"
        assert text_of(found) == plain.generate(ids, temperature=0, ignore_eos=True, **more).text


@pytest.mark.parametrize("length", [512, 513, 5000])
def test_c26_a_prompt_that_does_not_fit_is_refused_with_both_numbers(served: Serving, length: int) -> None:
    error = refused(served, prompt=[5] * length, max_tokens=1)
    assert error["code"] == "context_length_exceeded"
    assert "512" in error["message"].replace(",", "")
    assert str(length) in error["message"].replace(",", "")
    error = refused(served, CHATS, messages=[{"role": "user", "content": "water " * length}], max_tokens=1)
    assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize("prompt", [[5], [5, 5, 5], [3, 14, 15, 92, 65, 3, 14], "over" * 40, "over " * 40], ids=repr_id)
@pytest.mark.parametrize("drafter", ["suffix", "model"])
def test_c30_prompts_at_the_edge_of_lookups(served: Serving, plain: LLM, prompt: Any, drafter: str) -> None:
    asked = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
    found = both(served, prompt=prompt, speculation={"drafter": drafter}, **asked)
    assert text_of(found) == plain.generate(prompt, **asked).text


def test_c28_what_others_wrote_is_not_shown_in_a_text(served: Serving, plain: LLM) -> None:
    """Drafts may come from others' texts (unless tenants are kept apart), but the text is always the target's."""
    for prompt in ("into the long way " * 20, "the long way made", "into the long"):
        expected = plain.generate(prompt, temperature=0, max_tokens=30).text
        assert text_of(both(served, prompt=prompt, temperature=0, max_tokens=30)) == expected
