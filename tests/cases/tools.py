"""What the tests of cases.md share: tokenizers made of pieces, targets that follow a script, and rule R0.

R0: (token ids, text, finish reason, stop reason, usage, logprobs) with speculation are those without, streamed or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from forerun.control import FixedLength
from forerun.drafting import Drafter, LookupDrafter, ModelDrafter, StackDrafter, SuffixDrafter
from forerun.drafting.scripted import HalfDrafter, LiarDrafter, OracleDrafter
from forerun.engine import Engine
from forerun.llm import LLM
from forerun.models.detokenizer import Detokenizer
from forerun.result import Piece, Result
from forerun.runtime.base import Rows
from forerun.runtime.toy import ToyModel
from forerun.sampling import SamplingParams
from forerun.types import Draft, Plan, Prospect, Span

Make = Callable[[], ToyModel]
Outcome = tuple[Any, ...]
Texts = dict[int, dict[tuple[int, ...], list[int]]]
"""What each choice writes after each prompt, going on behind its end: a draft does not know where a text ends."""

# -- tokenizers and targets --------------------------------------------------------------------------------------------


def pieces_tokenizer(pieces: Sequence[str | bytes], strips_space: bool = False) -> Any:
    """Token i stands for `pieces[i]`; the next id ends a text. A prompt's text is split into the longest pieces.

    With `strips_space` the first space of a chat answer is dropped, as SentencePiece vocabularies want it.
    """
    table = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    by_length = sorted(range(len(table)), key=lambda i: -len(table[i]))

    def encode(text: str, **settings: bool) -> list[int]:
        rest, ids = text.encode(), []
        while rest:
            ids.append(next(i for i in by_length if table[i] and rest.startswith(table[i])))
            rest = rest[len(table[ids[-1]]) :]
        return ids

    eos = len(table)
    return SimpleNamespace(
        vocabulary_size=eos + 1,
        eos_ids=(eos,),
        encode=encode,
        encode_chat=lambda messages: encode("".join(message["content"] for message in messages)),
        parts=SimpleNamespace(control_ids=frozenset({eos}), added_ids=frozenset({eos})),
        token_bytes=lambda token: b"<end>" if token == eos else table[token],
        detokenizer=lambda continues=False, shown=frozenset(): Detokenizer(
            table.__getitem__, {eos} - shown, strips_space and not continues
        ),
    )


def byte_tokenizer() -> Any:
    """Every byte is a token; id 256 ends a text."""
    return pieces_tokenizer([bytes([byte]) for byte in range(256)])


def script_rows(ids: Sequence[int], vocabulary_size: int, prompt_length: int) -> np.ndarray:
    """Logits by position, [position, vocab]: `ids` are wanted after a prompt of this length, then the last for ever."""
    rows = np.zeros((prompt_length - 1 + len(ids), vocabulary_size))
    rows[np.arange(len(ids)) + prompt_length - 1, list(ids)] = 30.0
    return rows


def writer(ids: Sequence[int], vocabulary_size: int, prompt_length: int) -> ToyModel:
    """A target that writes `ids` after a prompt of this length."""
    return ToyModel.by_position(script_rows(ids, vocabulary_size, prompt_length))


class Counting(ToyModel):
    """A long script at constant cost: a row is made for its position alone and nothing looks at the tokens."""

    def __init__(self, ids: Sequence[int], vocabulary_size: int, prompt_length: int) -> None:
        super().__init__(lambda tokens: np.zeros(vocabulary_size), vocabulary_size)
        self._ids, self._first = ids, prompt_length - 1

    def forward(self, spans: Sequence[Span]) -> Rows:
        matrix = np.zeros((sum(span.num_rows for span in spans), self.capabilities.vocabulary_size))
        row = 0
        for span in spans:
            self._cached[span.sequence_id].extend(span.tokens)
            end = len(self._cached[span.sequence_id])
            for position in range(end - span.num_rows, end):
                if self._first <= position < self._first + len(self._ids):
                    matrix[row, self._ids[position - self._first]] = 30.0
                row += 1
        return Rows(matrix, [span.num_rows for span in spans])


class TorchRows(ToyModel):
    """The same rows as float32 torch tensors, as they come from a GPU."""

    def forward(self, spans: Sequence[Span]) -> Rows:
        import torch

        matrix = super().forward(spans).matrix
        return Rows(torch.tensor(matrix, dtype=torch.float32), [span.num_rows for span in spans])


# -- drafters ----------------------------------------------------------------------------------------------------------


class PerChoice:
    """A scripted drafter for each choice index, so that every choice's own text is known."""

    needs: tuple[str, ...] = ()

    def __init__(self, kind: Callable[[Any], Any], texts: Texts) -> None:
        self._drafters = {choice: kind(known) for choice, known in texts.items()}

    def prospects(self, sequences: Sequence[Any], longest: Sequence[int]) -> list[list[Prospect]]:
        return [[] for _ in sequences]

    def propose(self, sequences: Sequence[Any], plans: Sequence[Plan]) -> list[Draft]:
        return [
            self._drafters[sequence.choice].propose([sequence], [plan])[0] if sequence.choice in self._drafters
            else Draft()
            for sequence, plan in zip(sequences, plans, strict=True)
        ]  # fmt: skip

    def observe(self, sequences: Any, rows: Any, verdicts: Any) -> None:
        pass

    def release(self, sequence_id: int) -> None:
        for drafter in self._drafters.values():
            drafter.release(sequence_id)


