"""Prompts of a wanted length: a workload's task behind a stretch of real text of its own kind.

How much context a text has decides what a pass costs, and what a draft model would have to read before it can draft.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from forerun.bench.workloads import RandomIds, Task, parse_edit, sections_of
from forerun.errors import InputError
from forerun.llm import LLM, Prompt

CODE = ("humaneval", "edit")
"""Workloads whose context is source files; the others' is articles."""
_INTRODUCED = "First some background, which may or may not matter.\n\n{filler}\n\n---\n\n{content}"


def filler_of(workload: str, task: Task, turn: int) -> str:
    """About 4,000 tokens of real text, never the task's own, which begins with another piece for each `turn`: prompts
    that begin alike would share their caches."""
    if workload in CODE:
        files = [(name, *parse_edit(body)[1:]) for name, body in sections_of("edit.txt")]
        # What a Python function follows is Python first.
        files.sort(key=lambda file: workload == "humaneval" and file[1] != "python")
        num_first = sum(language == "python" for _, language, _ in files) if workload == "humaneval" else len(files)
        pieces = [(name, text) for name, _, text in files]
    else:
        pieces = sections_of("summarise.txt")
        num_first = len(pieces)
    start = turn % num_first
    pieces = [*pieces[start:num_first], *pieces[:start], *pieces[num_first:]]
    return "\n\n".join(text for name, text in pieces if name != task.name)


def prompt_ids(llm: LLM, workload: str, task: Task, num_tokens: int, turn: int = 0) -> list[int]:
    """The task's token ids behind as much filler as makes them `num_tokens`, or a few less. A task that is longer by
    itself stays as it is. InputError where there is not enough filler."""
    if isinstance(task.prompt, RandomIds):
        return replace(task.prompt, length=num_tokens).ids(llm.engine.vocabulary_size)
    alone = llm.encode(task.prompt)
    if len(alone) >= num_tokens:
        return alone
    filler = filler_of(workload, task, turn)
    low, high, found = 0, len(filler), alone
    while low < high:
        middle = (low + high + 1) // 2
        ids = llm.encode(_behind(task.prompt, filler[:middle]))
        if len(ids) <= num_tokens:
            low, found = middle, ids
        else:
            high = middle - 1
    if low == len(filler):
        raise InputError(
            f"a prompt of {num_tokens} tokens cannot be made for {workload}",
            f"its text and everything to go before it are {len(found)} tokens",
            "ask for a shorter context",
        )
    return found


def _behind(prompt: Prompt, filler: str) -> Prompt:
    """The prompt with text before it: as it stands before text, as background in the first message of a chat."""
    if isinstance(prompt, str):
        return f"{filler}\n\n\n{prompt}"
    first, *rest = cast("list[dict[str, Any]]", list(prompt))
    return [{**first, "content": _INTRODUCED.format(filler=filler, content=first["content"])}, *rest]
