"""`load`: which policy and drafter settings give, what is refused before any weights are read, where traces go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.toys import patch

from forerun.control import AdaptiveLength, FixedLength
from forerun.control.trace import TracedPolicy
from forerun.drafting import LookupDrafter, ModelDrafter, StackDrafter, SuffixDrafter
from forerun.errors import InputError, ParameterError
from forerun.loading import load
from forerun.runtime.select import Choice


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    patch(monkeypatch.setitem, monkeypatch.setattr)
    monkeypatch.setenv("FORERUN_HOME", str(tmp_path / "home"))


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, progress: Any = None) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(Choice, "load", refuse)


def parts(**settings: Any) -> tuple[Any, Any]:
    llm = load("toy", **settings)
    return llm.engine.policy, llm.engine.drafter


def test_a_draft_model_brings_the_adaptive_policy_and_the_stack() -> None:
    policy, drafter = parts(draft="toy-draft")
    assert isinstance(policy, AdaptiveLength)
    assert isinstance(drafter, StackDrafter)
    assert list(drafter.sources) == ["suffix", "model"]
    assert drafter.sources["model"]._meter == policy.meter  # type: ignore[attr-defined]
    assert policy.draft is not None


def test_a_number_brings_a_fixed_length_and_the_model_alone() -> None:
    policy, drafter = parts(draft="toy-draft", k=3)
    assert isinstance(policy, FixedLength)
    assert policy.k == 3
    assert isinstance(drafter, ModelDrafter)


@pytest.mark.parametrize("kind,made", [("suffix", SuffixDrafter), ("lookup", LookupDrafter)])
def test_drafts_from_text_are_adapted_too(kind: str, made: type) -> None:
    policy, drafter = parts(drafter=kind)
    assert isinstance(policy, AdaptiveLength)
    assert isinstance(drafter, made)
    assert policy.draft is None
    assert isinstance(parts(drafter=made())[0], AdaptiveLength)


def test_nothing_drafts_by_default() -> None:
    for settings in ({}, {"k": "auto"}, {"k": 4}, {"drafter": "none"}):
        policy, _ = parts(**settings)
        assert isinstance(policy, FixedLength)
        assert policy.k == 0


def test_an_own_policy_takes_the_place_of_k() -> None:
    class Own(FixedLength):
        def meter(self, *given: Any) -> None:
            pass

    own = Own(2)
    policy, drafter = parts(draft="toy-draft", policy=own, drafter="model")
    assert policy is own
    assert drafter._meter == own.meter
    with pytest.raises(ParameterError, match="nothing drafts"):
        load("toy", policy=own)


def test_own_parts_that_lack_something_are_refused_before_weights_load(no_weights: None) -> None:
    class Forgetful:
        """As policies were before `release`."""

        plan = update = None

    with pytest.raises(ParameterError, match="policy: a Forgetful has no release"):
        load("toy", draft="toy-draft", policy=Forgetful())  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="drafter: a Forgetful has no needs and no prospects and no prop"):
        load("toy", drafter=Forgetful())  # type: ignore[arg-type]


@pytest.mark.parametrize("k", [-1, 1.5, "many", "", True, None, float("nan")])
def test_a_k_that_is_none_is_refused_before_weights_load(k: Any, no_weights: None) -> None:
    with pytest.raises(ParameterError, match="'auto', or a whole number"):
        load("toy", draft="toy-draft", k=k)


def test_curves_are_kept_between_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load("toy", draft="toy-draft")
    assert len(list((tmp_path / "home" / "costs").iterdir())) == 2
    from forerun.runtime.toy import ToyModel

    monkeypatch.setattr(ToyModel, "cost", None)
    assert isinstance(load("toy", draft="toy-draft").engine.policy, AdaptiveLength)


# -- traces ------------------------------------------------------------------------------------------------------------


def test_a_trace_is_written_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"pass": 0, "sequences": []}\n')
    llm = load("toy", draft="toy-draft", trace=path)
    assert isinstance(llm.engine.policy, TracedPolicy)
    result = llm.generate("abcabcabc", max_tokens=20, temperature=0, ignore_eos=True)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sum(line["actual"]["num_tokens"] for line in lines) == len(result.choices[0].tokens)
    assert lines[0]["pass"] == 0
    file: Any = llm.engine.policy._close
    assert not file.__self__.closed
    llm.close()
    assert file.__self__.closed


def test_a_trace_that_cannot_be_written_is_refused_before_weights_load(tmp_path: Path, no_weights: None) -> None:
    for path in (tmp_path, tmp_path / "nowhere" / "trace.jsonl"):
        with pytest.raises(InputError, match="cannot write the trace"):
            load("toy", draft="toy-draft", trace=path)
    wrong: Any = 5
    with pytest.raises(ParameterError, match="trace"):
        load("toy", draft="toy-draft", trace=wrong)


def test_a_refusal_leaves_an_earlier_trace_alone(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"pass": 0}\n')
    with pytest.raises(Exception, match="token 7"):
        load("toy", draft="toy-odd", trace=path)
    assert path.read_text() == '{"pass": 0}\n'


@pytest.mark.parametrize("held", [b"GGUF\x03\x00", b"notes", b"{"])
def test_nothing_but_a_trace_is_written_over(held: bytes, tmp_path: Path, no_weights: None) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(held)
    with pytest.raises(InputError, match=r"exists and is no trace.*name another file"):
        load("toy", draft="toy-draft", trace=path)
    assert path.read_bytes() == held


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_ends_the_trace_and_not_the_text() -> None:
    plain = load("toy", drafter="suffix").generate("the time", max_tokens=8, seed=1)
    llm = load("toy", drafter="suffix", trace="/dev/full")
    with pytest.warns(RuntimeWarning, match="tracing to /dev/full ends here") as found:
        written = llm.generate("the time", max_tokens=8, seed=1)
    assert written.text == plain.text
    assert len(found) == 1
