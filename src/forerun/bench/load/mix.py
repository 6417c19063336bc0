"""What the clients of a load test ask: short beginnings, code, JSON, chat, long articles and common beginnings.

The same number always makes the same requests. Prompts differ from each other, so that only what `shared` and `long`
have in common is there to be reused; half of the texts are greedy, half are sampled with a seed of their own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from forerun.bench.workloads import parse_edit, sections_of
from forerun.errors import PromptError
from forerun.llm import Message
from forerun.models.tokenizer import Tokenizer
from forerun.sampling import SamplingParams

CYCLE = (
    *("short", "code", "chat", "json", "shared", "code", "short", "json"),
    *("chat", "code", "long", "shared", "short", "json", "code", "chat"),
)
"""Kinds in the order in which they come up."""
LENGTHS = (16, 24, 32, 48, 64, 96, 128)
"""max_tokens, drawn evenly."""
ARTICLES = 3
"""Articles of a long prompt: together about 1,000 tokens."""
_OPENERS = (
    "The {} is", "Once upon a time, a {}", "Three facts about the {}:", "def describe_{}(", "My favourite {} was",
    "A short poem about a {}:\n", "In 1987, the {}", "Dear {},\n", "# The {}\n\n", "Q: What is a {}?\nA:",
)  # fmt: skip
_THINGS = (
    "river", "lighthouse", "violin", "harbour", "compiler", "glacier", "market", "teapot", "railway", "library",
    "forest", "comet", "bridge", "garden", "engine", "island", "clock", "planet", "castle", "orchard",
)  # fmt: skip
_ASSISTANT = """\
You are the assistant of a small public library. You answer questions of visitors politely, in plain English and in no
more than a few sentences. The library is open from Tuesday to Saturday, from 10 to 18 o'clock, and on Thursdays until
20 o'clock. Membership is free for everybody under 18 and costs 12 euros a year for adults. Up to ten items may be
borrowed at once: books for four weeks, films and games for one week. Loans may be extended twice unless somebody has
reserved the item. Late items cost 20 cents a day. There are eight computers, a quiet room, and a reading group that
meets on the first Wednesday of every month. If a question has nothing to do with the library, answer it all the same,
and if you do not know something, say so. Never invent opening hours, prices or titles."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `seed` None: greedy; else temperature 1 with that seed."""

    kind: str
    prompt: str
    max_tokens: int
    seed: int | None

    @property
    def params(self) -> SamplingParams:
        """As `LLM.generate` takes it."""
        temperature = 0.0 if self.seed is None else 1.0
        return SamplingParams(temperature=temperature, seed=self.seed, max_tokens=self.max_tokens)

    @property
    def body(self) -> dict[str, Any]:
        """As /v1/completions takes it, streamed, with a count of the tokens in every chunk where a server has it."""
        body: dict[str, Any] = {
            "prompt": self.prompt, "max_tokens": self.max_tokens, "temperature": 0.0 if self.seed is None else 1.0,
            "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }  # fmt: skip
        return body if self.seed is None else {**body, "seed": self.seed}

    @property
    def key(self) -> str:
        """The same for the same request."""
        return hashlib.sha256(json.dumps([self.prompt, self.max_tokens, self.seed]).encode()).hexdigest()


def make_mix(num_asks: int, render: Callable[[list[Message]], str]) -> list[Ask]:
    """`num_asks` requests of all kinds; `render` writes chat messages as the model wants them."""
    random = np.random.default_rng(7)
    makers = {
        "short": _short, "code": _code, "json": _json(render), "chat": _chat(render), "long": _long(render),
        "shared": _shared(render),
    }  # fmt: skip
    asks: list[Ask] = []
    seen: set[str] = set()
    for index in range(num_asks):
        kind = CYCLE[index % len(CYCLE)]
        ask = Ask(kind, makers[kind](random), int(random.choice(LENGTHS)), None)
        if index // len(CYCLE) % 2 != index % 2:  # each kind is greedy as often as not
            ask = replace(ask, seed=int(random.integers(1, 2**31)))
        for _ in range(20):  # drawn again rather than asked twice, while there is another one
            if ask.prompt not in seen:
                break
            ask = replace(ask, prompt=makers[kind](random))
        seen.add(ask.prompt)
        asks.append(ask)
    return asks


def renderer(tokenizer: Tokenizer | None) -> Callable[[list[Message]], str]:
    """The model's own chat template, or a transcript where it has none."""

    def render(messages: list[Message]) -> str:
        try:
            if tokenizer is not None:
                return tokenizer.render_chat(messages)
        except PromptError:
            pass
        return "".join(f"{one['role']}: {one['content']}\n\n" for one in messages) + "assistant:"

    return render


Make = Callable[[np.random.Generator], str]


def _pick(random: np.random.Generator, items: list[str]) -> str:
    return items[int(random.integers(len(items)))]


def _short(random: np.random.Generator) -> str:
    return _pick(random, list(_OPENERS)).format(_pick(random, list(_THINGS)))


def _code(random: np.random.Generator) -> str:
    """A file that breaks off somewhere."""
    lines = _pick(random, [parse_edit(body)[2] for _, body in sections_of("edit.txt")]).split("\n")
    return "\n".join(lines[: int(random.integers(3, max(4, len(lines) - 3)))]) + "\n"


def _json(render: Callable[[list[Message]], str]) -> Make:
    tasks = [body for _, body in sections_of("json.txt")]
    return lambda random: render([
        {"role": "user", "content": f"{_pick(random, tasks)}\nNumbers begin at {int(random.integers(10, 10_000))}."}
    ])  # fmt: skip


def _chat(render: Callable[[list[Message]], str]) -> Make:
    tasks = [body for name in ("chat.txt", "creative.txt") for _, body in sections_of(name)]
    hints = ["", " Be brief.", " Explain it to a child.", " Answer in three sentences.", " Give an example."]
    return lambda random: render([
        {"role": "user", "content": f"Think of a {_pick(random, list(_THINGS))}. {_pick(random, tasks)}"
         f"{_pick(random, hints)}"}
    ])  # fmt: skip


def _long(render: Callable[[list[Message]], str]) -> Make:
    """Articles in some order, and what to do with them."""
    articles = [body for _, body in sections_of("summarise.txt")]
    wishes = ["Summarise the articles.", "What do these articles have in common?", "Give each article a title."]

    def make(random: np.random.Generator) -> str:
        chosen = [articles[at] for at in random.permutation(len(articles))[:ARTICLES]]
        return render([{"role": "user", "content": "\n\n".join([*chosen, _pick(random, wishes)])}])

    return make


def _shared(render: Callable[[list[Message]], str]) -> Make:
    """A system message that many conversations begin with."""
    tasks = [body for _, body in sections_of("chat.txt")]
    return lambda random: render([
        {"role": "system", "content": _ASSISTANT},
        {"role": "user", "content": f"I am looking for a book about a {_pick(random, list(_THINGS))}. "
         f"{_pick(random, tasks)}"},
    ])  # fmt: skip
