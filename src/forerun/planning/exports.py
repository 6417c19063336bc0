"""The planner's choice as settings for other engines, spelled as their documentation spelled them in November 2026.

vLLM          docs/features/speculative_decoding: README.md ("--speculative-config schema"), draft_model.md, n_gram.md
              and suffix.md ("Model Runner V2") of the repository's main branch (vLLM 0.26)
SGLang        docs.sglang.io, advanced_features/speculative_decoding ("Standalone", "Ngram", "Full Parameter
              Reference"); that rejection sampling is for EAGLE alone is checked where server arguments are
TensorRT-LLM  docs/source/features/speculative-decoding.md ("Usage with trtllm-bench and trtllm-serve"), and
              NGramDecodingConfig and use_rejection_sampling of the LLM API reference, 1.4.0rc4
llama.cpp     tools/server/README.md, generated from common/arg.cpp (`--draft-max` and its like were removed there)

What an engine cannot say is said as a note, never left out in silence. Text that is copied (lookup, suffix) is accepted
with the target's probability whatever the temperature, so it needs no setting for it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field

from forerun.errors import ParameterError

LOOKUP_SIZES = (2, 4)
"""Sizes of the n-grams that our lookup drafter looks for, smallest and largest (drafting/lookup.py)."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be exported: `drafter` is "lookup", "suffix", "none", or anything else for a draft model, `draft` then
    its name."""

    drafter: str
    k: int
    target: str = "TARGET"
    draft: str | None = None
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class Export:
    """`text` is what to type or to save (empty: nothing); `notes` say what it leaves open."""

    text: str
    notes: list[str] = field(default_factory=list)


def export(engine: str, wish: Wish) -> Export:
    """The settings of one of ENGINES for a wish."""
    check_engine(engine)
    if wish.drafter == "none" or wish.k == 0:
        return _NOTHING[engine]
    kind = wish.drafter if wish.drafter in ("lookup", "suffix") else "model"
    made = ENGINES[engine][kind](wish)
    named = [f"{wish.draft!r} is forerun's name of the draft: give the engine's (a Hub repository or a path)"]
    return Export(made.text, made.notes + named * (kind == "model"))


def check_engine(engine: str) -> None:
    """Refuse an engine that nothing is known of."""
    if engine not in ENGINES:
        raise ParameterError("export", f"{engine!r} is not known", f"one of {', '.join(ENGINES)}")


def _vllm(config: dict[str, object], *notes: str) -> Export:
    return Export(f"--speculative-config {shlex.quote(json.dumps(config))}", list(notes))


def _vllm_model(wish: Wish) -> Export:
    config: dict[str, object] = {"method": "draft_model", "model": wish.draft, "num_speculative_tokens": wish.k}
    if wish.temperature > 0:
        # By default the draft's argmax is proposed, whose acceptance is lower than what was planned with.
        config["draft_sample_method"] = "probabilistic"
    return _vllm(config)


def _vllm_lookup(wish: Wish) -> Export:
    low, high = LOOKUP_SIZES
    return _vllm(
        {"method": "ngram", "num_speculative_tokens": wish.k, "prompt_lookup_min": low, "prompt_lookup_max": high}
    )


def _vllm_suffix(wish: Wish) -> Export:
    return _vllm(
        {"method": "suffix", "num_speculative_tokens": wish.k},
        "Model Runner V2, the default, verifies num_speculative_tokens in every round, matched or not, where forerun "
        'drafts fewer or none: with many requests at once add "enable_adaptive_verification": true',
        "the V1 model runner decides for each request how much it drafts, and needs pip install arctic-inference",
    )


def _sglang(wish: Wish, algorithm: str, *rest: object, notes: tuple[str, ...] = ()) -> Export:
    # The number of draft tokens counts the last committed one too: k + 1 rows are verified.
    flags = ["--speculative-algorithm", algorithm, *rest, "--speculative-num-draft-tokens", wish.k + 1]
    return Export(shlex.join(str(flag) for flag in flags), list(notes))


def _sglang_model(wish: Wish) -> Export:
    note = (
        "STANDALONE proposes the draft's likeliest tokens at any temperature (--speculative-use-rejection-sampling is "
        f"for EAGLE), so above 0 fewer are accepted than was planned with at {wish.temperature:g}"
    )
    return _sglang(
        wish, "STANDALONE", "--speculative-draft-model-path", wish.draft, "--speculative-num-steps", wish.k,
        "--speculative-eagle-topk", 1, notes=(note,) * (wish.temperature > 0),
    )  # fmt: skip


def _sglang_lookup(wish: Wish) -> Export:
    notes = ("NGRAM needs CUDA, and keeps one cache for all requests where lookup keeps one for each text",)
    return _sglang(wish, "NGRAM", "--speculative-ngram-max-bfs-breadth", 1, notes=notes)


def _sglang_suffix(wish: Wish) -> Export:
    made = _sglang_lookup(wish)
    return Export(made.text, ["there is no suffix drafter: NGRAM is the nearest", *made.notes])


def _tensorrt(
    wish: Wish, decoding_type: str, *rest: tuple[str, object], overlap: bool = True, notes: tuple[str, ...] = ()
) -> Export:
    lines = ["speculative_config:", f"  decoding_type: {decoding_type}", f"  max_draft_len: {wish.k}"]
    lines += [f"  {key}: {json.dumps(value)}" for key, value in rest]
    lines += ["disable_overlap_scheduler: true"] * (not overlap)
    return Export("\n".join(lines), ["save it as config.yaml for trtllm-serve --config config.yaml", *notes])


def _tensorrt_model(wish: Wish) -> Export:
    model = ("speculative_model", wish.draft)
    if wish.temperature == 0:
        return _tensorrt(wish, "DraftTarget", model, overlap=False)
    note = (
        "use_rejection_sampling is a prototype of one-model drafting and needs FlashInfer; where it does not apply a "
        "draft token counts only if it is the very one that was drawn, and fewer are accepted than was planned with"
    )
    return _tensorrt(wish, "DraftTarget", model, ("use_rejection_sampling", True), overlap=False, notes=(note,))


def _tensorrt_lookup(wish: Wish) -> Export:
    sizes = ("max_matching_ngram_size", LOOKUP_SIZES[1])
    return _tensorrt(
        wish, "NGram", sizes, ("is_keep_all", True), ("is_use_oldest", False), ("is_public_pool", False), overlap=False
    )


def _tensorrt_suffix(wish: Wish) -> Export:
    return _tensorrt(wish, "SA")


def _llama(*flags: object, notes: tuple[str, ...] = ()) -> Export:
    return Export(shlex.join(str(flag) for flag in flags), list(notes))


def _llama_model(wish: Wish) -> Export:
    sampling = ("--spec-draft-sampling", "probabilistic") if wish.temperature > 0 else ()
    return _llama(
        "--spec-type", "draft-simple", "--spec-draft-model", wish.draft, "--spec-draft-n-max", wish.k, *sampling
    )


def _llama_lookup(wish: Wish) -> Export:
    note = f"it looks for n-grams of one size only, where lookup takes {LOOKUP_SIZES[0]} to {LOOKUP_SIZES[1]}"
    return _llama(
        "--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", LOOKUP_SIZES[1], "--spec-ngram-simple-size-m",
        wish.k, notes=(note,),
    )  # fmt: skip


def _llama_suffix(wish: Wish) -> Export:
    made = _llama_lookup(wish)
    return Export(made.text, ["there is no suffix drafter: ngram-simple is the nearest", *made.notes])


_Maker = Callable[[Wish], Export]
ENGINES: dict[str, dict[str, _Maker]] = {
    "vllm": {"model": _vllm_model, "lookup": _vllm_lookup, "suffix": _vllm_suffix},
    "sglang": {"model": _sglang_model, "lookup": _sglang_lookup, "suffix": _sglang_suffix},
    "tensorrt-llm": {"model": _tensorrt_model, "lookup": _tensorrt_lookup, "suffix": _tensorrt_suffix},
    "llama.cpp": {"model": _llama_model, "lookup": _llama_lookup, "suffix": _llama_suffix},
}
"""By the name that `--export` takes: what makes the settings, by the kind of drafter."""

_NOTHING = {
    "vllm": Export("", ["not drafting is leaving --speculative-config out: num_speculative_tokens is 1 or more"]),
    "sglang": Export("", ["not drafting is leaving --speculative-algorithm out: no length of 0 can be given"]),
    "tensorrt-llm": Export("", ["not drafting is leaving speculative_config out"]),
    "llama.cpp": Export("--spec-type none"),
}
"""How each engine is told not to draft."""
