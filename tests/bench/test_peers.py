"""The transformers peers over a scripted `generate`: what they ask for, how they are timed and tuned."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forerun.bench.peers import ASSISTED_SETTINGS, Clock, NothingDecodedError, Setting, load_peers

torch = pytest.importorskip("torch")
FILES = (Path("target.gguf"), "gguf"), (Path("draft.gguf"), "gguf")


class Generating:
    """A model whose `generate` delivers blocks as large as the setting it finds, and remembers its arguments."""

    device, dtype = "cpu", torch.bfloat16

    def __init__(self) -> None:
        self.generation_config = SimpleNamespace()
        self.calls: list[dict[str, Any]] = []
        self.clock: list[float] = []

    def generate(self, ids: Any, streamer: Any, max_new_tokens: int, **arguments: Any) -> Any:
        self.calls.append({"max_new_tokens": max_new_tokens, **arguments})
        assistant = arguments.get("assistant_model")
        block = assistant.generation_config.num_assistant_tokens + 1 if assistant is not None else 1
        streamer.put(ids)
        left = max_new_tokens
        while left:
            now = min(block, left)
            streamer.put(torch.arange(now))
            left -= now
        streamer.end()
        return torch.cat([ids, torch.arange(max_new_tokens)[None]], dim=1)


def loaded(names: tuple[str, ...], temperature: float = 0.0, **changed: Any) -> Any:
    models: list[Generating] = []

    def load(path: Path, kind: str, dtype: Any, device: str) -> Generating:
        models.append(Generating())
        return models[-1]

    variants, reasons = load_peers(names, *FILES, torch.float32, "cpu", temperature, **{"load": load, **changed})
    return variants, reasons, models


def test_one_target_serves_all_peers() -> None:
    variants, reasons, models = loaded(("transformers", "assisted", "prompt-lookup"))
    assert [variant.name for variant in variants] == ["transformers", "assisted", "prompt-lookup"]
    assert reasons == {}
    assert len(models) == 2, "one target, one draft"


def test_the_first_block_is_not_decoding() -> None:
    (assisted,), _, _ = loaded(("assisted",))
    assisted._chosen = Setting(4)
    sample = assisted.generate([7, 8, 9], 17)
    assert len(sample.tokens) == 17
    assert sample.num_first == 5
    assert sample.num_decoded == 12
    assert sample.num_passes == 3  # 5 + 5 + 2


def test_greedy_without_end_of_text_is_asked_for() -> None:
    (plain,), _, (model,) = loaded(("transformers",))
    plain.generate([1, 2], 5)
    (call,) = model.calls
    assert call["max_new_tokens"] == 5
    assert call["do_sample"] is False
    assert "temperature" not in call
    (sampled,), _, (model,) = loaded(("transformers",), temperature=0.7)
    sampled.generate([1, 2], 5)
    assert model.calls[0]["do_sample"] is True
    assert (model.calls[0]["temperature"], model.calls[0]["top_k"], model.calls[0]["top_p"]) == (0.7, 0, 1.0)


def test_the_fastest_setting_is_used_and_all_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(10**6))
    monkeypatch.setattr("forerun.bench.peers.perf_counter", lambda: float(next(ticks)))
    (assisted,), _, _ = loaded(("assisted",))
    assisted.prepare([[1] * 9, [2], [3, 4]], 128)
    # Every block takes one tick, so the largest block is the fastest per token.
    assert assisted.describe()["setting"] == {"num_tokens": 20, "schedule": "constant", "confidence": 0.4}
    assert len(assisted.describe()["tried"]) == len(ASSISTED_SETTINGS)


def test_settings_that_leave_nothing_to_time_are_passed_over() -> None:
    (assisted,), _, _ = loaded(("assisted",))
    assisted._settings = (Setting(20), Setting(2))
    assisted._chosen = Setting(2)
    assisted.prepare([[1], [2]], 8)
    assert assisted.describe()["setting"]["num_tokens"] == 2
    assert assisted.describe()["dtype"] == "bfloat16"
    assisted._chosen = Setting(20)
    with pytest.raises(NothingDecodedError, match="--max-tokens"):
        assisted.generate([1], 8)


def test_a_model_that_cannot_be_loaded_is_a_reason_for_all_that_need_it() -> None:
    def no_room(path: Path, *rest: Any) -> Generating:
        if path.name == "draft.gguf":
            raise MemoryError("no room\nat all")
        return Generating()

    variants, reasons, _ = loaded(("transformers", "assisted"), load=no_room)
    assert [variant.name for variant in variants] == ["transformers"]
    assert reasons == {"assisted": "MemoryError: no room at all"}

    def broken(path: Path, *rest: Any) -> Generating:
        raise OSError("unreadable")

    variants, reasons, _ = loaded(("transformers", "prompt-lookup"), load=broken)
    assert variants == []
    assert set(reasons) == {"transformers", "prompt-lookup"}


def test_assisted_without_a_draft_is_not_run() -> None:
    variants, reasons = load_peers(
        ("assisted",), FILES[0], None, torch.float32, "cpu", load=lambda *given: pytest.fail("nothing to load")
    )
    assert variants == []
    assert "--draft" in reasons["assisted"]


def test_fewer_tokens_than_asked_for_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    (plain,), _, (model,) = loaded(("transformers",))
    monkeypatch.setattr(model, "generate", lambda ids, **given: ids)
    with pytest.raises(RuntimeError, match="0 tokens came back where 5"):
        plain.generate([1, 2], 5)


def test_the_clock_counts_blocks() -> None:
    clock = Clock()
    clock.put(torch.zeros(1, 4))
    clock.put(torch.zeros(3))
    clock.end()
    assert clock.counts == [4, 3]
    assert clock.times == sorted(clock.times)
