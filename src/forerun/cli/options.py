"""The flags that `generate` and `chat` share, in groups.

A flag left unset is not passed on: defaults live in `SamplingParams` and `forerun.load`, and the help repeats them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, get_args, get_type_hints

import typer

MODELS, DRAFTING, SAMPLING = "Models", "Drafting", "Sampling"


def _flag(name: str, help: str, panel: str, metavar: str | None = None) -> Any:
    return typer.Option(name, help=help, rich_help_panel=panel, metavar=metavar, show_default=False)


@dataclass(frozen=True)
class _Group:
    def given(self) -> dict[str, Any]:
        """The settings that were typed, by their Python names."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None and value != []}


@dataclass(frozen=True)
class Loading(_Group):
    """Settings of `forerun.load`, under the same names."""

    target: Annotated[
        str,
        _flag(
            "--target", "A name of `forerun models`, a GGUF file, a directory, or org/name of the Hub", MODELS, "MODEL"
        ),
    ]
    draft: Annotated[
        str | None, _flag("--draft", "The draft model, of the same vocabulary (default: none)", DRAFTING, "MODEL")
    ] = None
    drafter: Annotated[
        str | None,
        _flag("--drafter", "none, model or lookup (default: model with --draft, else none)", DRAFTING, "KIND"),
    ] = None
    k: Annotated[
        str | None,
        _flag("--k", "Draft tokens per round, the speculation length: 0 or more (default: 4)", DRAFTING, "N"),
    ] = None
    verifier: Annotated[
        str | None, _flag("--verifier", "Rule for sampled drafts: block or chain (default: block)", DRAFTING, "RULE")
    ] = None
    draft_context: Annotated[
        int | None,
        _flag("--draft-ctx", "Tokens of context the draft model sees: 1 or more (default: its own)", DRAFTING, "N"),
    ] = None
    draft_vocabulary: Annotated[
        int | None,
        _flag(
            "--draft-vocabulary", "Let the draft model propose only the first N ids: cheaper; 1 or more", DRAFTING, "N"
        ),
    ] = None
    draft_min_confidence: Annotated[
        float | None,
        _flag(
            "--draft-min-confidence",
            "End a draft early once the product of its tokens' top probabilities is below P: 0 to 1 (default: 0.0)",
            DRAFTING,
            "P",
        ),
    ] = None
    device: Annotated[str | None, _flag("--device", "auto, cpu, cuda or cuda:N (default: auto)", MODELS, "DEVICE")] = (
        None
    )
    dtype: Annotated[
        str | None, _flag("--dtype", "auto, float32, bfloat16 or float16 (default: auto)", MODELS, "DTYPE")
    ] = None
    strict: Annotated[
        bool | None,
        _flag("--strict", "Pad every pass to one shape: text equal bit for bit to plain decoding; slower", MODELS),
    ] = None
    context_length: Annotated[
        int | None, _flag("--context-length", "Lower the target's context to N tokens: 2 or more", MODELS, "N")
    ] = None
    mirror: Annotated[
        bool | None,
        _flag("--mirror/--no-mirror", "Allow missing models to come from the package-index mirror", MODELS),
    ] = None

    def given(self) -> dict[str, Any]:
        """As typed, with k as a number; `auto` is refused by name."""
        settings = super().given()
        if "k" in settings:
            settings["k"] = _speculation_length(settings["k"])
        return settings


@dataclass(frozen=True)
class Sampling(_Group):
    """Fields of `SamplingParams`, under the same names; the class checks the ranges."""

    max_tokens: Annotated[
        int | None,
        _flag("--max-tokens", "At most N new tokens: 0 or more (default: until the context is full)", SAMPLING, "N"),
    ] = None
    temperature: Annotated[
        float | None, _flag("--temperature", "0 or more; 0 is greedy (default: 1.0)", SAMPLING, "T")
    ] = None
    top_k: Annotated[
        int | None,
        _flag("--top-k", "Keep the N likeliest tokens: 1 or more; 0 or -1 is off (default: 0)", SAMPLING, "N"),
    ] = None
    top_p: Annotated[
        float | None,
        _flag(
            "--top-p",
            "Keep the likeliest tokens that hold P: above 0, at most 1; 1 is off (default: 1.0)",
            SAMPLING,
            "P",
        ),
    ] = None
    min_p: Annotated[
        float | None,
        _flag(
            "--min-p", "Keep tokens of at least P times the likeliest: 0 to 1; 0 is off (default: 0.0)", SAMPLING, "P"
        ),
    ] = None
    seed: Annotated[
        int | None,
        _flag("--seed", "0 to 2^64 - 1: the text then depends on prompt, seed and parameters alone", SAMPLING, "N"),
    ] = None
    stop_token_ids: Annotated[
        list[int] | None,
        _flag("--stop-token-id", "A token id, 0 or more, that ends the text; may be repeated", SAMPLING, "ID"),
    ] = None
    include_stop_token: Annotated[
        bool | None, _flag("--include-stop-token", "Keep the token that ended the text", SAMPLING)
    ] = None
    ignore_eos: Annotated[
        bool | None, _flag("--ignore-eos", "Go on after the model's own end-of-text tokens", SAMPLING)
    ] = None


def flat(function: Callable[..., None]) -> Callable[..., None]:
    """`function` with its option-group parameters replaced by their fields, which is what typer can read."""
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    hints = get_type_hints(function, include_extras=True)
    for parameter in inspect.signature(function).parameters.values():
        hint = hints[parameter.name]
        if not is_dataclass(hint):
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hint))
            continue
        groups[parameter.name] = hint
        group_hints = get_type_hints(hint, include_extras=True)
        for field in fields(hint):
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            parameters.append(
                inspect.Parameter(
                    field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=group_hints[field.name]
                )
            )

    def command(**values: Any) -> None:
        built = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        function(**values, **built)

    command.__name__, command.__doc__, command.__module__ = function.__name__, function.__doc__, function.__module__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


@cache
def flag_names() -> dict[str, str]:
    """Python name of every shared setting -> its flag."""
    names = {"prompt_ids": "--prompt-ids", "compare": "--compare"}
    for group in (Loading, Sampling):
        for name, hint in get_type_hints(group, include_extras=True).items():
            option = get_args(hint)[1]  # typer keeps a lone declaration as its "default"
            names[name] = str((option.param_decls or (option.default,))[0]).split("/")[0]
    return names


def _speculation_length(text: str) -> int:
    from forerun.errors import ParameterError

    if text == "auto":
        raise ParameterError(
            "k", "'auto' is not built yet, so it is refused rather than ignored", "give a number: --k 4"
        )
    try:
        return int(text)
    except ValueError:
        raise ParameterError("k", f"{text!r} is not allowed", "a whole number of at least 0") from None
