"""Exports read back: every engine's settings say the drafter and the k that were planned."""

from __future__ import annotations

import json
import shlex

import pytest

from forerun.errors import ParameterError
from forerun.planning.exports import ENGINES, Wish, export


def flags(text: str) -> dict[str, str]:
    parts = shlex.split(text)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def yaml(text: str) -> dict[str, object]:
    """The little YAML that is written: a mapping, and one nested mapping of JSON scalars or plain words."""
    found: dict[str, object] = {}
    inner: dict[str, object] = found
    for line in text.splitlines():
        key, _, value = line.strip().partition(":")
        if not value:
            inner = {}
            found[key] = inner
            continue
        try:
            read: object = json.loads(value)
        except ValueError:
            read = value.strip()
        (inner if line.startswith("  ") else found)[key] = read
    return found


def test_vllm() -> None:
    made = flags(export("vllm", Wish("d", 5, "t", "org/d", 0.7)).text)
    assert json.loads(made["--speculative-config"]) == {
        "method": "draft_model",
        "model": "org/d",
        "num_speculative_tokens": 5,
        "draft_sample_method": "probabilistic",
    }
    greedy = json.loads(flags(export("vllm", Wish("d", 5, "t", "d")).text)["--speculative-config"])
    assert "draft_sample_method" not in greedy
    lookup = json.loads(flags(export("vllm", Wish("lookup", 3)).text)["--speculative-config"])
    assert lookup == {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 4,
    }
    suffix = export("vllm", Wish("suffix", 8))
    assert json.loads(flags(suffix.text)["--speculative-config"])["method"] == "suffix"
    default, older = suffix.notes
    assert "Model Runner V2, the default, verifies num_speculative_tokens in every round" in default
    assert "V1" in older
    assert "needs pip install arctic-inference" in older


def test_sglang() -> None:
    assert flags(export("sglang", Wish("d", 5, "t", "org/d")).text) == {
        "--speculative-algorithm": "STANDALONE",
        "--speculative-draft-model-path": "org/d",
        "--speculative-num-steps": "5",
        "--speculative-eagle-topk": "1",
        "--speculative-num-draft-tokens": "6",
    }
    lookup = flags(export("sglang", Wish("lookup", 3)).text)
    assert (lookup["--speculative-algorithm"], lookup["--speculative-num-draft-tokens"]) == ("NGRAM", "4")
    assert any("no suffix drafter" in note for note in export("sglang", Wish("suffix", 3)).notes)


def test_tensorrt_llm() -> None:
    made = yaml(export("tensorrt-llm", Wish("d", 5, "t", "org/d")).text)
    assert made == {
        "speculative_config": {"decoding_type": "DraftTarget", "max_draft_len": 5, "speculative_model": "org/d"},
        "disable_overlap_scheduler": True,
    }
    lookup = yaml(export("tensorrt-llm", Wish("lookup", 3)).text)["speculative_config"]
    assert isinstance(lookup, dict)
    assert (lookup["decoding_type"], lookup["max_draft_len"], lookup["is_public_pool"]) == ("NGram", 3, False)
    suffix = yaml(export("tensorrt-llm", Wish("suffix", 3)).text)
    assert suffix == {"speculative_config": {"decoding_type": "SA", "max_draft_len": 3}}


def test_llama_cpp() -> None:
    assert flags(export("llama.cpp", Wish("d", 5, "t", "d.gguf", 0.5)).text) == {
        "--spec-type": "draft-simple",
        "--spec-draft-model": "d.gguf",
        "--spec-draft-n-max": "5",
        "--spec-draft-sampling": "probabilistic",
    }
    lookup = flags(export("llama.cpp", Wish("lookup", 3)).text)
    assert (lookup["--spec-type"], lookup["--spec-ngram-simple-size-m"]) == ("ngram-simple", "3")
    assert flags(export("llama.cpp", Wish("none", 0)).text) == {"--spec-type": "none"}


@pytest.mark.parametrize("engine", ENGINES)
def test_not_drafting_and_names(engine: str) -> None:
    """k = 0 says how, in words where no setting can; a draft's name is said to be ours; odd names survive quoting."""
    for wish in (Wish("none", 0), Wish("d", 0, "t", "d")):
        made = export(engine, wish)
        assert made.text == "--spec-type none" or (made.text == "" and "not drafting" in made.notes[0])
    made = export(engine, Wish("d", 2, "t", "a draft's name"))
    assert any("forerun's name of the draft" in note for note in made.notes)
    if engine != "tensorrt-llm":
        assert any("a draft's name" in part for part in shlex.split(made.text))
    else:
        config = yaml(made.text)["speculative_config"]
        assert isinstance(config, dict)
        assert config["speculative_model"] == "a draft's name"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_temperature_changes_the_settings_or_is_noted(engine: str) -> None:
    """A draft model's tokens are to be sampled; copied text is accepted with the target's probability as it stands."""
    greedy, sampled = (export(engine, Wish("d", 5, "t", "org/d", temperature)) for temperature in (0.0, 0.7))
    assert greedy != sampled
    if greedy.text == sampled.text:
        assert any("fewer are accepted than was planned with at 0.7" in note for note in sampled.notes)
    for drafter in ("lookup", "suffix"):
        assert export(engine, Wish(drafter, 5)) == export(engine, Wish(drafter, 5, temperature=0.7))


def test_tensorrt_llm_samples_drafts_by_rejection() -> None:
    made = export("tensorrt-llm", Wish("d", 5, "t", "org/d", 0.7))
    config = yaml(made.text)["speculative_config"]
    assert isinstance(config, dict)
    assert config["use_rejection_sampling"] is True
    assert any("prototype" in note for note in made.notes)


def test_engines_that_nothing_is_known_of() -> None:
    with pytest.raises(ParameterError, match="one of vllm, sglang, tensorrt-llm, llama"):
        export("ollama", Wish("lookup", 1))