def stranger(make: Make) -> ToyModel:
    """A draft model that knows nothing of the target."""
    return ToyModel.random(make().capabilities.vocabulary_size, order=1, seed=9)


DRAFTERS: Mapping[str, Callable[[Texts, Make], Drafter]] = {
    "oracle": lambda texts, make: PerChoice(OracleDrafter, texts),
    "liar": lambda texts, make: PerChoice(LiarDrafter, texts),
    "half": lambda texts, make: PerChoice(HalfDrafter, texts),
    "lookup": lambda texts, make: LookupDrafter(3, 1),
    "suffix": lambda texts, make: SuffixDrafter(),
    "stack": lambda texts, make: StackDrafter([SuffixDrafter(), ModelDrafter(stranger(make))]),
    "model": lambda texts, make: ModelDrafter(stranger(make)),
    "self": lambda texts, make: ModelDrafter(make()),
}
SCRIPTED = ("oracle", "liar", "half")
STRUCTURE = ("regex", "json_schema", "grammar", "one_of", "constraint")


def written(make: Make, tokenizer: Any, prompt: Any, engine: Mapping[str, Any], params: Mapping[str, Any]) -> Texts:
    """What plain decoding writes, and what it would write behind the end: so a whole block can be accepted over it."""
    llm = LLM(make(), tokenizer, **engine)
    tokens = llm.encode(prompt)
    unlimited = {"max_tokens": 12, "min_tokens": 0, "stop": (), "stop_token_ids": (), "ignore_eos": True, "n": 1}
    unlimited |= dict.fromkeys(STRUCTURE)
    found: Texts = {}
    for one in llm.generate(prompt, **{**params, "include_stop_token": True}).choices:
        behind = Engine(make(), vocabulary_size=llm.engine.vocabulary_size)
        tail = behind.add([*tokens, *one.tokens], SamplingParams(**{**params, **unlimited}), choice=one.choice)
        while not behind.is_idle:
            behind.step()
        found[one.choice] = {tuple(tokens): tail.tokens[len(tokens) :]}
    return found


# -- rule R0 -----------------------------------------------------------------------------------------------------------


def outcome(result: Result) -> Outcome:
    """What must not depend on speculation."""
    return (
        result.tokens, result.text, result.finish_reason, result.stop_reason, result.usage.completion_tokens,
        result.logprobs, result.prompt_logprobs,
    )  # fmt: skip


def joined(pieces: Iterable[Piece], choice: int = 0) -> str:
    """The text that a client put together."""
    return "".join(piece.text for piece in pieces if piece.choice == choice)


def streamed(llm: LLM, prompt: Any, **params: Any) -> Result:
    """One streamed request: its pieces are the result, and nothing is left behind."""
    stream = llm.stream(prompt, **params)
    pieces = list(stream)
    for one in stream.result.choices:
        own = [piece for piece in pieces if piece.choice == one.choice]
        assert joined(own, one.choice) == one.text
        assert [piece.finish_reason for piece in own] == [None] * (len(own) - 1) + [one.finish_reason]
        delivered = [piece for piece in own if piece.token is not None]
        assert tuple(piece.token for piece in delivered) == one.tokens
        assert len(delivered) == one.usage.completion_tokens == len(one.origins)
        entries = tuple(piece.logprob for piece in delivered)
        assert entries == (one.logprobs if one.logprobs is not None else (None,) * len(delivered))
    assert llm.engine.is_idle
    assert (llm._outbox, llm.engine.target.num_sequences) == ({}, 0)  # type: ignore[attr-defined]
    return stream.result


def request(llm: LLM, prompt: Any, **params: Any) -> Result:
    """One request, generated and streamed: both must be the same."""
    whole = llm.generate(prompt, **params)
    assert list(map(outcome, streamed(llm, prompt, **params).choices)) == list(map(outcome, whole.choices))
    return whole


def check_r0(
    make: Make,
    prompt: Any,
    *,
    tokenizer: Any = None,
    drafters: Iterable[str] = tuple(DRAFTERS),
    ks: Iterable[int] = (1, 3, 8),
    engine: Mapping[str, Any] | None = None,
    **params: Any,
) -> Result:
    """Plain decoding's result, after a look at every drafter and k: equal, and with the drafts that were meant.

    All are streamed; plain decoding, which they are compared with, and one k of each drafter are generated whole too.
    """
    plain = request(LLM(make(), tokenizer, **(engine or {})), prompt, **params)
    expected = list(map(outcome, plain.choices))
    texts = written(make, tokenizer, prompt, engine or {}, params)
    for name in drafters:
        for place, k in enumerate(ks):
            llm = LLM(make(), tokenizer, DRAFTERS[name](texts, make), FixedLength(k), **(engine or {}))
            result = (streamed if place else request)(llm, prompt, **params)
            assert list(map(outcome, result.choices)) == expected, (name, k)
            for one in result.choices:
                did = one.speculation
                is_sure_to_draft = name == "oracle" and k > 0 and len(one.tokens) > 2
                assert did.num_proposed or not is_sure_to_draft, (name, k)
                assert name not in ("oracle", "self") or did.num_accepted == did.num_proposed, (name, k)
                # A grammar cuts what is illegal and drafts what is certain, also for those who lie.
                assert name != "liar" or did.num_accepted == 0 or not params.keys().isdisjoint(STRUCTURE), (name, k)
    return plain
