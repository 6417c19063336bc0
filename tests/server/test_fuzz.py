"""Schemathesis asks everything that the OpenAPI document allows, and much that it does not.

For ten minutes, against a server of your own:

    schemathesis run http://127.0.0.1:8000/openapi.json --max-time 600 --exclude-checks positive_data_acceptance

That check is left out because much is wrong that a schema cannot say: prompts that are too long, ids that the model
does not have, messages that its template refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from tests.server.serving import PATIENCE_S, Serving

from forerun.loading import load

CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
    response_schema_conformance, negative_data_rejection, unsupported_method,
]  # fmt: skip


@pytest.fixture(scope="module")
def fuzzed(models: tuple[Path, Path]) -> Iterator[Serving]:
    """A context of few tokens, so that no answer is long."""
    llm = load(models[0], draft=models[1], k=3, drafter="stack", context_length=48)
    with Serving(llm, default_max_tokens=4, max_choices=4) as serving:
        yield serving
        serving.wait_until_idle()


@pytest.mark.slow
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["legal", "illegal"])
def test_no_request_breaks_the_server(fuzzed: Serving, mode: GenerationMode) -> None:
    document = schemathesis.openapi.from_url(f"{fuzzed.url}/openapi.json")
    paths = []
    for found in document.get_all_operations():
        operation = found.ok()
        paths.append(operation.path)

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        def ask(case: Any) -> None:
            case.call_and_validate(checks=CHECKS, timeout=PATIENCE_S)

        if mode == GenerationMode.POSITIVE or operation.body or operation.query:
            ask()
    assert {"/v1/completions", "/v1/chat/completions", "/tokenize", "/metrics"} <= set(paths)
