"""The constraint behind allowed_token_ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forerun.constraints import TokenSet, TokenSetConstraint
from forerun.errors import ContractError, ParameterError


def test_every_token_is_from_the_set_and_the_text_never_ends() -> None:
    constraint = TokenSetConstraint([3, 1, 3, np.int64(4)], 6)
    assert constraint.mask().tolist() == [False, True, False, True, True, False]
    assert [constraint.advance(token) for token in (1, 0, 4, 6, -1, -2, 5, 3)] == [
        True, False, True, False, False, False, False, True,
    ]  # fmt: skip
    assert not constraint.is_finished
    constraint.rollback(3)
    with pytest.raises(ContractError, match="undo 1 tokens"):
        constraint.rollback(1)


def test_the_mask_cannot_be_written_to_and_is_shared() -> None:
    grammar = TokenSet(range(2), 4)
    one, two = grammar.start(), grammar.start()
    assert one.mask() is two.mask()
    with pytest.raises(ValueError, match="read-only"):
        one.mask()[3] = True
    assert one.advance(0)
    with pytest.raises(ContractError):
        two.rollback(1)
    with pytest.raises(ContractError):
        one.rollback(-1)


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([], "the set is empty"), ([7], "token id 7 is outside"), ([0, -1], "-1 is not allowed"),
        ([True], "True is not allowed"), ([1.0], "1.0 is not allowed"), (["1"], "'1' is not allowed"),
        ("12", "token ids are needed, not '12'"),
        (3, "token ids are needed, not 3"), ([None], "None is not allowed"),
    ],
)  # fmt: skip
def test_bad_ids_are_refused_by_name(ids: Any, said: str) -> None:
    with pytest.raises(ParameterError, match=said) as caught:
        TokenSetConstraint(ids, 7)
    assert caught.value.name == "allowed_token_ids"
    with pytest.raises(ParameterError, match=said):
        TokenSet(ids, 7)
