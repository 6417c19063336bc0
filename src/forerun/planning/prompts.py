"""What is generated from: the user's prompts, or those of our workloads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forerun.bench.workloads import WORKLOADS, RandomIds, load_workload
from forerun.checks import some_of
from forerun.errors import MissingDependencyError, ParameterError, PromptError
from forerun.llm import Prompt

WORKLOADS_BY_DEFAULT = ("humaneval", "chat", "json")
KEYS = ("prompt", "messages")


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file: one text a line, or a JSON object a line with "prompt" (a text) or "messages" (a chat).
    Lines of white space are skipped. ParameterError with the line for what is neither."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ParameterError(
            "prompts",
            f"{path} is not valid UTF-8, at byte {error.start}",
            "convert it, for example with iconv -t utf-8",
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ParameterError("prompts", f"{path} cannot be read: {reason}", "give a file of prompts") from None
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise ParameterError("prompts", f"{path} holds no prompt", "write one prompt a line")
    are_objects = all(line.lstrip().startswith("{") for _, line in lines)
    if not are_objects and any(_is_prompt_object(line) for _, line in lines):
        number, line = next(one for one in lines if not one[1].lstrip().startswith("{"))
        raise ParameterError(
            "prompts", f"line {number} of {path} is a text, where other lines are JSON objects",
            f"write all of them in one way: {json.dumps({'prompt': line}, ensure_ascii=False)[:100]}",
        )  # fmt: skip
    return [_read_object(path, number, line) if are_objects else line for number, line in lines]


def _is_prompt_object(line: str) -> bool:
    """Whether a line is one of the objects that `_read_object` reads, rather than a text that begins with a brace."""
    try:
        found: Any = json.loads(line) if line.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and any(key in found for key in KEYS)


def _read_object(path: Path, number: int, line: str) -> Prompt:
    example = '{"prompt": "Hello"} or {"messages": [{"role": "user", "content": "Hello"}]}'
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ParameterError("prompts", f"line {number} of {path} is no JSON: {error}", example) from None
    given = [key for key in KEYS if key in found]
    if len(given) != 1:
        raise ParameterError("prompts", f"line {number} of {path} has {' and '.join(given) or 'neither key'}", example)
    prompt = found[given[0]]
    is_chat = given[0] == "messages"
    is_sound = isinstance(prompt, list if is_chat else str) and len(prompt) > 0
    if not is_sound or (is_chat and not all(isinstance(one, dict) for one in prompt)):
        raise ParameterError("prompts", f"line {number} of {path} has no usable {given[0]!r}", example)
    if not is_chat:
        check_utf8(prompt, f"line {number} of {path}")
    return prompt  # type: ignore[no-any-return]


def check_utf8(text: str, what: str) -> None:
    """Refuse text with halves of characters, and an empty one."""
    if not text:
        raise PromptError(f"{what} is empty", "", "give some text")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptError(f"{what} is not valid UTF-8", f"at character {error.start}", "give text in UTF-8") from None


def workload_names(text: str | None) -> tuple[str, ...]:
    """The workloads of a list with commas; ParameterError for one that is not known."""
    if text is None:
        return WORKLOADS_BY_DEFAULT
    return some_of("workload", text, WORKLOADS)


def workload_prompts(names: Sequence[str], count: int) -> tuple[list[Prompt | RandomIds], list[str]]:
    """(`count` prompts, the workloads in turn; why some workloads were left out). Raises what kept all of them away."""
    kept, notes = _installed(names)
    found = [[task.prompt for task in load_workload(name, -(-count // len(kept)))] for name in kept]
    turns = [prompts[turn] for turn in range(max(map(len, found))) for prompts in found if turn < len(prompts)]
    return turns[:count], notes


def _installed(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """(those workloads whose data are installed, why the others are left out); the reason raised if there are none."""
    kept, notes = [], []
    for name in names:
        try:
            load_workload(name, 1)
            kept.append(name)
        except MissingDependencyError as error:
            notes.append(f"{error.fact}, and {error.context}: left out")
            if len(notes) == len(names):
                raise
    return kept, notes
