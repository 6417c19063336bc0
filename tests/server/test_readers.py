"""What is read out of texts is the same however the texts are cut into pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forerun.constraints.marks import CALL_MARKS, CallMarks
from forerun.constraints.parameters import parameters_of
from forerun.server.reasoning import ReasoningReader
from forerun.server.tools import CallReader, Part

PARTS = (
    "<tool_call>", "</tool_call>", '{"name": "f", "arguments": {"a": "}"}}', '{"name": "g"}', " ", "\n", "x", "<",
    "<tool", "<think>", "</think>", "[TOOL_CALLS]", "[", ",", "]", "<|python_tag|>", "{",
    "f[ARGS]", "f", "g", "[ARGS]", '{"a": 1}', "[CALL_ID]abcdef123", "<function=f>", "<function=g>", "<parameter=a>",
    "<parameter=b>\n1", "<parameter=c>\nnull", "<parameter=d>\n", "\n</parameter>", "</parameter>",
    "</function>", "\n</p",
)  # fmt: skip
PROPERTIES = {"a": {"type": "string"}, "b": {"type": "integer"}, "c": {"type": ["string", "null"]}}
PARAMETERS = {"f": parameters_of("f", {"properties": PROPERTIES}, "\n</parameter>")}
TEXTS = st.lists(st.sampled_from(PARTS), max_size=12).map("".join)
CUTS = st.lists(st.integers(1, 5), min_size=1, max_size=6)


def pieces(text: str, widths: list[int]) -> list[str]:
    found, at, i = [], 0, 0
    while at < len(text):
        found.append(text[at : at + widths[i % len(widths)]])
        at, i = at + widths[i % len(widths)], i + 1
    return found


def merged(parts: list[Part]) -> list[tuple[int | None, str | None, str]]:
    """Neighbours of a kind as one; ids of calls are random."""
    found: list[tuple[int | None, str | None, str]] = []
    for part in parts:
        if found and part.name is None and found[-1][0] == part.call:
            found[-1] = (part.call, found[-1][1], found[-1][2] + part.text)
        else:
            found.append((part.call, part.name, part.text))
    return found


@given(TEXTS, CUTS, st.sampled_from(CALL_MARKS))
def test_calls_do_not_depend_on_the_pieces(text: str, widths: list[int], marks: CallMarks) -> None:
    whole, cut = CallReader(marks, ["f"], PARAMETERS), CallReader(marks, ["f"], PARAMETERS)
    at_once = [*whole.add(text), *whole.finish()]
    bit_by_bit = [part for piece in pieces(text, widths) for part in cut.add(piece)] + cut.finish()
    assert merged(at_once) == merged(bit_by_bit)
    if not whole.num_calls:
        assert "".join("".join(part.text for part in at_once).split()) == "".join(text.split())


@given(TEXTS, CUTS, st.booleans())
def test_reasoning_does_not_depend_on_the_pieces(text: str, widths: list[int], inside: bool) -> None:
    def read(parts: list[str]) -> tuple[str, str]:
        reader = ReasoningReader(inside)
        found = [*map(reader.add, parts), reader.finish()]
        return "".join(one for one, _ in found), "".join(one for _, one in found)

    assert read([text]) == read(pieces(text, widths))
