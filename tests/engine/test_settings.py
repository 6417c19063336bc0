"""Settings of `forerun.load` that would have no effect are refused, before any model is looked for."""

from __future__ import annotations

import pytest

from forerun.errors import ForerunError
from forerun.loading import load


@pytest.mark.parametrize("setting", [{"draft_context": 8}, {"draft_vocabulary": 8}, {"draft_min_confidence": 0.3}])
@pytest.mark.parametrize("drafter", [None, "lookup"])
def test_settings_of_a_draft_model_are_refused_where_there_is_none(setting: dict, drafter: str | None) -> None:
    with pytest.raises(ForerunError, match="needs a draft model") as caught:
        load("smollm2-135m", drafter=drafter, **setting)
    assert next(iter(setting)) in str(caught.value)
