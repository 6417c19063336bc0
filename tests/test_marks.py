"""The mark of tests that take long: a word in it that does nothing is refused."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import _check_marks, _takes_long


class Case:
    """A case of a parametrised test, as far as marks look at it."""

    def __init__(self, identity: str, *parts: str, **but: Any) -> None:
        self.name = f"test_it[{identity}]"
        self.nodeid = f"tests/test_x.py::{self.name}"
        self._marker = pytest.mark.thorough(*parts, **but).mark

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self._marker if name == "thorough" else None


def takes_long(case: Any) -> bool:
    return _takes_long(case, case.get_closest_marker("thorough"))


def test_parts_of_ids_say_which_cases_take_long() -> None:
    assert takes_long(Case("chain-2", "chain"))
    assert not takes_long(Case("block-2", "chain"))
    assert takes_long(Case("chain-2", but=("block",)))
    assert not takes_long(Case("block-2", but=("block",)))
    assert takes_long(Case("chain-2"))


def test_a_part_that_names_no_case_is_refused() -> None:
    def check(*cases: Any) -> None:
        _check_marks(list(cases))

    check(Case("chain-2", "chain"), Case("block-2", "chain"))
    with pytest.raises(pytest.UsageError, match=r"\['chian'\] names no case of tests/test_x.py::test_it$"):
        check(Case("chain-2", "chian"), Case("block-2", "chian"))
    with pytest.raises(pytest.UsageError, match="blok"):
        check(Case("chain-2", but=("blok",)), Case("block-2", but=("blok",)))


@pytest.mark.parametrize("case", [Case("chain-2", only=("chain",)), Case("chain-2", "chain", but=("block",))])
def test_words_that_the_mark_does_not_know_are_refused(case: Case) -> None:
    with pytest.raises(pytest.UsageError, match="takes parts of ids, or but=parts"):
        takes_long(case)
