"""A model's chat template: messages in, the prompt text out.

Templates are rendered as transformers renders them (trim_blocks, lstrip_blocks, loop controls, its `tojson`,
`raise_exception`, `strftime_now`, `dict` and `namespace`, the generation tag, messages as plain data without the keys
that are None, reasoning under both of its names), in the bounded sandbox of template_sandbox.py.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.utils import Namespace

from forerun.errors import FileFormatError, PromptError
from forerun.models.template_sandbox import BoundedEnvironment, budget

MAX_TEMPLATE_CHARS = 1 << 20
RAW = "use raw completion: give the prompt as plain text"
REASONING = ("reasoning_content", "thinking", "reasoning")


def no_template() -> PromptError:
    """The error for a model without a template."""
    return PromptError("this model has no chat template", "so chat messages cannot be turned into a prompt", RAW)


class ChatTemplate:
    """A compiled template. `special_tokens` are variables it sees: bos_token, eos_token and so on.

    Raises FileFormatError for a template that is too long or is no valid jinja2.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source, self._special_tokens = source, dict(special_tokens)
        if len(source) > MAX_TEMPLATE_CHARS:
            raise FileFormatError(
                f"the model's chat template has {len(source):,} characters",
                f"at most {MAX_TEMPLATE_CHARS:,} are served",
                RAW,
            )
        try:
            self._template = _environment().bounded_template(source)
        except jinja2.TemplateSyntaxError as error:
            where = f"line {error.lineno}: {error.message}"
            raise FileFormatError("the model's chat template is no valid jinja2", where, RAW) from error
        except Exception as error:  # too deep, too large, or too much for Python's own compiler
            reason = f"{type(error).__name__}: {error}"[:200]
            raise FileFormatError("the model's chat template cannot be compiled", reason, RAW) from error

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **extra: Any) -> str:
        """The prompt. Raises PromptError with the template's own words if it refuses the messages, and if it fails,
        does not end, or writes without end."""
        variables: dict[str, Any] = {**self._special_tokens, "tools": None, "documents": None, **plain(extra)}
        variables |= {"messages": plain_messages(messages), "add_generation_prompt": add_generation_prompt}
        with budget() as spent:
            try:
                parts = []
                for part in self._template.generate(variables):
                    spent.step()
                    parts.append(part)
                return "".join(parts)
            except _RefusalError as refusal:
                raise PromptError(f"the chat template refuses these messages: {refusal}", "", RAW) from refusal
            except Exception as error:  # the template is foreign code: any error in it is an answer to the messages
                reason = str(error) if isinstance(error, jinja2.TemplateError) else f"{type(error).__name__}: {error}"
                raise PromptError(
                    f"the chat template fails on these messages: {reason[:300]}",
                    f"roles: {', '.join(str(message.get('role')) for message in variables['messages'][:8])}",
                    RAW,
                ) from error


def plain_messages(messages: Any) -> list[dict[str, Any]]:
    """Messages as plain dictionaries, checked, without keys that are None, and with reasoning under each name that
    templates read. The caller's own objects are left alone."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence) or not messages:
        raise PromptError(
            "chat messages are a list with at least one message", "", '[{"role": "user", "content": "Hello"}]'
        )
    made = []
    for index, message in enumerate(plain(messages)):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise PromptError(f"message {index} is no mapping with a role", "", '{"role": "user", "content": "Hello"}')
        kept = {key: value for key, value in message.items() if value is not None}
        reasoning = next((kept[name] for name in REASONING if name in kept), None)
        if reasoning is not None:
            kept = {"thinking": reasoning, **kept, "reasoning_content": reasoning}
        made.append(kept)
    return made


def plain(value: Any) -> Any:
    """`value` rebuilt from strings, numbers, lists and dictionaries; anything else becomes its type's name. Foreign
    objects have methods that the sandbox does not know to be dangerous."""
    if value is None or isinstance(value, bool):
        return value
    kind: Any
    for kind in (str, int, float):
        if isinstance(value, kind):
            return value if type(value) is kind else kind.__str__(value) if kind is str else kind.__pos__(value)
    if isinstance(value, Mapping):
        return {plain(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value] if isinstance(value, list) else tuple(map(plain, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if callable(dump := getattr(value, "model_dump", None)):
        return plain(dump())
    return f"<{type(value).__name__}>"


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Plain data with every string in it changed; keys are left alone."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: map_strings(one, change) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map_strings(one, change) for one in value)
    return value


# -- what templates find in their environment --------------------------------------------------------------------------


class _RefusalError(jinja2.TemplateError):
    """The template called raise_exception."""


class _GenerationTag(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; here it only prints its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's declaration

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_print"), [], [], body).set_lineno(line)

    def _print(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """`dict(...)` without the class behind it."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """`namespace(...)` that keeps no names with a leading underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *given = args  # so that namespace(self=...) works
        values = dict(*given, **kwargs)
        for name in values:
            _refuse_private(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot hold {name!r}")


def _raise_exception(message: str) -> None:
    raise _RefusalError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> BoundedEnvironment:
    return BoundedEnvironment(
        filters={"tojson": _tojson},
        names={
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "dict": _Dict(),
            "namespace": _Namespace,
        },
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, loopcontrols],
    )
