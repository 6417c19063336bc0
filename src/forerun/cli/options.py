"""The flags that `generate` and `chat` share, in panels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from forerun.cli import values
from forerun.cli.flags import Group, flag, options_of, spelling
from forerun.errors import ParameterError

MODELS, DRAFTING, SAMPLING, PENALTIES = "Models", "Drafting", "Sampling", "Penalties and biases"
STRUCTURE, STOPS, OUTPUT = "Allowed text", "Length and stops", "Output"

PYTHON_ONLY = {
    "logits_processors": "Functions (tokens so far, logits) -> logits, or `StatefulProcessor`s",
    "constraint": "A grammar of your own: an object with `start() -> Constraint`",
    "tenant": "Whose request it is, where drafts may come from past outputs (`SharedTexts`)",
}
"""Fields of `SamplingParams` that are Python objects, so that no flag can hold them, and what they are."""


@dataclass(frozen=True)
class Loading(Group):
    """Settings of `forerun.load`, under the same names."""

    target: Annotated[
        str,
        flag(
            "--target", "A name of `forerun models`, a GGUF file, a directory, or org/name of the Hub", MODELS, "MODEL"
        ),
    ]
    draft: Annotated[
        str | None, flag("--draft", "The draft model, of the same vocabulary (default: none)", DRAFTING, "MODEL")
    ] = None
    drafter: Annotated[
        str | None,
        flag(
            "--drafter",
            "none, model, lookup, suffix or stack, which is suffix and model (default: with --draft stack, or model if "
            "--k is a number; else none)",
            DRAFTING,
            "KIND",
        ),
    ] = None
    k: Annotated[
        str | None,
        flag(
            "--k",
            "Draft tokens per round: a number, or auto, the best choice every round (default: auto)",
            DRAFTING,
            "N",
        ),
    ] = None
    trace: Annotated[
        str | None,
        flag("--trace", "Write what every pass chose, predicted and found to FILE, as JSON lines", OUTPUT, "FILE"),
    ] = None
    verifier: Annotated[
        str | None, flag("--verifier", "Rule for sampled drafts: block or chain (default: block)", DRAFTING, "RULE")
    ] = None
    draft_context: Annotated[
        int | None,
        flag(
            "--draft-ctx",
            "Latest tokens that the draft model sees: 1 or more (default: its context)",
            DRAFTING,
            "N",
        ),
    ] = None
    draft_vocabulary: Annotated[
        int | None,
        flag(
            "--draft-vocabulary",
            "Let the draft model propose the N most used tokens only: 1 or more",
            DRAFTING,
            "N",
        ),
    ] = None
    draft_min_confidence: Annotated[
        float | None,
        flag(
            "--draft-min-confidence",
            "End a draft early once the product of its tokens' top probabilities is below P: 0 to 1 (default: 0.0)",
            DRAFTING,
            "P",
        ),
    ] = None
    draft_requantise: Annotated[
        bool | None,
        flag(
            "--draft-requantise", "Round the draft model's weights to 4 bits at load: faster (native runtime)", DRAFTING
        ),
    ] = None
    draft_runtime: Annotated[
        str | None, flag("--draft-runtime", "As --runtime, for the draft model (default: auto)", DRAFTING, "RUNTIME")
    ] = None
    runtime: Annotated[
        str | None,
        flag(
            "--runtime",
            "native (on the CPU), torch, or auto: native for GGUF files and with --quantize, unless --device or "
            "--dtype ask for torch (default: auto)",
            MODELS,
            "RUNTIME",
        ),
    ] = None
    device: Annotated[
        str | None,
        flag("--device", "auto, cpu, cuda or cuda:N; other than cpu it is torch (default: auto)", MODELS, "DEVICE"),
    ] = None
    dtype: Annotated[
        str | None, flag("--dtype", "auto, or float32, bfloat16 or float16 on torch (default: auto)", MODELS, "DTYPE")
    ] = None
    strict: Annotated[
        bool | None,
        flag(
            "--strict",
            "Text equal bit for bit to plain decoding: on torch by padding every pass to one shape, which is slower",
            MODELS,
        ),
    ] = None
    quantize: Annotated[
        str | None,
        flag(
            "--quantize",
            "Round the target's float weights at load: q4, q8_0 or bf16 (native runtime; default: as stored)",
            MODELS,
            "FORM",
        ),
    ] = None
    context_length: Annotated[
        int | None, flag("--context-length", "Lower the target's context to N tokens: 2 or more", MODELS, "N")
    ] = None
    mirror: Annotated[
        bool | None,
        flag("--mirror/--no-mirror", "Allow missing models to come from the package-index mirror", MODELS),
    ] = None

    def given(self) -> dict[str, Any]:
        """As typed, with k as a number or "auto"."""
        settings = super().given()
        if "k" in settings:
            settings["k"] = _speculation_length(settings["k"])
        return settings


@dataclass(frozen=True)
class Sampling(Group):
    """Fields of `SamplingParams`, under the same names; the class checks the ranges."""

    temperature: Annotated[
        float | None, flag("--temperature", "0 or more; 0 is greedy (default: 1.0)", SAMPLING, "T")
    ] = None
    top_k: Annotated[
        int | None,
        flag("--top-k", "Keep the N likeliest tokens: 1 or more; 0 or -1 is off (default: 0)", SAMPLING, "N"),
    ] = None
    top_p: Annotated[
        float | None,
        flag(
            "--top-p",
            "Keep the likeliest tokens that hold P: above 0, at most 1; 1 is off (default: 1.0)",
            SAMPLING,
            "P",
        ),
    ] = None
    min_p: Annotated[
        float | None,
        flag(
            "--min-p", "Keep tokens of at least P times the likeliest: 0 to 1; 0 is off (default: 0.0)", SAMPLING, "P"
        ),
    ] = None
    seed: Annotated[
        int | None,
        flag("--seed", "0 to 2^64 - 1: the text then depends on prompt, seed and parameters alone", SAMPLING, "N"),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        flag(
            "--repetition-penalty",
            "Weaken each token of prompt and output by this factor: 0.01 to 100; 1 is off (default: 1.0)",
            PENALTIES,
            "F",
        ),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        flag(
            "--frequency-penalty",
            "Subtracted from a token's logit for each time it occurred: -2 to 2; 0 is off (default: 0.0)",
            PENALTIES,
            "X",
        ),
    ] = None
    presence_penalty: Annotated[
        float | None,
        flag(
            "--presence-penalty",
            "Subtracted from a token's logit if it occurred at all: -2 to 2; 0 is off (default: 0.0)",
            PENALTIES,
            "X",
        ),
    ] = None
    logit_bias: Annotated[
        list[str] | None,
        flag("--logit-bias", "Add VALUE, -100 to 100, to a token's logit; may be repeated", PENALTIES, "ID=VALUE"),
    ] = None
    bad_words: Annotated[
        list[str] | None,
        flag("--bad-word", r"Never complete TEXT; escapes as in --stop; may be repeated", STRUCTURE, "TEXT"),
    ] = None
    allowed_token_ids: Annotated[
        str | None,
        flag("--allowed-token-ids", 'Choose nothing but these: "1, 2, 3" (end-of-text ids included)', STRUCTURE, "IDS"),
    ] = None
    regex: Annotated[
        str | None, flag("--regex", "The whole text matches PATTERN (Rust's regex syntax)", STRUCTURE, "PATTERN")
    ] = None
    json_schema: Annotated[
        str | None, flag("--json-schema", "The whole text is JSON of this schema", STRUCTURE, "JSON|@FILE")
    ] = None
    grammar: Annotated[
        str | None,
        flag(
            "--grammar", "A grammar derives the whole text: EBNF as GBNF or in Lark's notation", STRUCTURE, "TEXT|@FILE"
        ),
    ] = None
    one_of: Annotated[
        list[str] | None,
        flag("--one-of", "The whole text is TEXT; escapes as in --stop; repeated, one of them", STRUCTURE, "TEXT"),
    ] = None
    max_tokens: Annotated[
        int | None,
        flag("--max-tokens", "At most N new tokens: 0 or more (default: until the context is full)", STOPS, "N"),
    ] = None
    min_tokens: Annotated[
        int | None,
        flag(
            "--min-tokens",
            "No end of text, stop token or stop string before N tokens: 0 or more (default: 0)",
            STOPS,
            "N",
        ),
    ] = None
    stop: Annotated[
        list[str] | None,
        flag("--stop", r"Cut the text before TEXT, in which \n \t \r \\ are escapes; may be repeated", STOPS, "TEXT"),
    ] = None
    include_stop_string: Annotated[
        bool | None, flag("--include-stop-string", "Cut behind the stop string instead", STOPS)
    ] = None
    stop_token_ids: Annotated[
        list[int] | None,
        flag("--stop-token-id", "A token id, 0 or more, that ends the text; may be repeated", STOPS, "ID"),
    ] = None
    include_stop_token: Annotated[
        bool | None, flag("--include-stop-token", "Keep the token that ended the text", STOPS)
    ] = None
    ignore_eos: Annotated[
        bool | None, flag("--ignore-eos", "Go on after the model's own end-of-text tokens", STOPS)
    ] = None
    n: Annotated[
        int | None, flag("--n", "Make N texts, each with randomness of its own: 1 or more (default: 1)", OUTPUT, "N")
    ] = None
    best_of: Annotated[
        int | None,
        flag("--best-of", "Make N texts and keep the --n likeliest by mean log probability: --n or more", OUTPUT, "N"),
    ] = None
    logprobs: Annotated[
        int | None,
        flag("--logprobs", "Log probabilities of each token and of the N likeliest: 0 or more", OUTPUT, "N"),
    ] = None
    logprobs_kind: Annotated[
        str | None,
        flag("--logprobs-kind", "raw (the model's own) or processed (as drawn from) (default: raw)", OUTPUT, "KIND"),
    ] = None
    prompt_logprobs: Annotated[
        int | None,
        flag("--prompt-logprobs", "The same for the prompt's tokens, always raw: 0 or more", OUTPUT, "N"),
    ] = None

    def given(self) -> dict[str, Any]:
        """As typed, with what was written as text read."""
        params = super().given()
        return {name: _READERS[name](value) if name in _READERS else value for name, value in params.items()}


_READERS: dict[str, Callable[[Any], Any]] = {
    "logit_bias": values.biases,
    "bad_words": lambda given: values.texts("bad_words", given),
    "stop": lambda given: values.texts("stop", given),
    "allowed_token_ids": lambda given: values.token_ids("allowed_token_ids", given, '--allowed-token-ids "1, 2, 3"'),
    "regex": lambda given: values.require_utf8("regex", given),
    "json_schema": values.schema,
    "grammar": values.grammar,
    "one_of": lambda given: values.texts("one_of", given),
}


@cache
def flag_names() -> dict[str, str]:
    """Python name of every shared setting -> its flag."""
    names = {"prompt_ids": "--prompt-ids", "compare": "--compare"}
    for group in (Loading, Sampling):
        names |= {name: spelling(option) for name, option in options_of(group).items()}
    return names


def _speculation_length(text: str) -> int | str:
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise ParameterError("k", f"{text!r} is not allowed", "auto, or a whole number of at least 0") from None
