"""Scripted drafters: test doubles that put accepted and rejected drafts at exact places. Shipped for tests and audits.

Each knows the text the target would write (`texts`: prompt -> continuation; `record` collects the greedy ones) and
proposes from it: `OracleDrafter` the truth, `LiarDrafter` never the truth, `HalfDrafter` the truth for the first j
tokens of a block and then lies, j cycling through 0..k. The fourth tool, a declared end of text, is the engine's
`eos_ids` set to an id that is known to come; the fifth, the table model, is `runtime.toy.ToyModel`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from forerun.drafting.base import SequenceView
from forerun.runtime.base import Model, Rows
from forerun.types import Draft, Plan, Prospect, Span, Verdict

Texts = Mapping[tuple[int, ...], Sequence[int]]


def record(
    target: Model, prompts: Sequence[Sequence[int]], num_tokens: int, vocabulary_size: int | None = None
) -> Texts:
    """The target's greedy continuation of each prompt, one token a pass, straight from the model (no engine)."""
    size = vocabulary_size if vocabulary_size is not None else target.capabilities.vocabulary_size
    texts: dict[tuple[int, ...], list[int]] = {}
    for key, prompt in enumerate(prompts):
        target.begin(-1 - key)
        missing, text = list(prompt), list[int]()
        while len(text) < num_tokens:
            rows = target.forward([Span(-1 - key, target.length(-1 - key), missing, 1)])
            text.append(rows.best(0, size)[0])
            missing = text[-1:]
        target.free(-1 - key)
        texts[tuple(prompt)] = text
    return texts


class _Scripted:
    """Common part: find the truth after what is committed, and pass it through `tamper(truth, call number)`."""

    needs: tuple[str, ...] = ()

    def __init__(self, texts: Texts, tamper: Callable[[list[int], int, int], list[int]]) -> None:
        self.texts = dict(texts)
        self._tamper = tamper
        self._num_calls: dict[int, int] = {}

    def prospects(self, sequences: Sequence[SequenceView], longest: Sequence[int]) -> list[list[Prospect]]:
        return [[Prospect("scripted", most, num_free=most)] if most > 0 else [] for most in longest]

    def propose(self, sequences: Sequence[SequenceView], plans: Sequence[Plan]) -> list[Draft]:
        return [self._one(sequence, plan.shape) for sequence, plan in zip(sequences, plans, strict=True)]

    def observe(self, sequences: Sequence[SequenceView], rows: Rows, verdicts: Sequence[Verdict | None]) -> None:
        pass

    def release(self, sequence_id: int) -> None:
        self._num_calls.pop(sequence_id, None)

    def _one(self, sequence: SequenceView, shape: int) -> Draft:
        prompt = tuple(sequence.tokens[: sequence.prompt_length])
        done = len(sequence.tokens) - sequence.prompt_length
        truth = list(self.texts.get(prompt, ())[done : done + shape])
        call = self._num_calls.get(sequence.sequence_id, 0)
        self._num_calls[sequence.sequence_id] = call + 1
        return Draft(tuple(self._tamper(truth, call, sequence.vocabulary_size)), source="scripted")


def _lie(token: int, vocabulary_size: int) -> int:
    return (token + 1) % vocabulary_size


class OracleDrafter(_Scripted):
    """Every draft token is what the target will choose: whole blocks are committed."""

    def __init__(self, texts: Texts) -> None:
        super().__init__(texts, lambda truth, call, size: truth)


class LiarDrafter(_Scripted):
    """Every draft token is one the target will not choose: every round is a rollback."""

    def __init__(self, texts: Texts) -> None:
        super().__init__(texts, lambda truth, call, size: [_lie(token, size) for token in truth])


class HalfDrafter(_Scripted):
    """True for the first j tokens of a block, then lies; j cycles 0..k, so every accepted length happens."""

    def __init__(self, texts: Texts) -> None:
        def tamper(truth: list[int], call: int, size: int) -> list[int]:
            num_true = call % (len(truth) + 1)
            return [token if i < num_true else _lie(token, size) for i, token in enumerate(truth)]

        super().__init__(texts, tamper)
